//! What the host and the engine of code mode say to each other, over a connection into the sandbox: one
//! JSON value a line.
//!
//! ```text
//!  host                               engine (inside)
//!   ── Job ─────────────────────────►
//!   ── the specification, one line ─►  only with Scope::Spec
//!   ◄───────────────── Said::Call ──
//!   ── Reply ───────────────────────►  as often as the code asks, several at once
//!   ◄───────────────── Said::Done ──
//! ```
//!
//! The engine runs code of a stranger: the host believes nothing of what it says, and what it says is
//! only ever a wish or a result.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What the code finds beside its language: a function of the host's functions and the scope. Shared by
/// all engines.
pub const PRELUDE: &str = include_str!("code/prelude.js");

/// The longest line that the host reads.
pub const LINE_BYTES_MAX: usize = 4 << 20;

/// What the engine is to do. The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// An async arrow function, as it was sent.
    pub code: String,
    pub scope: Scope,
    pub timeout_ms: u64,
    /// Of the result as JSON, in bytes; the rest is cut off.
    pub result_max: usize,
    /// Of `stdout` and `stderr` each.
    pub stream_max: usize,
    /// What JavaScript may use of the sandbox's memory.
    pub memory_max: usize,
}

/// What the code finds beside the language itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// `spec`.
    Spec,
    /// `api`, for reading.
    ApiRead,
    /// `api`.
    ApiWrite,
}

impl Scope {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::ApiRead => "api_read",
            Self::ApiWrite => "api_write",
        }
    }
}

/// A line of the engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    Call(Call),
    Done(Done),
}

/// `api.request(…)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    pub id: u64,
    pub method: String,
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<Value>,
    /// Sent as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Sent as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_body: Option<String>,
    /// The same, of bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_base64: Option<String>,
}

/// The last line: how the code ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// What the function returned, as JSON. Absent when it threw.
    #[serde(default)]
    pub result: Option<String>,
    /// There was more of it.
    #[serde(default)]
    pub truncated: bool,
    #[serde(default)]
    pub error: Option<String>,
    #[serde(default)]
    pub stdout: String,
    #[serde(default)]
    pub stderr: String,
}

/// The answer to a [`Call`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    pub id: u64,
    #[serde(flatten)]
    pub outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// What `api.request` resolves to.
    Answer { status: u16, ok: bool, data: Value },
    /// What it throws.
    Refused(String),
}
