//! Where everything that happens is said. Items of an agent that works for another have a parent.

use events::{ContentPart, ItemKind, ItemRole, ItemStatus, RUNTIME_EVENT};
use serde_json::Value;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::protocol::{Item, Said};

/// What waits to be written. Who says more waits.
pub(crate) const QUEUE: usize = 256;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Voice {
    out: mpsc::Sender<Said>,
    parent: Option<String>,
}

impl Voice {
    pub(crate) fn new(out: mpsc::Sender<Said>) -> Self {
        Self { out, parent: None }
    }

    /// For what works for an item.
    pub(crate) fn below(&self, parent: &str) -> Self {
        Self { out: self.out.clone(), parent: Some(parent.to_owned()) }
    }

    /// When nobody listens any more the session is about to end.
    pub(crate) async fn say(&self, said: Said) {
        let _ = self.out.send(said).await;
    }

    pub(crate) async fn error(&self, code: &str, message: impl Into<String>) {
        self.say(Said::Error { message: message.into(), code: code.to_owned() }).await;
    }

    /// Something to show that is neither a message nor a tool.
    pub(crate) async fn status(&self, label: &str, detail: &Value) {
        let content = vec![ContentPart::status(label, Some(detail.to_string()))];
        let mut item = self.item(ItemKind::Status, ItemRole::System, content);
        item.status = ItemStatus::Completed;
        self.say(Said::ItemCompleted { item }).await;
    }

    /// What is metered.
    pub(crate) async fn runtime_event(&self, detail: &Value) {
        self.status(RUNTIME_EVENT, detail).await;
    }

    /// A new item, in progress.
    pub(crate) fn item(&self, kind: ItemKind, role: ItemRole, content: Vec<ContentPart>) -> Item {
        Item {
            id: new_id(),
            parent: self.parent.clone(),
            kind,
            role: Some(role),
            content,
            status: ItemStatus::InProgress,
        }
    }
}

/// Never the same again, also after a resume.
pub(crate) fn new_id() -> String {
    Uuid::now_v7().simple().to_string()
}
