//! From running to stopped, and from anywhere to gone; asked for or not (ruling 12).

use driver::Exit;
use model::lifecycle::Transition;
use model::{EndReason, Error, EventKind, Phase, Result, Shape, Tier};
use store::{Change, LegEnd};
use tracing::{info, warn};

use super::Machine;
use crate::{Notice, Sandbox};

impl Machine {
    /// Ends the compute and keeps the workspace.
    pub(super) async fn stop(&mut self, reason: EndReason) -> Result<Sandbox> {
        let guest = self.running_guest();
        match self.phase() {
            Phase::Stopped => return Ok(self.view()),
            Phase::Running | Phase::Paused => {
                self.publish(Transition::StopAsked, |state| {
                    state.guest = None;
                    state.end_reason = Some(reason);
                })?;
            }
            // An earlier stop was not finished.
            Phase::Stopping => {}
            Phase::Creating
            | Phase::Configuring
            | Phase::Booting
            | Phase::Deleting
            | Phase::Destroyed => return Err(self.wrong_state()),
        }
        let reason = self.state.borrow().end_reason.unwrap_or(reason);
        self.save_before_stop(guest).await;
        let cpu_usec = self.cpu_usec().await;
        let work = self.cell.pool.driver.stop(self.cell.id, reason);
        self.core.bounded(work).await?;
        self.stopped(reason, cpu_usec)?;
        // Whoever is told of it may remove it at once, and a tombstone knows of its end only: so what
        // happened before is on the disk first. What the store cannot take now is owed.
        let _ = self.core.store.settled().await;
        Ok(self.view())
    }

    /// Removes everything of it and answers when that is done (ruling 7).
    pub(super) async fn delete(&mut self, reason: EndReason) -> Result<Sandbox> {
        if self.phase() == Phase::Destroyed {
            return Ok(self.view());
        }
        let guest = self.running_guest();
        if self.phase() != Phase::Deleting {
            self.publish(Transition::DeleteAsked, |state| {
                state.guest = None;
                state.end_reason = Some(reason);
            })?;
            self.cell.activity.notify(Notice::Destroyed);
        }
        let reason = self.state.borrow().end_reason.unwrap_or(reason);
        self.end_maintenance();
        let cpu_usec = self.cpu_usec().await;
        self.save_before_end(guest, (reason, cpu_usec)).await?;
        let work = self.cell.pool.driver.remove(self.cell.id, reason);
        self.core.bounded(work).await?;
        let incarnation = self.incarnation();
        let now = self.core.now();
        self.publish(Transition::Gone, |state| {
            state.incarnation = None;
            state.started_at = None;
            state.destroyed_at = Some(now);
        })?;
        self.cell.forget_workspace();
        let name = self.state.borrow().spec.name.clone();
        self.core.registry.free_name(&self.cell, &name);
        self.core.registry.uncount(&self.cell);
        self.core.counters.count(&self.core.counters.destroys);
        info!(sandbox.id = %self.cell.id, ?reason, "destroyed sandbox {}", self.cell.id);
        let destroyed = self.core.tell_once(&self.cell, EventKind::Destroyed, None, Some(reason));
        let leg = incarnation.map(|incarnation| self.end_leg(&incarnation, cpu_usec));
        let changes = [Some(Change::Release), leg, Some(destroyed)].into_iter().flatten().collect();
        // The name is free in memory, and after a crash the tombstone tells the same again.
        self.core.record(&self.cell, changes);
        Ok(self.view())
    }

    /// Removes what a failed launch made. Whether all of it is gone.
    pub(super) async fn destroy_silently(&mut self, reason: EndReason) -> bool {
        if self.phase() != Phase::Deleting {
            let asked = self.publish(Transition::DeleteAsked, |state| {
                state.guest = None;
                state.end_reason = Some(reason);
            });
            if asked.is_err() {
                return true;
            }
        }
        let work = self.cell.pool.driver.remove(self.cell.id, reason);
        if let Err(failure) = self.core.bounded(work).await {
            self.warn("undo the creation of", failure);
            return false;
        }
        let now = self.core.now();
        let gone = self.publish(Transition::Gone, |state| state.destroyed_at = Some(now));
        self.core.registry.uncount(&self.cell);
        gone.is_ok()
    }

