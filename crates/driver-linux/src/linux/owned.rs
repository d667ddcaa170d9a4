//! Which incarnations are somebody's, for `collect` to leave alone.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

/// All that have an [`Owner`]. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Owned(Arc<Mutex<BTreeSet<String>>>);

/// One of them, until this is dropped: kept with what it runs, from the launch to the clearing up, whoever has that in
/// between.
pub(super) struct Owner {
    all: Owned,
    incarnation: String,
}

impl Owned {
    pub(super) fn add(&self, incarnation: &str) -> Owner {
        self.lock().insert(incarnation.to_owned());
        Owner { all: self.clone(), incarnation: incarnation.to_owned() }
    }

    pub(super) fn all(&self) -> BTreeSet<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.all.lock().remove(&self.incarnation);
    }
}
