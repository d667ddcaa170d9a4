//! Lines of deictic, to universal events. It speaks of items as we do, so this is a change of names; what is
//! open when it goes has failed.

use std::collections::BTreeMap;

use deictic::protocol::{self, Said, TurnStatus};
use events::ItemStatus;
use serde_json::{Value, json};

use crate::agents::decoded::{Decoded, OPEN_MAX, detail, text};
use crate::conversion::{Conversion, Item};

/// What a session has open.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    items: BTreeMap<String, Item>,
    /// Ids of permissions, then of questions.
    permissions: BTreeMap<String, ()>,
    questions: BTreeMap<String, ()>,
}

impl Decoder {
    /// Anything at all: what is not understood becomes a status.
    pub(crate) fn decode(&mut self, line: &Value) -> Vec<Decoded> {
        let mut out = Vec::new();
        match serde_json::from_value::<Said>(line.clone()) {
            Ok(said) => self.said(said, &mut out),
            Err(_) => {
                let label = Some(text(line, "type")).filter(|label| !label.is_empty());
                let label = label.unwrap_or("unknown");
                out.push(Conversion::status(label, detail(line)).into());
            }
        }
        out
    }

    /// The program is gone: nothing stays open.
    pub(crate) fn close(&mut self) -> Vec<Decoded> {
        let mut out = Vec::new();
        self.close_all(&mut out);
        out
    }

    /// Whether it is still asked for.
    pub(crate) fn permit(&mut self, id: &str) -> bool {
        self.permissions.remove(id).is_some()
    }

    pub(crate) fn answer(&mut self, id: &str) -> bool {
        self.questions.remove(id).is_some()
    }

    fn said(&mut self, said: Said, out: &mut Vec<Decoded>) {
        match said {
            Said::Ready { session, vendor, model, tools, .. } => {
                out.push(Decoded::NativeId(session));
                let metadata = json!({"vendor": vendor, "model": model, "tools": tools});
                let metadata = Some(metadata);
                out.push(Conversion::SessionStarted { metadata }.into());
            }
            Said::Refused { message } => {
                out.push(Conversion::error(message, Some("refused"), None).into());
            }
            Said::ItemStarted { item } => {
                // What is not kept here would never be closed; it is told when it is complete.
                if self.items.len() >= OPEN_MAX {
                    return;
                }
                let id = item.id.clone();
                let item = item_of(item);
                self.items.insert(id, item.clone());
                out.push(item.started().into());
            }
            Said::ItemDelta { id: native_item_id, delta } => {
                // Of nothing that is open it would open something.
                if self.items.contains_key(&native_item_id) {
                    out.push(Conversion::ItemDelta { native_item_id, delta }.into());
                }
            }
            Said::ItemCompleted { item } => {
                self.items.remove(&item.id);
                let item = item_of(item);
                out.push(match item.status {
                    ItemStatus::Failed => item.failed().into(),
                    ItemStatus::Completed | ItemStatus::InProgress => item.completed().into(),
                });
            }
            Said::PermissionRequested { id, action, metadata } => {
                self.permissions.insert(id.clone(), ());
                let metadata = Some(metadata);
                out.push(Conversion::PermissionRequested { id, action, metadata }.into());
            }
            Said::PermissionWithdrawn { id } => {
                self.permissions.remove(&id);
                out.push(Conversion::PermissionResolved { id, approved: false }.into());
            }
            Said::QuestionRequested { id, prompt, options } => {
                self.questions.insert(id.clone(), ());
                out.push(Conversion::QuestionRequested { id, prompt, options }.into());
            }
            Said::QuestionWithdrawn { id } => {
                self.questions.remove(&id);
                out.push(Conversion::QuestionResolved { id, response: None }.into());
            }
            Said::Error { message, code } => {
                out.push(Conversion::error(message, Some(&code), None).into());
            }
            Said::TurnOver { status, steps } => {
                self.close_all(out);
                out.push(Decoded::TurnOver(json!({"status": word(status), "num_steps": steps})));
            }
        }
    }

    fn close_all(&mut self, out: &mut Vec<Decoded>) {
        for item in std::mem::take(&mut self.items).into_values() {
            out.push(item.failed().into());
        }
        for id in std::mem::take(&mut self.permissions).into_keys() {
            out.push(Conversion::PermissionResolved { id, approved: false }.into());
        }
        for id in std::mem::take(&mut self.questions).into_keys() {
            out.push(Conversion::QuestionResolved { id, response: None }.into());
        }
    }
}

fn word(status: TurnStatus) -> &'static str {
    match status {
        TurnStatus::Completed => "completed",
        TurnStatus::Failed => "failed",
        TurnStatus::Interrupted => "interrupted",
    }
}

fn item_of(item: protocol::Item) -> Item {
    Item {
        native_id: Some(item.id),
        native_parent: item.parent,
        kind: item.kind,
        role: item.role,
        content: item.content,
        status: item.status,
    }
}
