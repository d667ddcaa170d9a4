//! What is said on standard input and output: one JSON value a line.
//!
//! ```text
//! > Start                                       < ready | refused (and the end)
//! > message                                     < item_started, item_delta, item_completed, …
//!                                               < permission_requested   > permission
//!                                               < question_requested     > question
//! > interrupt (while a turn runs)               < turn_over
//! > environment (at any time)
//! > end of input: the session ends
//! ```
//!
//! Keys are no part of what it says; they come in the environment, and are replaced as a part of it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use events::{ContentPart, ItemKind, ItemRole, ItemStatus};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The first line: what the session is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Start {
    /// `anthropic`, `openai`, `openai-chat`, `google`, `deepseek`; else by the model's name.
    pub vendor: Option<String>,
    pub model: Option<String>,
    pub base_url: Option<String>,
    /// How hard the model is to think, where it can be told: `low`, `medium`, `high`.
    pub effort: Option<String>,
    pub permission_mode: PermissionMode,
    /// The session to go on with.
    pub session: Option<String>,
    /// Where transcripts are kept.
    pub state_dir: Option<PathBuf>,
    /// The agents, as `app_json` has them.
    pub app: Option<Value>,
    /// Tool servers by name.
    pub mcp: BTreeMap<String, McpServer>,
}

/// A tool server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum McpServer {
    /// A program that speaks on its standard input and output.
    Local {
        command: Vec<String>,
        #[serde(default)]
        env: BTreeMap<String, String>,
    },
    /// One that is reached over HTTP.
    Remote {
        url: String,
        #[serde(default)]
        headers: BTreeMap<String, String>,
    },
}

/// What may be done without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionMode {
    /// Reading; the rest is asked for.
    #[default]
    Default,
    /// Reading; nothing else, until a plan is approved.
    Plan,
    /// Everything.
    Bypass,
}

/// What the session is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Heard {
    /// Begins a turn; waits if one runs.
    Message {
        text: String,
    },
    Permission {
        id: String,
        reply: Reply,
    },
    /// `null`: not answered.
    Question {
        id: String,
        answers: Option<Vec<String>>,
    },
    /// Ends the turn.
    Interrupt,
    /// What commands, and the next call of the model, get from now on: variables, a key.
    Environment {
        set: BTreeMap<String, String>,
        #[serde(default)]
        unset: Vec<String>,
    },
}

/// How a permission is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Once,
    /// For the rest of the session.
    Always,
    Reject,
}

/// What the session says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Said {
    Ready {
        session: String,
        resumed: bool,
        vendor: String,
        model: String,
        tools: Vec<String>,
    },
    /// It cannot start.
    Refused {
        message: String,
    },
    ItemStarted {
        item: Item,
    },
    ItemDelta {
        id: String,
        delta: String,
    },
    ItemCompleted {
        item: Item,
    },
    PermissionRequested {
        id: String,
        action: String,
        metadata: Value,
    },
    /// Nobody has to answer any more.
    PermissionWithdrawn {
        id: String,
    },
    QuestionRequested {
        id: String,
        prompt: String,
        options: Vec<String>,
    },
    QuestionWithdrawn {
        id: String,
    },
    Error {
        message: String,
        code: String,
    },
    TurnOver {
        status: TurnStatus,
        steps: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnStatus {
    Completed,
    Failed,
    Interrupted,
}

/// An item of the universal schema by our own ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    pub id: String,
    #[serde(default)]
    pub parent: Option<String>,
    pub kind: ItemKind,
    #[serde(default)]
    pub role: Option<ItemRole>,
    pub content: Vec<ContentPart>,
    pub status: ItemStatus,
}
