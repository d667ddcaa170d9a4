//! An answer that is not 200: what it says, and when to ask again.

use std::time::Duration;

use http::{HeaderMap, header};
use serde_json::Value;

use crate::fault::Fault;

/// What is kept of a vendor's words.
const MESSAGE_CHARS_MAX: usize = 600;

/// How the vendors say that it is too long for them.
const CONTEXT_FULL: &[&str] = &[
    "prompt is too long",
    "context_length_exceeded",
    "maximum context length",
    "context window",
    "input token count",
    "input length and `max_tokens` exceed",
    "request_too_large",
];

pub(super) fn is_context_full(message: &str) -> bool {
    let message = message.to_lowercase();
    CONTEXT_FULL.iter().any(|words| message.contains(words))
}

/// `body` is as much of it as was read.
pub(super) fn fault_of(status: u16, headers: &HeaderMap, body: &[u8]) -> Fault {
    let message = message_of(body);
    if matches!(status, 400 | 413) && (status == 413 || is_context_full(&message)) {
        return Fault::ContextFull { message };
    }
    Fault::Status { status, message, retry_after: retry_after(headers) }
}

/// In seconds, as the vendors send it, or as the date that HTTP allows too.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| Some(headers.get(name)?.to_str().ok()?.trim());
    let seconds = |text: &str| Duration::try_from_secs_f64(text.parse().ok()?).ok();
    if let Some(ms) = text("retry-after-ms").and_then(seconds) {
        return Some(ms / 1000);
    }
    let said = text(header::RETRY_AFTER.as_str())?;
    seconds(said).or_else(|| {
        let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(said).ok()?;
        // One that is over says: at once.
        Some(Duration::try_from(at.duration_since(jiff::Timestamp::now())).unwrap_or_default())
    })
}

fn message_of(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let said = serde_json::from_str::<Value>(&text).ok().and_then(|value| {
        // Google wraps a list around it when it does not stream.
        let value = value.get(0).cloned().unwrap_or(value);
        let error = value.get("error").unwrap_or(&value);
        let parts = ["type", "code", "status", "message"]
            .iter()
            .filter_map(|key| error.get(*key).and_then(Value::as_str))
            .collect::<Vec<_>>();
        (!parts.is_empty()).then(|| parts.join(": "))
    });
    let text = said.unwrap_or_else(|| text.trim().to_owned());
    if text.is_empty() {
        return "no reason given".to_owned();
    }
    text.chars().take(MESSAGE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests;
