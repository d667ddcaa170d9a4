//! The epoch of the lease: of several servers on one database, one may change sandboxes. Which one is
//! decided by a lock elsewhere; here is what keeps the others from writing all the same.

use std::fmt;

use anyhow::Context;
use model::{Error, Result};

use crate::Store;
use crate::db::{Db, Row};
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
            let next = batch.db.first(
                "INSERT INTO leases (name, epoch) VALUES ('pool', 1)
                 ON CONFLICT (name) DO UPDATE SET epoch = leases.epoch + 1 RETURNING epoch",
                &[],
                epoch,
            )?;
            Ok(next.context("take the next epoch")?)
        })
    }

    /// The same store in the hands of a lease's holder.
    #[must_use]
    pub fn fenced(&self, epoch: Epoch) -> Self {
        Self(self.0.clone(), Some(epoch))
    }
}

/// Refuses a holder whose lease has moved on.
pub(crate) fn check(db: &Db<'_>, fence: Option<Epoch>) -> Result<()> {
    let Some(mine) = fence else { return Ok(()) };
    let newest = db.first("SELECT epoch FROM leases WHERE name = 'pool'", &[], epoch)?;
    if newest.is_some_and(|newest| newest != mine) {
        return Err(Error::unavailable("another server has taken over"));
    }
    Ok(())
}

fn epoch(row: &Row<'_>) -> Result<Epoch> {
    Ok(Epoch(row.unsigned(0)?))
}
