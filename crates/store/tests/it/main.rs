//! The store against a real database in a temporary directory.

#![expect(clippy::unwrap_used, reason = "a test that cannot unwrap fails")]

mod accounts;
mod claims;
mod events;
mod keys;
mod lease;

use jiff::{SignedDuration, Timestamp};
use model::{Event, EventKind, OwnerId, SandboxId};
use store::{Change, Store, Transition};
use tempfile::TempDir;

struct Fixture {
    store: Store,
    dir: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { store: Store::open(&dir.path().join("bastide.db")).unwrap(), dir }
    }

    /// Another handle on the same database, as after a restart.
    fn reopened(&self) -> Store {
        Store::open(&self.dir.path().join("bastide.db")).unwrap()
    }
}

fn owner(name: &str) -> OwnerId {
    format!("usr_{name}").parse().unwrap()
}

/// A fixed moment plus `seconds`.
fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap() + SignedDuration::from_secs(seconds)
}

fn tell(owner: &OwnerId, sandbox: SandboxId, kind: EventKind, seconds: i64) -> Change {
    let event = Event {
        owner: owner.clone(),
        sandbox,
        kind,
        reason: None,
        at: at(seconds),
        data: serde_json::Value::Null,
    };
    Change::Tell(event, Transition(format!("{}:{seconds}", kind.name())))
}
