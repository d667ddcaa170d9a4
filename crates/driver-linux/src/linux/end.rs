//! How compute and sandboxes end: watched deaths, kills, and removal. What that leaves on the host
//! is cleared away in `remains`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use driver::Exit;
use model::{EndReason, Error, Result, SandboxId};
use rustix::process::{PidfdFlags, pidfd_open};

use super::LinuxDriver;
use super::compute::Running;
use super::remains::Buried;
use crate::incarnation;
use crate::plan::RunRecord;
use crate::usage;

/// How long killed processes may take to go; more means that the kernel holds one.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long processes may take to end by themselves when a sandbox is stopped.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(2);
/// What is left to clear away of a sandbox that was removed waits this long.
const AFTER_THE_ANSWER: Duration = Duration::from_millis(2);

/// Its end is nobody's news then.
pub(super) fn kill(id: SandboxId, (record, ending): (&RunRecord, &AtomicBool)) {
    ending.store(true, Ordering::SeqCst);
    if let Err(error) = incarnation::kill(record) {
        tracing::error!(sandbox.id = %id, error = format!("{error:#}"), "could not kill");
    }
}

impl LinuxDriver {
    /// Notices the death of an incarnation, whoever its parent is.
    pub(super) fn watch(&self, id: SandboxId, running: &Running) -> Result<()> {
        let pid = rustix::process::Pid::from_raw(running.record.pid).context("bad pid")?;
        let pidfd = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => {
                running.dead.cancel();
                return Ok(());
            }
            Err(errno) => return Err(anyhow::Error::from(errno).context("watch the guest").into()),
        };
        let watched = crate::sys::readable(pidfd).context("watch the guest")?;
        let driver = self.clone();
        let (dead, ending) = (running.dead.clone(), Arc::clone(&running.ending));
        let incarnation = running.record.incarnation.clone();
        self.inner.tasks.spawn(async move {
            tokio::select! {
                _ = watched.readable() => dead.cancel(),
                () = driver.inner.cancel.cancelled() => return,
            }
            if !ending.load(Ordering::SeqCst) {
                driver.died(id, incarnation).await;
            }
        });
        Ok(())
    }

    /// Compute that ended without being asked to.
    async fn died(&self, id: SandboxId, incarnation: String) {
        // One that is still being entered in the map is in it then.
        let _turn = self.inner.turns.take(id).await;
        let running = {
            let mut live = self.inner.live();
            let Some(entry) = live.get_mut(&id) else { return };
            let same = |r: &mut Running| r.record.incarnation == incarnation;
            let Some(running) = entry.running.take_if(same) else { return };
            running
        };
        let reason = self.inner.reason_of(&running.record);
        let last = self.inner.ended(&running.record);
        self.end_compute(id, running).await;
        let inner = Arc::clone(&self.inner);
        let of = incarnation.clone();
        let noted = tokio::task::spawn_blocking(move || inner.note_death(id, &of, (reason, last)));
        let noted = noted.await;
        if let Err(error) = noted.context("note the end").and_then(|noted| noted) {
            tracing::error!(sandbox.id = %id, error = format!("{error:#}"), "could not note an end");
        }
        tracing::info!(sandbox.id = %id, ?reason, "compute ended by itself");
        if self.inner.exits.try_send(Exit { id, incarnation, reason }).is_err() {
            // The sweep finds it stopped; the reason is on the disk.
            tracing::warn!(sandbox.id = %id, "nobody reads exits");
        }
    }

    /// Kills an incarnation and removes what it had on the host. Best effort: what the kernel holds
    /// on to is found by `collect`.
    pub(super) async fn end_compute(&self, id: SandboxId, running: Running) {
        self.kill_compute(id, &running).await;
        self.clear_up(id, running).await;
    }

    /// Answers when every process is dead, or after a while in which they did not die.
    pub(super) async fn kill_compute(&self, id: SandboxId, running: &Running) {
        kill(id, (&running.record, &running.ending));
        if tokio::time::timeout(KILL_TIMEOUT, running.dead.cancelled()).await.is_err() {
            tracing::error!(sandbox.id = %id, "processes did not die in {KILL_TIMEOUT:?}");
        }
    }

    /// What a dead incarnation had on the host.
    pub(super) async fn clear_up(&self, id: SandboxId, running: Running) {
        let Running { record, egress, owner, .. } = running;
        let had_egress = egress.is_some();
        if let Some(egress) = egress {
            egress.close().await;
        }
        let inner = Arc::clone(&self.inner);
        let cleared = tokio::task::spawn_blocking(move || {
            // Its launcher may still be there, or about to die. Whatever does not is told of when it is cleared.
            let _ = incarnation::wait_until_gone(&record);
            inner.clear(&id.bare(), &record);
            if had_egress {
                inner.keeper.forget(&record.incarnation);
            }
            drop(owner);
        });
        if let Err(error) = cleared.await {
            tracing::error!(sandbox.id = %id, %error, "could not clear up");
        }
    }

    /// Lets processes end by themselves first, as a stop should.
    pub(super) async fn terminate(&self, running: &Running) {
        let Some(pid) = rustix::process::Pid::from_raw(running.record.pid) else { return };
        // A count of none is one that nobody keeps.
        let alone = usage::pids(&running.record) == 1;
        let frozen = incarnation::freeze_asked(&running.record);
        if alone || frozen || running.dead.is_cancelled() {
            return;
        }
        // Through a pidfd that is checked against the cgroup, so that no reused pid is hit.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        if !incarnation::is_populated(&running.record) {
            return;
        }
        let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::TERM);
        let _ = tokio::time::timeout(TERMINATE_TIMEOUT, running.dead.cancelled()).await;
    }

    pub(super) async fn remove_sandbox(&self, id: SandboxId, reason: EndReason) -> Result<()> {
        let known = self.inner.live().get(&id).map(|entry| entry.tombstone.is_some());
        match known {
            None | Some(true) => return Ok(()),
            Some(false) => {}
        }
        // First the durable rename: from there on the next server finishes what this one does not.
        let inner = Arc::clone(&self.inner);
        let buried = tokio::task::spawn_blocking(move || inner.bury(id, reason));
        let Buried { tombstone, mounts } =
            match buried.await.context("remove")?.map_err(Error::from) {
                Ok(buried) => buried,
                // Somebody else's removal was faster.
                Err(Error::NotFound { .. }) => return Ok(()),
                Err(error) => return Err(error),
            };
        let running = match self.take_running(id) {
            None => None,
            Some(running) => {
                self.kill_compute(id, &running).await;
                if !running.dead.is_cancelled() {
                    // The next removal kills it again.
                    self.inner.edit(id, |entry| entry.running = Some(running));
                    return Err(Error::unavailable(format!(
                        "processes of sandbox {id} do not die"
                    )));
                }
                Some(running)
            }
        };
        {
            let mut live = self.inner.live();
            if let Some(entry) = live.get_mut(&id) {
                entry.launching = false;
                entry.end_reason = Some(reason);
                entry.tombstone = Some(tombstone);
            }
        }
        // Nothing lives and nothing reaches the bytes any more; mounts, cgroups, egress and disks need not
        // keep the caller waiting (ruling 7).
        let driver = self.clone();
        self.inner.tasks.spawn(async move {
            // Nor get in the way of the answer, on a machine of few processors.
            tokio::time::sleep(AFTER_THE_ANSWER).await;
            let _ = tokio::task::spawn_blocking(|| drop(mounts)).await;
            if let Some(running) = running {
                driver.clear_up(id, running).await;
            }
            let inner = Arc::clone(&driver.inner);
            let freed = tokio::task::spawn_blocking(move || inner.finish_delete(&id.bare())).await;
            if let Err(error) = freed.context("free the disks").and_then(|freed| freed) {
                tracing::warn!(sandbox.id = %id, error = format!("{error:#}"), "left for the sweep");
            }
        });
        Ok(())
    }

    /// A create that failed leaves nothing, not even a tombstone.
    pub(super) async fn undo_create(&self, id: SandboxId) {
        let running = self.take_running(id);
        if let Some(running) = running {
            self.end_compute(id, running).await;
        }
        let inner = Arc::clone(&self.inner);
        let undone = tokio::task::spawn_blocking(move || {
            inner.end_recorded(&id.bare(), &inner.layout.run(&id.bare()))?;
            inner.move_to_deleting(&id.bare())?;
            inner.finish_delete(&id.bare())
        });
        let undone = undone.await.context("undo").and_then(|undone| undone);
        if let Err(error) = undone {
            tracing::warn!(sandbox.id = %id, error = format!("{error:#}"), "left for the sweep");
        }
        self.inner.live().remove(&id);
    }
}
