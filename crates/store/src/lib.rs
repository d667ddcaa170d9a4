//! Everything that must be unique or remembered and cannot be read off what runs: accounts, keys,
//! claims, billing legs and events. The only SQL of the workspace.
//!
//! One thread writes, and commits what queued up meanwhile as one transaction, so that a hundred
//! callers wait for one flush. Phases of sandboxes are deliberately not here: they are derived.

mod account;
mod agent;
mod audit;
mod billing;
mod bundle;
mod change;
mod code;
mod db;
mod event;
mod group;
mod key;
mod lease;
mod meter;
mod persisted;
mod rate;
mod read;
mod schema;
mod session;
mod session_log;
mod subject;
mod tenancy;
mod workspace;
mod writer;

use std::path::Path;
use std::sync::{Arc, RwLock};

use model::Result;
use tokio::sync::broadcast;

use crate::db::postgres::{Order, Postgres};

pub use account::Account;
pub use agent::{AgentOrder, Tokens};
pub use audit::{AUDIT_BEGINS, AuditEntry, AuditRecord};
pub use billing::{AutoTopup, Balance, MOVE_CENTS_MAX, Movement, Tariff, Topup, Transaction};
pub use bundle::{BundleRecord, Kept};
pub use change::{Change, Leg, LegEnd, Remembered, Transition};
pub use event::{EventId, StoredEvent};
pub use key::{KeyFormat, KeyRecord, NewKey, Verified};
pub use lease::Epoch;
pub use meter::{DayUsage, Metered, RecentSandbox};
pub use persisted::{Appended, Persisted, PersistedEvent};
pub use rate::{Admission, Rate};
pub use read::{Backlog, NameClaim, OpenLeg, Request};
pub use session::{Resuming, SessionRecord, SessionUse};
pub use session_log::{LogEnd, LogRow, Logged};
pub use subject::Subject;
pub use tenancy::{LimitRow, Limited, Member, Organisation};
pub use workspace::WorkspaceSize;
pub use writer::Pending;

/// A handle on the database; clones share it. With an epoch, it writes about sandboxes only while
/// that epoch is the newest.
#[derive(Clone)]
pub struct Store(Arc<Shared>, Option<Epoch>);

struct Shared {
    writer: writer::Writer,
    readers: read::Readers,
    /// Of events of sessions, which are many and wait for nothing else.
    log: session_log::Log,
    keys: key::Cache,
    told: broadcast::Sender<StoredEvent>,
    tariff: RwLock<Tariff>,
}

/// Events that a slow listener may be behind before it has to read the database again.
const TOLD_MAX: usize = 1024;

impl Store {
    /// Opens the database, makes it when absent, and brings it to the current schema.
    pub fn open(path: &Path) -> Result<Self> {
        schema::make(path)?;
        let mut connection = schema::connect(path)?;
        schema::migrate(&mut connection)?;
        let readers = read::Source::Sqlite(path.to_owned());
        let log = session_log::Log::open(&path.with_file_name(session_log::FILE))?;
        Self::over(writer::Target::Sqlite(connection), (readers, log), path)
    }

    /// The same in `PostgreSQL`. Servers that share it share a data directory too, where they tell each
    /// other of keys that are revoked.
    pub fn open_postgres(url: &str, data_dir: &Path) -> Result<Self> {
        let postgres = Postgres::new(url)?;
        // On a thread of its own, because it waits and the caller's may be one that must not.
        let session = std::thread::scope(|scope| {
            let opening = scope.spawn(|| {
                let session = postgres.connect()?;
                schema::migrate_postgres(&session)?;
                Ok::<_, model::Error>(session)
            });
            opening.join().unwrap_or_else(|_| Err(anyhow::anyhow!("open the database").into()))
        })?;
        let readers = read::Source::Postgres(Arc::clone(&postgres));
        let log = session_log::Log::in_postgres(&postgres)?;
        let target = writer::Target::Postgres(postgres, Some(session), Order::InTurn);
        Self::over(target, (readers, log), &data_dir.join("bastide.db"))
    }

    fn over(
        target: writer::Target,
        (readers, log): (read::Source, session_log::Log),
        path: &Path,
    ) -> Result<Self> {
        let told = broadcast::Sender::new(TOLD_MAX);
        let writer = writer::Writer::spawn(target, told.clone())?;
        let readers = read::Readers::new(readers);
        let keys = key::Cache::open(path)?;
        let tariff = RwLock::default();
        Ok(Self(Arc::new(Shared { writer, readers, log, keys, told, tariff }), None))
    }

    /// Every event from now on, once it is durable, in the order of the ids.
    pub fn listen(&self) -> broadcast::Receiver<StoredEvent> {
        self.0.told.subscribe()
    }
}
