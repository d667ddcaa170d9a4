//! The frames of a session's WebSocket beside the universal events (DESIGN 2.5): what a client sends, and
//! the control frames that it is sent. `docs/wire.md` shows them all.
//!
//! A control frame has no sequence, is in no log, and is never repeated.

use std::fmt;

use model::{Error, Result};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::cancel::CancelReason;
use crate::json;

/// Of an `exec`'s own id.
const EXEC_ID_BYTES_MAX: usize = 128;

/// Of what is said of a frame that was not taken: it may repeat some of it.
const DETAIL_CHARS_MAX: usize = 500;

/// Unknown types and fields are refused with an error frame, not with a close. The type is the field `type`, which
/// [`ClientFrame::parse`] reads: serde, told so, would forget where in the frame a mistake is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
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
    Interrupt {},
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
    Screenshot {},
}

/// An object of which no field is there twice.
struct Fields(Map<String, Value>);

struct FieldsVisitor;

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
    /// One text frame. A mistake is `Invalid` with the field that has it.
    pub fn parse(text: &str) -> Result<Self> {
        let Fields(mut fields) = json::parse(text.as_bytes())?;
        let kind = match fields.remove("type") {
            Some(Value::String(kind)) => kind,
            Some(_) => return Err(Error::invalid("type", "must be a string")),
            None => return Err(Error::invalid("type", "missing field `type`")),
        };
        let tagged = Map::from_iter([(kind.clone(), Value::Object(fields))]);
        let frame: Self = json::from_value("", tagged.into()).map_err(|error| match error {
            Error::Invalid { field, detail } => {
                Error::Invalid { field: field_of(&kind, &field, &detail), detail }
            }
            other => other,
        })?;
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
            Self::Interrupt {}
            | Self::From { .. }
            | Self::MouseMove { .. }
            | Self::MouseClick { .. }
            | Self::KeyboardType { .. }
            | Self::Scroll { .. }
            | Self::Screenshot {} => Ok(()),
        }
    }
}

/// In a frame of that type, which serde counts as a part of the path.
fn field_of(kind: &str, path: &str, detail: &str) -> String {
    if let Some(unknown) = json::quoted_after(detail, "unknown field `") {
        return unknown.to_owned();
    }
    let inside = path.strip_prefix(kind).and_then(|rest| rest.strip_prefix('.'));
    inside.unwrap_or("type").to_owned()
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Fields, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            if fields.contains_key(&name) {
                return Err(A::Error::custom(format!("duplicate field `{name}`")));
            }
            fields.insert(name, map.next_value()?);
        }
        Ok(Fields(fields))
    }
}

impl ControlFrame {
    pub fn error(code: FrameError, detail: impl Into<String>) -> Self {
        Self::error_of(code, detail, None)
    }

    /// That answers the `exec` of this id.
    pub fn error_of(code: FrameError, detail: impl Into<String>, id: Option<String>) -> Self {
        let mut detail = detail.into();
        if let Some((end, _)) = detail.char_indices().nth(DETAIL_CHARS_MAX) {
            detail.truncate(end);
            detail.push('…');
        }
        Self::System(SystemFrame::Error { code, detail, id })
    }

    /// As it is sent.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers are JSON")
    }
}

#[cfg(test)]
mod tests;
