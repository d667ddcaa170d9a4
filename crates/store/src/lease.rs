//! The epoch of the lease: of several servers on one database, one may change sandboxes. Which one is
//! decided by a lock elsewhere; here is what keeps the others from writing all the same.

use std::fmt;

use anyhow::Context;
use model::{Error, Result};
use rusqlite::{Connection, OptionalExtension};

use crate::Store;
use crate::writer::Pending;

/// Grows whenever the lease changes hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Store {
    /// The next epoch. From now on, changes of sandboxes by holders of an earlier one are refused.
    pub fn next_epoch(&self) -> Pending<Epoch> {
        self.0.writer.submit(|batch| {
            let next = batch.connection.query_row(
                "INSERT INTO leases (name, epoch) VALUES ('pool', 1)
                 ON CONFLICT (name) DO UPDATE SET epoch = epoch + 1 RETURNING epoch",
                [],
                |row| row.get(0),
            );
            Ok(Epoch(next.context("take the next epoch")?))
        })
    }

    /// The same store in the hands of a lease's holder.
    #[must_use]
    pub fn fenced(&self, epoch: Epoch) -> Self {
        Self(self.0.clone(), Some(epoch))
    }
}

/// Refuses a holder whose lease has moved on.
pub(crate) fn check(db: &Connection, fence: Option<Epoch>) -> Result<()> {
    let Some(Epoch(mine)) = fence else { return Ok(()) };
    let newest: Option<u64> = db
        .prepare_cached("SELECT epoch FROM leases WHERE name = 'pool'")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)).optional())
        .context("read the epoch")?;
    if newest.is_some_and(|newest| newest != mine) {
        return Err(Error::unavailable("another server has taken over"));
    }
    Ok(())
}
