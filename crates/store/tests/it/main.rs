//! The store against a real database in a temporary directory.

#![expect(clippy::unwrap_used, reason = "a test that cannot unwrap fails")]

mod accounts;
mod again;
mod audit;
mod claims;
mod cluster;
mod events;
mod keys;
mod lease;
mod money;
mod on_postgres;
mod persisted;
mod sessions;
mod tenancy;
mod tls;
mod upgrade;
mod usage;
mod workspaces;

use std::path::Path;

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
        Self { store: open(dir.path()), dir }
    }

    /// Rows of a table, as anybody sees them.
    fn count(&self, table: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        let Some(url) = again::url_for(self.dir.path()) else {
            let db = rusqlite::Connection::open(self.dir.path().join("bastide.db")).unwrap();
            return db.query_row(&sql, [], |row| row.get(0)).unwrap();
        };
        let psql = std::process::Command::new("psql").args(["-tA", "-c", &sql, &url]).output();
        String::from_utf8(psql.unwrap().stdout).unwrap().trim().parse().unwrap()
    }

    /// Another handle on the same database, as after a restart.
    fn reopened(&self) -> Store {
        open(self.dir.path())
    }
}

/// On `SQLite`, or on `PostgreSQL` when these tests are run again.
fn open(dir: &Path) -> Store {
    match again::url_for(dir) {
        Some(url) => Store::open_postgres(&url, dir).unwrap(),
        None => Store::open(&dir.join("bastide.db")).unwrap(),
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
