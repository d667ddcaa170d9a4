//! The fake as servers see it that do not hold its lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use model::{EndReason, Phase, Result, SandboxId};

use super::FakeDriver;
use crate::{Seen, UsedElsewhere, View};

/// Who says to be using what.
#[derive(Clone, Default)]
pub(super) struct Holds(Arc<Mutex<HashMap<SandboxId, (usize, Timestamp)>>>);

struct Hold {
    all: Holds,
    id: SandboxId,
}

impl Holds {
    pub(super) fn used(&self, id: SandboxId) -> Option<UsedElsewhere> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&id).map(|(count, last)| UsedElsewhere { busy: *count > 0, last: *last })
    }

    fn change(&self, id: SandboxId, change: impl FnOnce(usize) -> usize) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, last) = all.entry(id).or_default();
        (*count, *last) = (change(*count), Timestamp::now());
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.all.change(self.id, |count| count - 1);
    }
}

impl View for FakeDriver {
    fn look(&self, id: SandboxId) -> Result<Option<Seen>> {
        let Some(observed) = self.host.observe(id) else { return Ok(None) };
        let runs = observed.phase == Phase::Running;
        let (Some(incarnation), Some(started_at)) = (observed.incarnation, observed.started_at)
        else {
            return Ok(None);
        };
        if !runs {
            return Ok(None);
        }
        let seen = |guest| Seen { spec: observed.spec, incarnation, started_at, guest };
        Ok(self.host.guest(id).map(seen))
    }

    fn is_paused(&self, id: SandboxId) -> bool {
        self.host.observe(id).is_some_and(|observed| observed.phase == Phase::Paused)
    }

    fn end_reason(&self, id: SandboxId) -> Option<EndReason> {
        self.host.observe(id)?.end_reason
    }

    fn hold(&self, id: SandboxId) -> Result<Box<dyn Send + Sync>> {
        self.host.holds.change(id, |count| count + 1);
        Ok(Box::new(Hold { all: self.host.holds.clone(), id }))
    }
}
