//! What is known of one sandbox, as callers see it.

use std::collections::HashMap;

use driver::{Ended, Observed, Tombstone};
use model::{EndReason, Error, Phase, Result, SandboxId};

use super::compute::Running;
use super::stored::Stored;
use crate::incarnation;

/// What is known of one sandbox.
pub(super) struct Entry {
    pub(super) stored: Stored,
    pub(super) running: Option<Running>,
    /// Why its last compute ended.
    pub(super) end_reason: Option<EndReason>,
    /// What its last compute used.
    pub(super) ended: Option<Ended>,
    /// Set when only the tombstone is left.
    pub(super) tombstone: Option<Tombstone>,
    /// A launch is under way.
    pub(super) launching: bool,
    /// A guest of it has answered.
    pub(super) greeted: bool,
}

/// The entry of a sandbox that is more than a tombstone.
pub(super) fn existing(live: &HashMap<SandboxId, Entry>, id: SandboxId) -> Result<&Entry> {
    let entry = live.get(&id).filter(|entry| entry.tombstone.is_none());
    entry.ok_or_else(|| Error::no_sandbox(id))
}

impl Entry {
    pub(super) fn observed(&self) -> Observed {
        self.observed_in(self.phase())
    }

    /// For who knows its phase. That of a sandbox that runs is asked of the kernel, which may be busy with its cgroup.
    pub(super) fn observed_in(&self, phase: Phase) -> Observed {
        Observed {
            spec: self.stored.spec.clone(),
            phase,
            incarnation: self.running.as_ref().map(|r| r.record.incarnation.clone()),
            started_at: self.running.as_ref().map(|r| r.record.started_at),
            end_reason: self.end_reason,
            tombstone: self.tombstone.clone(),
            digest: Some(self.stored.template_digest.clone()),
            ended: self.ended.clone().filter(|_| self.running.is_none()),
            greeted: self.greeted,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        if self.tombstone.is_some() {
            return Phase::Destroyed;
        }
        match &self.running {
            Some(running) if incarnation::freeze_asked(&running.record) => Phase::Paused,
            Some(_) => Phase::Running,
            None if self.launching => Phase::Creating,
            None => Phase::Stopped,
        }
    }
}