    /// Compute that ended without being asked to.
    pub(super) async fn exited(&mut self, exit: &Exit) {
        if self.incarnation().as_deref() != Some(exit.incarnation.as_str()) {
            return;
        }
        match self.phase() {
            Phase::Running | Phase::Paused => self.died(exit.reason).await,
            Phase::Creating
            | Phase::Configuring
            | Phase::Booting
            | Phase::Stopping
            | Phase::Stopped
            | Phase::Deleting
            | Phase::Destroyed => {}
        }
    }

    /// The sweep saw something that does not fit: look for ourselves, and finish what is unfinished.
    pub(super) async fn look(&mut self) {
        match self.phase() {
            Phase::Running | Phase::Paused => {
                let observed = self.cell.pool.driver.observe(self.cell.id);
                let Ok(observed) = self.core.bounded(observed).await else { return };
                let incarnation = observed.as_ref().and_then(|seen| seen.incarnation.as_deref());
                if incarnation != self.incarnation().as_deref() {
                    let reason = observed.and_then(|seen| seen.end_reason);
                    self.died(reason.unwrap_or(EndReason::Unknown)).await;
                }
            }
            Phase::Stopping => {
                if let Err(failure) = self.stop(EndReason::Unknown).await {
                    self.warn("finish stopping", failure);
                }
            }
            Phase::Deleting => self.finish_delete().await,
            Phase::Creating
            | Phase::Configuring
            | Phase::Booting
            | Phase::Stopped
            | Phase::Destroyed => {}
        }
    }

    /// Ruling 12: an ephemeral template sandbox goes with its compute, all others are stopped.
    async fn died(&mut self, reason: EndReason) {
        warn!(sandbox.id = %self.cell.id, ?reason, "compute of {} ended", self.cell.id);
        self.core.counters.count_exit(reason);
        let spec = self.state.borrow().spec.clone();
        if spec.shape == Shape::Template && spec.tier == Tier::Ephemeral {
            if let Err(failure) = self.delete(reason).await {
                self.warn("destroy", failure);
            }
            return;
        }
        self.compute_gone(reason).await;
    }

    /// Clears away compute that is gone or that never came up; the workspace is kept.
    pub(super) async fn compute_gone(&mut self, reason: EndReason) {
        let cpu_usec = self.cpu_usec().await;
        let work = self.cell.pool.driver.stop(self.cell.id, reason);
        if let Err(failure) = self.core.bounded(work).await {
            self.warn("clear away the compute of", failure);
        }
        if let Err(failure) = self.stopped(reason, cpu_usec) {
            self.warn("stop", failure);
        }
    }

    fn stopped(&mut self, reason: EndReason, cpu_usec: u64) -> Result<()> {
        let incarnation = self.incarnation();
        self.publish(Transition::ComputeGone, |state| {
            state.guest = None;
            state.incarnation = None;
            state.started_at = None;
            state.end_reason = Some(reason);
        })?;
        self.core.registry.uncount(&self.cell);
        let Some(incarnation) = incarnation else { return Ok(()) };
        let kind = EventKind::Stopped;
        let stopped = self.core.tell_once(&self.cell, kind, Some(&incarnation), Some(reason));
        let changes = vec![self.end_leg(&incarnation, cpu_usec), stopped];
        self.core.record(&self.cell, changes);
        Ok(())
    }

    pub(super) fn end_leg(&self, incarnation: &str, cpu_usec: u64) -> Change {
        let incarnation = incarnation.to_owned();
        Change::EndLeg(LegEnd { incarnation, ended_at: self.core.now(), cpu_usec })
    }

    /// Finishes a deletion that failed before. One of a failed create is not shown afterwards.
    pub(super) async fn finish_delete(&mut self) {
        let reason = self.state.borrow().end_reason;
        if reason == Some(EndReason::CreateFailed) {
            if self.destroy_silently(EndReason::CreateFailed).await {
                self.core.registry.remove(self.cell.id);
            }
            return;
        }
        if let Err(failure) = self.delete(reason.unwrap_or(EndReason::Unknown)).await {
            self.warn("finish deleting", failure);
        }
    }

    /// Read on the host before what counts it is removed; a lost reading is not worth failing for.
    async fn cpu_usec(&self) -> u64 {
        if self.incarnation().is_none() {
            return 0;
        }
        self.core.bounded(self.cell.pool.driver.cpu_usec(self.cell.id)).await.unwrap_or(0)
    }

    pub(super) fn warn(&self, what: &str, failure: Error) {
        let error = format!("{:#}", anyhow::Error::from(failure));
        warn!(sandbox.id = %self.cell.id, error, "could not {what} {}", self.cell.id);
    }
}
