//! Everything that must be unique or remembered and cannot be read off what runs: accounts, keys,
//! claims, billing legs and events. The only SQL of the workspace.
//!
//! One thread writes, and commits what queued up meanwhile as one transaction, so that a hundred
//! callers wait for one flush. Phases of sandboxes are deliberately not here: they are derived.

mod account;
mod bundle;
mod change;
mod code;
mod event;
mod key;
mod lease;
mod rate;
mod read;
mod schema;
mod writer;

use std::path::Path;
use std::sync::Arc;

use model::Result;
use tokio::sync::broadcast;

pub use account::Account;
pub use bundle::{BundleRecord, Kept};
pub use change::{Change, Leg, LegEnd, Remembered, Transition};
pub use event::{EventId, StoredEvent};
pub use key::{KeyFormat, KeyRecord, NewKey, Verified};
pub use lease::Epoch;
pub use rate::{Admission, Rate};
pub use read::{Backlog, NameClaim, OpenLeg, Request};
pub use writer::Pending;

/// A handle on the database; clones share it. With an epoch, it writes about sandboxes only while
/// that epoch is the newest.
#[derive(Clone)]
pub struct Store(Arc<Shared>, Option<Epoch>);

struct Shared {
    writer: writer::Writer,
    readers: read::Readers,
    keys: key::Cache,
    told: broadcast::Sender<StoredEvent>,
}

/// Events that a slow listener may be behind before it has to read the database again.
const TOLD_MAX: usize = 1024;

impl Store {
    /// Opens the database, makes it when absent, and brings it to the current schema.
    pub fn open(path: &Path) -> Result<Self> {
        schema::make(path)?;
        let mut connection = schema::connect(path)?;
        schema::migrate(&mut connection)?;
        let told = broadcast::Sender::new(TOLD_MAX);
        let writer = writer::Writer::spawn(connection, told.clone())?;
        let readers = read::Readers::new(path.to_owned());
        let keys = key::Cache::open(path)?;
        Ok(Self(Arc::new(Shared { writer, readers, keys, told }), None))
    }

    /// Every event from now on, once it is durable, in the order of the ids.
    pub fn listen(&self) -> broadcast::Receiver<StoredEvent> {
        self.0.told.subscribe()
    }
}
