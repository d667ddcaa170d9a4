//! The universal schema: what every coding agent says, in one form. Pure data with its JSON.
//!
//! Two rules hold for all of it. An optional field is written as `null`, never left out. What is in
//! `data` is chosen by `type`, never guessed from its fields. It does not number, store or send
//! anything. Two readings of it are here: the plain form of old clients, and the transcript.

mod data;
mod event;
mod item;
mod plain;
mod schema;
#[cfg(test)]
mod tests;
pub mod transcript;

pub use self::data::{
    AgentUnparsedData, ErrorData, ItemDeltaData, ItemEventData, PermissionEventData,
    PermissionStatus, QuestionEventData, QuestionStatus, SessionEndReason, SessionEndedData,
    SessionStartedData, TerminatedBy,
};
pub use self::event::{EventSource, UniversalEvent, UniversalEventData, UniversalEventType};
pub use self::item::{
    ContentPart, FileAction, ItemKind, ItemRole, ItemStatus, ReasoningVisibility, UniversalItem,
};
pub use self::plain::{DoneStatus, PlainFrame, PlainRole, ToolState, plain};

/// The label of the status item that ends a turn.
pub const TURN_COMPLETED: &str = "turn.completed";

/// The other label that ends a turn, as some agents call it.
pub const SESSION_IDLE: &str = "session.idle";

/// The label of status items that carry token use and tool calls.
pub const RUNTIME_EVENT: &str = "runtime_event";
