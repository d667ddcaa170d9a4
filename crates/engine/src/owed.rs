//! What the store could not write when it happened: a full disk, a read-only one. It is written by the
//! next call that needs the store, or by the sweep, in the order in which it happened to each sandbox.
//! A crash before that loses nothing either: adoption reads the same off the host.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::{OwnerId, SandboxId};
use store::Change;
use tracing::warn;

use crate::core::Core;

/// Changes that are kept; what comes after is left to the next start.
const OWED_MAX: usize = 16 * 1024;

/// Changes of one sandbox that belong together.
#[derive(Clone)]
pub(crate) struct Debt {
    pub(crate) owner: OwnerId,
    pub(crate) sandbox: SandboxId,
    pub(crate) changes: Vec<Change>,
}

/// By when they happened.
#[derive(Default)]
pub(crate) struct Owed(Mutex<Book>);

#[derive(Default)]
struct Book {
    next: u64,
    debts: BTreeMap<u64, Debt>,
}

impl Owed {
    /// The place of what happens now among what happens to all.
    pub(crate) fn number(&self) -> u64 {
        let mut book = self.book();
        book.next += 1;
        book.next
    }

    /// Whether something that happened to it before is not written yet.
    pub(crate) fn owes(&self, sandbox: SandboxId) -> bool {
        self.book().debts.values().any(|debt| debt.sandbox == sandbox)
    }

    pub(crate) fn add(&self, number: u64, debt: Debt) {
        let mut book = self.book();
        if book.debts.len() < OWED_MAX {
            book.debts.insert(number, debt);
        } else {
            warn!(sandbox.id = %debt.sandbox, "a change of {} is left to the next start", debt.sandbox);
        }
    }

    fn all(&self) -> VecDeque<(u64, Debt)> {
        self.book().debts.iter().map(|(number, debt)| (*number, debt.clone())).collect()
    }

    fn paid(&self, number: u64) {
        self.book().debts.remove(&number);
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    /// Writes what is owed, as far as the store takes it.
    pub(crate) async fn pay(&self) {
        for (number, debt) in self.owed.all() {
            let Debt { owner, sandbox, changes } = debt;
            match self.store.apply(owner, sandbox, changes).await {
                Err(failure) if is_for_now(&failure) => return,
                Err(failure) => crate::sweep::report("write down a change of before", failure),
                Ok(()) => {}
            }
            self.owed.paid(number);
        }
    }
}

/// Whether the same write may work later.
pub(crate) fn is_for_now(failure: &model::Error) -> bool {
    use model::Error::{DiskFull, ReadOnly, Unavailable};
    matches!(failure, DiskFull { .. } | ReadOnly { .. } | Unavailable { .. })
}
