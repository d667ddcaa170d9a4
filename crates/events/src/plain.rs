//! Wire version 1: a session of one agent, in plain frames. A function of one event at a time, without a
//! memory, so that what a client pieces together over many connections is always the same.
//!
//! ```text
//! item.completed, message      text   (role user, assistant or system)
//! item.completed, tool call    tool   called
//! item.completed, tool result  tool   completed | failed
//! permission.*, question.*     tool   asked | answered
//! error                        text   (role error)
//! the status that ends a turn  done   completed
//! session.ended                done   completed | failed | terminated
//! everything else              nothing: starts, deltas, states, thoughts
//! ```

use serde::Serialize;

use crate::{
    ContentPart, ItemKind, ItemRole, ItemStatus, PermissionStatus, QuestionStatus, SESSION_IDLE,
    SessionEndReason, TURN_COMPLETED, UniversalEvent, UniversalEventData, UniversalItem,
};

/// One frame of wire version 1. `sequence` is that of the event it comes from: what `from` takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum PlainFrame {
    Text {
        sequence: u64,
        role: PlainRole,
        text: String,
    },
    Tool {
        sequence: u64,
        /// Of the call, the permission or the question.
        id: String,
        state: ToolState,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Its arguments, its output, the question.
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
    Done {
        sequence: u64,
        status: DoneStatus,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlainRole {
    User,
    Assistant,
    System,
    Error,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolState {
    Called,
    Completed,
    Failed,
    /// It waits for `permission.reply`, `question.reply` or `question.reject`.
    Asked,
    Answered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DoneStatus {
    /// The turn is over.
    Completed,
    /// The session is over, by an error.
    Failed,
    /// The session is over.
    Terminated,
}

/// What wire version 1 says of an event, if anything.
pub fn plain(event: &UniversalEvent) -> Option<PlainFrame> {
    let sequence = event.sequence;
    match &event.data {
        UniversalEventData::ItemCompleted(data) => item(sequence, &data.item),
        UniversalEventData::Error(data) => {
            Some(PlainFrame::Text { sequence, role: PlainRole::Error, text: data.message.clone() })
        }
        UniversalEventData::PermissionRequested(data)
        | UniversalEventData::PermissionResolved(data) => Some(PlainFrame::Tool {
            sequence,
            id: data.permission_id.clone(),
            state: match data.status {
                PermissionStatus::Requested => ToolState::Asked,
                PermissionStatus::Approved | PermissionStatus::Denied => ToolState::Answered,
            },
            name: Some(data.action.clone()),
            text: None,
        }),
        UniversalEventData::QuestionRequested(data)
        | UniversalEventData::QuestionResolved(data) => Some(PlainFrame::Tool {
            sequence,
            id: data.question_id.clone(),
            state: match data.status {
                QuestionStatus::Requested => ToolState::Asked,
                QuestionStatus::Answered | QuestionStatus::Rejected => ToolState::Answered,
            },
            name: None,
            text: Some(data.prompt.clone()),
        }),
        UniversalEventData::SessionEnded(data) => Some(PlainFrame::Done {
            sequence,
            status: match data.reason {
                SessionEndReason::Completed => DoneStatus::Completed,
                SessionEndReason::Error => DoneStatus::Failed,
                SessionEndReason::Terminated => DoneStatus::Terminated,
            },
        }),
        UniversalEventData::SessionStarted(_)
        | UniversalEventData::ItemStarted(_)
        | UniversalEventData::ItemDelta(_)
        | UniversalEventData::AgentUnparsed(_) => None,
    }
}

fn item(sequence: u64, item: &UniversalItem) -> Option<PlainFrame> {
    match item.kind {
        ItemKind::Message | ItemKind::System | ItemKind::Unknown => {
            let text = item.text();
            let role = match item.role {
                Some(ItemRole::User) => PlainRole::User,
                Some(ItemRole::System | ItemRole::Tool) => PlainRole::System,
                Some(ItemRole::Assistant) | None => PlainRole::Assistant,
            };
            (!text.is_empty()).then_some(PlainFrame::Text { sequence, role, text })
        }
        ItemKind::ToolCall => item.content.iter().find_map(|part| match part {
            ContentPart::ToolCall { name, arguments, call_id } => Some(PlainFrame::Tool {
                sequence,
                id: call_id.clone(),
                state: ToolState::Called,
                name: Some(name.clone()),
                text: Some(arguments.clone()),
            }),
            _ => None,
        }),
        ItemKind::ToolResult => item.content.iter().find_map(|part| match part {
            ContentPart::ToolResult { call_id, output } => Some(PlainFrame::Tool {
                sequence,
                id: call_id.clone(),
                state: match item.status {
                    ItemStatus::Failed => ToolState::Failed,
                    ItemStatus::Completed | ItemStatus::InProgress => ToolState::Completed,
                },
                name: None,
                text: Some(output.clone()),
            }),
            _ => None,
        }),
        ItemKind::Status => {
            let over = item.is_end_of_turn();
            over.then_some(PlainFrame::Done { sequence, status: DoneStatus::Completed })
        }
    }
}

impl UniversalItem {
    /// Its text parts, one below the other.
    pub fn text(&self) -> String {
        let texts = self.content.iter().filter_map(|part| match part {
            ContentPart::Text { text } => Some(text.as_str()),
            _ => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }

    /// Whether it is the status that ends a turn.
    pub fn is_end_of_turn(&self) -> bool {
        self.kind == ItemKind::Status
            && self.content.iter().any(|part| match part {
                ContentPart::Status { label, .. } => {
                    label == TURN_COMPLETED || label == SESSION_IDLE
                }
                _ => false,
            })
    }
}

#[cfg(test)]
mod tests;
