//! The environment of commands: what the process was started with, without the keys of models. It may
//! change while a session goes on; what runs already keeps what it has.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::model::{Environment, is_secret};

/// Shared by all that start something. Values are not shown.
#[derive(Clone, Default)]
pub(crate) struct Variables(Arc<Mutex<Environment>>);

impl fmt::Debug for Variables {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.lock().keys()).finish()
    }
}

impl Variables {
    /// Commands are written by a model: they get no keys.
    pub(crate) fn new(all: &Environment) -> Self {
        let variables = Self::default();
        variables.change(all, &[]);
        variables
    }

    /// As they are now.
    pub(crate) fn now(&self) -> Environment {
        self.lock().clone()
    }

    pub(crate) fn change(&self, set: &Environment, unset: &[String]) {
        let mut all = self.lock();
        unset.iter().for_each(|name| drop(all.remove(name)));
        let set = set.iter().filter(|(name, _)| !is_secret(name));
        all.extend(set.map(|(name, value)| (name.clone(), value.clone())));
    }

    fn lock(&self) -> MutexGuard<'_, Environment> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
