//! 000's workspace of a sandbox at the two ends of its compute: put in before anybody can use it, saved before
//! it goes.

use guest_proto::Guest;
use model::{EndReason, Phase, Result};

use super::Machine;
use crate::workspace::{Manifest, ROOT};

impl Machine {
    /// Of compute that runs and that nobody knows of yet.
    pub(super) async fn restore(&self) -> Result<Option<Manifest>> {
        if self.state.borrow().spec.workspace.is_none() {
            return Ok(None);
        }
        let guest = self.cell.pool.driver.guest(self.cell.id)?;
        self.core.restore(&self.cell, &guest).await
    }

    /// A paused one says nothing.
    pub(super) fn running_guest(&self) -> Option<Guest> {
        let state = self.state.borrow();
        state.guest.clone().filter(|_| state.phase == Phase::Running)
    }

    /// What cannot be saved stays in the stopped sandbox, and is saved when that starts again or goes.
    pub(super) async fn save_before_stop(&mut self, guest: Option<Guest>) {
        let has_one = self.state.borrow().spec.workspace.is_some();
        let Some(guest) = guest.filter(|_| has_one) else { return };
        if let Err(failure) = self.core.save_workspace(&self.cell, guest, ROOT).await {
            self.warn("save the workspace before stopping", failure);
        }
    }

    /// What cannot be saved keeps the sandbox from going: its compute ends, its disk stays, and whoever asks
    /// next, or the sweep, tries again.
    pub(super) async fn save_before_end(
        &mut self,
        guest: Option<Guest>,
        (reason, cpu_usec): (EndReason, u64),
    ) -> Result<()> {
        let has_one = self.state.borrow().spec.workspace.is_some();
        if !has_one || reason == EndReason::CreateFailed {
            return Ok(());
        }
        self.core.keep_workspace(&self.cell, None);
        if let Some(guest) = guest {
            match self.core.save_workspace(&self.cell, guest, ROOT).await {
                Ok(()) => return Ok(()),
                Err(failure) => self.warn("save the workspace from within", failure),
            }
        }
        let driver = &self.cell.pool.driver;
        let Some(seen) = self.core.bounded(driver.observe(self.cell.id)).await? else {
            return Ok(());
        };
        if seen.tombstone.is_some() || seen.phase == Phase::Deleting {
            // There is nothing left to save from.
            return Ok(());
        }
        self.core.bounded(driver.stop(self.cell.id, reason)).await?;
        if let Some(incarnation) = self.incarnation() {
            // It uses nothing any more, however long its files take to be saved. Told again, it counts once.
            let ended = self.end_leg(&incarnation, cpu_usec);
            self.core.record(&self.cell, vec![ended]);
        }
        let maintenance = self.core.bounded(driver.maintenance(self.cell.id)).await?;
        let root = maintenance.workspace.to_string_lossy().into_owned();
        let guest = maintenance.guest.clone();
        let saved = self.core.save_workspace(&self.cell, guest, root.trim_end_matches('/')).await;
        drop(maintenance.hold);
        saved
    }
}
