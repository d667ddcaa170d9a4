//! What a client of a session sends over its WebSocket (DESIGN 2.5), as text frames.

use serde::Deserialize;
use utoipa::ToSchema;

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

impl PermissionReply {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Always => "always",
            Self::Reject => "reject",
        }
    }
}
