//! What adapters say, before anything is numbered: native ids, no sequence, no time.

use events::{ContentPart, ErrorData, ItemKind, ItemRole, ItemStatus, TURN_COMPLETED};
use serde_json::Value;
use serde_json::value::RawValue;

/// One thing that an agent did.
#[derive(Debug, Clone, PartialEq)]
pub enum Conversion {
    /// The agent's own announcement, beside the daemon's. Only the first of a session is kept.
    SessionStarted {
        metadata: Option<Value>,
    },
    /// Dropped for an item that is already known.
    ItemStarted(Item),
    /// For an item that was not started, one is: an empty message of the assistant.
    ItemDelta {
        native_item_id: String,
        delta: String,
    },
    ItemCompleted(Item),
    PermissionRequested {
        id: String,
        action: String,
        metadata: Option<Value>,
    },
    /// The agent's side answered or withdrew it. Dropped if it is not pending (any more).
    PermissionResolved {
        id: String,
        approved: bool,
    },
    QuestionRequested {
        id: String,
        prompt: String,
        options: Vec<String>,
    },
    /// As with permissions. `None`: rejected or withdrawn.
    QuestionResolved {
        id: String,
        response: Option<String>,
    },
    /// Not for what the agent will try again: that is a status item.
    Error(ErrorData),
    /// A line that is not what its protocol promises.
    Unparsed {
        error: String,
        location: String,
    },
    /// The agent says so, and the session goes on all the same (only the mock agent does that).
    SessionEnded,
}

/// An item by its native names.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// The same one in start, deltas and completion. `None`: an item of its own.
    pub native_id: Option<String>,
    pub native_parent: Option<String>,
    pub kind: ItemKind,
    pub role: Option<ItemRole>,
    pub content: Vec<ContentPart>,
    pub status: ItemStatus,
}

impl Item {
    pub fn new(native_id: impl Into<String>, kind: ItemKind, role: ItemRole) -> Self {
        Self {
            native_id: Some(native_id.into()),
            native_parent: None,
            kind,
            role: Some(role),
            content: Vec::new(),
            status: ItemStatus::InProgress,
        }
    }

    #[must_use]
    pub fn with_content(mut self, content: Vec<ContentPart>) -> Self {
        self.content = content;
        self
    }

    #[must_use]
    pub fn with_parent(mut self, native_parent: impl Into<String>) -> Self {
        self.native_parent = Some(native_parent.into());
        self
    }

    #[must_use]
    pub fn with_status(mut self, status: ItemStatus) -> Self {
        self.status = status;
        self
    }

    pub fn started(self) -> Conversion {
        Conversion::ItemStarted(self.with_status(ItemStatus::InProgress))
    }

    pub fn completed(self) -> Conversion {
        Conversion::ItemCompleted(self.with_status(ItemStatus::Completed))
    }

    pub fn failed(self) -> Conversion {
        Conversion::ItemCompleted(self.with_status(ItemStatus::Failed))
    }
}

impl Conversion {
    /// Something to show that is neither a message nor a tool: retries, progress, token use.
    pub fn status(label: impl Into<String>, detail: Option<String>) -> Self {
        let content = vec![ContentPart::status(label, detail)];
        Self::ItemCompleted(Item {
            native_id: None,
            native_parent: None,
            kind: ItemKind::Status,
            role: Some(ItemRole::System),
            content,
            status: ItemStatus::Completed,
        })
    }

    pub(crate) fn turn_completed(detail: Option<String>) -> Self {
        Self::status(TURN_COMPLETED, detail)
    }

    pub fn error(message: impl Into<String>, code: Option<&str>, details: Option<Value>) -> Self {
        Self::Error(ErrorData { message: message.into(), code: code.map(str::to_owned), details })
    }
}

/// What the agent printed: one JSON value, as text without line breaks. Cheap to clone, because one line
/// can be the cause of several events.
#[derive(Debug, Clone)]
pub struct Raw(std::sync::Arc<str>);

impl Raw {
    /// `None` if it is not JSON.
    pub fn from_line(line: &str) -> Option<Self> {
        let value: &RawValue = serde_json::from_str(line).ok()?;
        if value.get().contains(['\n', '\r']) {
            let value: Value = serde_json::from_str(line).ok()?;
            return Some(Self::from(&value));
        }
        Some(Self(value.get().into()))
    }

    /// A line that is not JSON, as `{"raw": line}`.
    pub fn of_text(line: &str) -> Self {
        Self::from(&serde_json::json!({ "raw": line }))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&Value> for Raw {
    fn from(value: &Value) -> Self {
        Self(value.to_string().into())
    }
}
