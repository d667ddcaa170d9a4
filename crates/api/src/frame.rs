//! The frames of a session's WebSocket beside the universal events (DESIGN 2.5): what a client sends, and
//! the control frames that it is sent. `docs/wire.md` shows them all.
//!
//! A control frame has no sequence, is in no log, and is never repeated.

use model::{Error, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::cancel::CancelReason;
use crate::json;

/// Of an `exec`'s own id.
const EXEC_ID_BYTES_MAX: usize = 128;

/// Unknown types and fields are refused with an error frame, not with a close.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum ClientFrame {
    /// Sets the agent to work; during a turn it waits for the end of that.
    #[serde(rename = "message")]
    Message { message: String },
    #[serde(rename = "permission.reply")]
    PermissionReply { permission_id: String, reply: PermissionReply },
    #[serde(rename = "question.reply")]
    QuestionReply { question_id: String, answers: Vec<Vec<String>> },
    #[serde(rename = "question.reject")]
    QuestionReject { question_id: String },
    /// Ends the turn; the session goes on.
    #[serde(rename = "interrupt")]
    Interrupt,
    /// A command in the sandbox, answered by `stdout`, `stderr` and `exit` frames with the same `id`.
    #[serde(rename = "exec")]
    Exec {
        command: String,
        #[serde(default)]
        id: Option<String>,
    },
    /// The first frame only: what came after this event is sent first.
    #[serde(rename = "from")]
    From { sequence: u64 },
    /// Of a `cua` session: to its display.
    #[serde(rename = "mouse_move")]
    MouseMove { x: u32, y: u32 },
    #[serde(rename = "mouse_click")]
    MouseClick {
        x: u32,
        y: u32,
        #[serde(default)]
        button: Option<u8>,
    },
    #[serde(rename = "keyboard_type")]
    KeyboardType { text: String },
    #[serde(rename = "press_key")]
    PressKey { key: String },
    #[serde(rename = "scroll")]
    Scroll {
        x: u32,
        y: u32,
        /// Down, or up if negative.
        clicks: i32,
    },
    #[serde(rename = "screenshot")]
    Screenshot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermissionReply {
    Once,
    Always,
    Reject,
}

/// What a client is told beside the events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ControlFrame {
    System(SystemFrame),
    Stdout {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        data: String,
    },
    Stderr {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        data: String,
    },
    Exit {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        exit_code: i32,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum SystemFrame {
    /// The agent should wrap up, or the sandbox ends in ten seconds (`timeout`).
    Cancel { reason: CancelReason },
    /// Values of secrets were replaced; these are their names.
    ConfigUpdate { keys: Vec<String> },
    /// A frame of the client's was not taken; the connection goes on.
    Error {
        /// Stable, for programs.
        code: FrameError,
        detail: String,
        /// Of the `exec` that it answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
    },
}

/// Why a frame was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FrameError {
    /// No such type, a field that is missing, unknown or wrong, or no JSON.
    InvalidFrame,
    /// `from` came later than as the first frame.
    FromNotFirst,
    /// `from` is beyond the end of the log; the connection closes.
    FromBeyondLog,
    /// There is no such permission or question, or it was answered.
    NotFound,
    /// Not in this state of the session, or not with its template or agent.
    NotNow,
    /// The agent does not answer; the same frame may work later.
    Unavailable,
    /// A bug or a broken host.
    Internal,
}

impl PermissionReply {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Always => "always",
            Self::Reject => "reject",
        }
    }
}

impl ClientFrame {
    /// One text frame.
    pub fn parse(text: &str) -> Result<Self> {
        let frame: Self = json::parse(text.as_bytes())?;
        frame.check()?;
        Ok(frame)
    }

    fn check(&self) -> Result<()> {
        let filled = |field: &str, text: &str| match text.trim().is_empty() {
            true => Err(Error::invalid(field, "must not be empty")),
            false => Ok(()),
        };
        match self {
            Self::Message { message } => filled("message", message),
            Self::PermissionReply { permission_id, .. } => filled("permission_id", permission_id),
            Self::QuestionReply { question_id, .. } | Self::QuestionReject { question_id } => {
                filled("question_id", question_id)
            }
            Self::Exec { command, id } => {
                if id.as_ref().is_some_and(|id| id.len() > EXEC_ID_BYTES_MAX) {
                    let detail = format!("at most {EXEC_ID_BYTES_MAX} bytes");
                    return Err(Error::invalid("id", detail));
                }
                filled("command", command)
            }
            Self::PressKey { key } => filled("key", key),
            Self::Interrupt
            | Self::From { .. }
            | Self::MouseMove { .. }
            | Self::MouseClick { .. }
            | Self::KeyboardType { .. }
            | Self::Scroll { .. }
            | Self::Screenshot => Ok(()),
        }
    }
}

impl ControlFrame {
    pub fn error(code: FrameError, detail: impl Into<String>) -> Self {
        Self::error_of(code, detail, None)
    }

    /// That answers the `exec` of this id.
    pub fn error_of(code: FrameError, detail: impl Into<String>, id: Option<String>) -> Self {
        Self::System(SystemFrame::Error { code, detail: detail.into(), id })
    }

    /// As it is sent.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers are JSON")
    }
}

#[cfg(test)]
mod tests;
