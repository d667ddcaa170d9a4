//! Pause, resume, rename, policies, and the workspace of a stopped sandbox.

use driver::Update;
use model::lifecycle::Transition;
use model::{Change, Error, EventKind, Name, Phase, PolicyName, Result};
use serde_json::json;
use std::sync::Arc;
use std::sync::PoisonError;
use tokio_util::sync::CancellationToken;

use super::{Machine, Maintained};
use crate::{Sandbox, resolve};

impl Machine {
    pub(super) async fn pause(&mut self) -> Result<Sandbox> {
        if self.phase() == Phase::Paused {
            return Ok(self.view());
        }
        if self.phase() != Phase::Running {
            return Err(self.wrong_state());
        }
        self.require_pause()?;
        self.core.bounded(self.cell.pool.driver.pause(self.cell.id)).await?;
        self.publish(Transition::PauseAsked, |_| {})?;
        let sandbox = self.view();
        let paused = self.core.tell(&self.cell, EventKind::Paused, serde_json::Value::Null);
        self.core.record(&self.cell, vec![paused]);
        Ok(sandbox)
    }

    pub(super) async fn resume(&mut self) -> Result<Sandbox> {
        if self.phase() == Phase::Running {
            return Ok(self.view());
        }
        if self.phase() != Phase::Paused {
            return Err(self.wrong_state());
        }
        self.core.bounded(self.cell.pool.driver.resume(self.cell.id)).await?;
        // A paused sandbox did not idle.
        self.cell.activity.touch();
        self.publish(Transition::ResumeAsked, |_| {})?;
        let resumed = self.core.tell(&self.cell, EventKind::Resumed, serde_json::Value::Null);
        self.core.record(&self.cell, vec![resumed]);
        Ok(self.view())
    }

    /// Name and policy, of anything that is not going away.
    pub(super) async fn update(&mut self, change: Change) -> Result<Sandbox> {
        if matches!(self.phase(), Phase::Deleting | Phase::Destroyed) {
            return Err(self.wrong_state());
        }
        let spec = self.state.borrow().spec.clone();
        // Checked first, so that a bad policy does not leave half a change.
        let policy = match change.policy.filter(|policy| *policy != spec.policy) {
            Some(name) => Some((resolve::policy(&self.core.config, &name)?, name)),
            None => None,
        };
        if let Some(name) = change.name.filter(|name| *name != spec.name) {
            self.rename(&spec.name, name).await?;
        }
        if let Some((policy, name)) = policy {
            let update = Update { name: None, policy: Some((name.clone(), policy)) };
            self.core.bounded(self.cell.pool.driver.update(self.cell.id, update)).await?;
            self.change_policy(name);
        }
        Ok(self.view())
    }

    async fn rename(&self, old: &Name, new: Name) -> Result<()> {
        let core = &self.core;
        core.registry.take_name(&self.cell, &new)?;
        let renamed =
            core.tell(&self.cell, EventKind::Renamed, json!({ "from": old, "name": new }));
        let changes = vec![store::Change::Rename(new.clone()), renamed];
        if let Err(failure) = core.apply(&self.cell, changes).await {
            core.registry.free_name(&self.cell, &new);
            return Err(failure);
        }
        let update = Update { name: Some(new.clone()), policy: None };
        if let Err(failure) = core.bounded(self.cell.pool.driver.update(self.cell.id, update)).await
        {
            let back =
                core.tell(&self.cell, EventKind::Renamed, json!({ "from": new, "name": old }));
            core.record(&self.cell, vec![store::Change::Rename(old.clone()), back]);
            core.registry.free_name(&self.cell, &new);
            return Err(failure);
        }
        self.republish(|spec| spec.name = new);
        core.registry.free_name(&self.cell, old);
        Ok(())
    }

    fn change_policy(&self, name: PolicyName) {
        let data = json!({ "policy": name });
        self.republish(|spec| spec.policy = name);
        let changed = self.core.tell(&self.cell, EventKind::PolicyChanged, data);
        self.core.record(&self.cell, vec![changed]);
    }

    fn republish(&self, change: impl FnOnce(&mut model::SandboxSpec)) {
        self.state.send_modify(|state| {
            state.generation += 1;
            change(Arc::make_mut(&mut state.spec));
        });
    }

    /// One at a time: two programs on one workspace would see each other half done.
    pub(super) async fn maintain(&mut self) -> Result<Maintained> {
        if self.phase() != Phase::Stopped {
            return Err(self.wrong_state());
        }
        self.require_no_maintenance()?;
        let work = self.cell.pool.driver.maintenance(self.cell.id);
        let maintenance = self.core.bounded(work).await?;
        let until = CancellationToken::new();
        *self.cell.maintenance.lock().unwrap_or_else(PoisonError::into_inner) = Some(until.clone());
        Ok(Maintained { maintenance, until })
    }

    pub(super) fn require_no_maintenance(&self) -> Result<()> {
        let held = self.cell.maintenance.lock().unwrap_or_else(PoisonError::into_inner);
        if held.as_ref().is_some_and(|until| !until.is_cancelled()) {
            return Err(Error::wrong_state("an export or import of its workspace is under way"));
        }
        Ok(())
    }

    pub(super) fn end_maintenance(&self) {
        let held = self.cell.maintenance.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(until) = held {
            until.cancel();
        }
    }

    fn require_pause(&self) -> Result<()> {
        if self.cell.pool.driver.capabilities().pause {
            return Ok(());
        }
        let detail = format!("the pool {} cannot pause sandboxes", self.cell.pool.name);
        Err(Error::NotImplemented { code: "pause_not_available", detail })
    }
}
