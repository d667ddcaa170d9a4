//! `GET /v1/sandboxes/{id}/logs` (000, ruling 19).

use model::Error;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::query::Query;

/// 000's default and caps; larger values are clamped.
pub const LINES_DEFAULT: u64 = 100;
pub const LINES_MAX: u64 = 10_000;
pub const BYTES_MAX: u64 = 1024 * 1024;

/// Which log, and how much of its end, after clamping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogsQuery {
    pub stream: LogStream,
    pub amount: LogAmount,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStream {
    /// The agent's.
    Stderr,
    /// The agent daemon's own.
    Agents,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogAmount {
    Lines(u64),
    Bytes(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "content": "…", "truncated": false, "total_bytes": 12345 }))]
pub struct Logs {
    pub content: String,
    /// `content` is smaller than the log. It never begins in the middle of a line.
    pub truncated: bool,
    /// Of the whole log.
    pub total_bytes: u64,
}

impl LogsQuery {
    pub fn parse(query: Option<&str>) -> Result<Self, Error> {
        let mut query = Query::parse(query, &["stream", "lines", "bytes"])?;
        let stream = query.take("stream");
        let lines = query.whole("lines")?;
        let bytes = query.whole("bytes")?;
        let amount = match (lines, bytes) {
            (Some(_), Some(_)) => {
                return Err(Error::invalid("lines", "send lines or bytes, not both"));
            }
            (Some(0), None) => return Err(Error::invalid("lines", "must be at least 1")),
            (None, Some(0)) => return Err(Error::invalid("bytes", "must be at least 1")),
            (None, Some(bytes)) => LogAmount::Bytes(bytes.min(BYTES_MAX)),
            (lines, None) => LogAmount::Lines(lines.unwrap_or(LINES_DEFAULT).min(LINES_MAX)),
        };
        match stream.as_deref() {
            None | Some("stderr") => Ok(Self { stream: LogStream::Stderr, amount }),
            Some("agents") => Ok(Self { stream: LogStream::Agents, amount }),
            Some("stdout" | "all") => Err(Error::NotImplemented {
                code: "log_stream_not_available",
                detail: "only stream=stderr and stream=agents can be read yet".into(),
            }),
            Some(other) => {
                let detail =
                    format!("must be stderr or agents (stdout and all are reserved): {other:?}");
                Err(Error::invalid("stream", detail))
            }
        }
    }
}

#[cfg(test)]
mod tests;
