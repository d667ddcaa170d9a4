//! When a sandbox ends by itself: the decision is [`model::reaper::decide`], made when its own
//! timer fires and at every sweep (ruling 23).

use std::sync::PoisonError;
use std::time::Duration;

use guest_proto::{ExecFrame, Guest};
use jiff::{SignedDuration, Timestamp};
use model::reaper::{Action, Observed, decide, next_check};
use model::{EndReason, EventKind, Phase, Shape, Tier};

use super::Machine;
use crate::registry::Cell;
use crate::{CancelReason, Notice};

/// How long a command may be silent when asked whether it still runs.
const STILL_RUNS_WITHIN: Duration = Duration::from_millis(200);
/// The shortest sleep, so that a moment in the past does not make a task spin.
const SLEEP_MIN: SignedDuration = SignedDuration::from_millis(250);

impl Machine {
    /// When to look at the clocks next.
    pub(super) fn next_wake(&self) -> Option<Timestamp> {
        let now = self.core.now();
        if decide(now, &self.observed()).is_some() {
            return Some(now);
        }
        // What is in flight may end at once and then idle: that is the earliest that can happen.
        let mut observed = self.observed();
        if observed.busy {
            observed.busy = false;
            observed.last_activity_at = now;
        }
        let mut wake = next_check(&observed)?;
        if wake <= now {
            // The time of the warning has come and nobody is attached.
            observed.warned = true;
            wake = next_check(&observed)?;
        }
        Some(wake.max(now + SLEEP_MIN))
    }

    /// Decides, and does it.
    pub(super) async fn reap(&mut self) {
        let Some(action) = decide(self.core.now(), &self.observed()) else { return };
        let idle = matches!(action, Action::StopForIdle | Action::DestroyForIdle);
        if idle && self.is_used_unseen().await {
            return;
        }
        match action {
            Action::Warn => self.warn_client(),
            Action::StopForIdle => {
                self.tell_why(EventKind::IdleStop, EndReason::Idle);
                if let Err(failure) = self.stop(EndReason::Idle).await {
                    self.warn("stop", failure);
                }
            }
            Action::DestroyForIdle => self.end(EventKind::IdleDestroy, EndReason::Idle).await,
            Action::DestroyForLifetime => self.end(EventKind::Lifetime, EndReason::Lifetime).await,
            Action::DestroyForDeadline => self.end(EventKind::Deadline, EndReason::Deadline).await,
        }
    }

    /// Somebody else's decision: what could be kept is kept.
    pub(super) async fn end_for(&mut self, reason: EndReason) {
        if !matches!(self.phase(), Phase::Running | Phase::Paused) {
            return;
        }
        if reason == EndReason::CreditsExhausted {
            self.cell.activity.notify(Notice::Cancel(CancelReason::CreditsExhausted));
        }
        let spec = self.state.borrow().spec.clone();
        if spec.shape == Shape::Template && spec.tier == Tier::Ephemeral {
            return self.end(EventKind::CreditsExhausted, reason).await;
        }
        self.tell_why(EventKind::CreditsExhausted, reason);
        if let Err(failure) = self.stop(reason).await {
            self.warn("stop", failure);
        }
    }

    fn observed(&self) -> Observed {
        self.cell.observed(self.warned)
    }

    async fn end(&mut self, kind: EventKind, reason: EndReason) {
        self.tell_why(kind, reason);
        if let Err(failure) = self.delete(reason).await {
            self.warn("destroy", failure);
        }
    }

    fn tell_why(&self, kind: EventKind, reason: EndReason) {
        let incarnation = self.incarnation();
        let why = self.core.tell_once(&self.cell, kind, incarnation.as_deref(), Some(reason));
        self.core.record(&self.cell, vec![why]);
    }

    fn warn_client(&mut self) {
        self.warned = true;
        self.cell.activity.notify(Notice::Cancel(CancelReason::Timeout));
        self.tell_why(EventKind::LifetimeWarning, EndReason::Lifetime);
    }

    /// A streamed command that nobody reads, or another server's call.
    async fn is_used_unseen(&self) -> bool {
        if self.cell.hear_of_use_elsewhere() {
            return true;
        }
        let guest = self.state.borrow().guest.clone();
        let Some(guest) = guest.filter(|_| self.phase() == Phase::Running) else { return false };
        let runs = self.cell.command_still_runs(&guest).await;
        if runs {
            self.cell.activity.touch();
        }
        runs
    }
}

impl Cell {
    /// Whether other servers' calls make it less idle than it was known to be.
    pub(crate) fn hear_of_use_elsewhere(&self) -> bool {
        let Some(used) = self.pool.driver.used_elsewhere(self.id) else { return false };
        let before = self.activity.last();
        self.activity.touch_at(used.last);
        if used.busy {
            self.activity.touch();
        }
        self.activity.last() > before
    }

    /// Whether a streamed command that nobody reads still runs (rulings 9 and 18). Asked only when
    /// the sandbox is about to end for idleness, because reading a command's end shortens how long
    /// it is kept.
    pub(crate) async fn command_still_runs(&self, guest: &Guest) -> bool {
        let detached = self.detached.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for exec in detached {
            if still_runs(guest, exec.as_str()).await {
                return true;
            }
            let mut kept = self.detached.lock().unwrap_or_else(PoisonError::into_inner);
            kept.retain(|other| *other != exec);
        }
        false
    }
}

async fn still_runs(guest: &Guest, exec: &str) -> bool {
    let ended = async {
        let mut frames = guest.exec_attach(exec, 0).await.ok()?;
        while let Some(frame) = frames.next().await {
            match frame {
                Ok(ExecFrame::End(_)) | Err(_) => break,
                Ok(ExecFrame::Output { .. } | ExecFrame::Gap { .. }) => {}
                Ok(ExecFrame::Keepalive) => return Some(()),
            }
        }
        None
    };
    // Silence means that it runs, whoever cannot be asked does not.
    tokio::time::timeout(STILL_RUNS_WITHIN, ended).await.map_or(true, |still| still.is_some())
}
