//! How compute and sandboxes end: watched deaths, kills, and removal.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use driver::{Exit, Tombstone};
use jiff::Timestamp;
use model::{EndReason, Error, Result, SandboxId};
use rustix::process::{PidfdFlags, pidfd_open};

use super::compute::Running;
use super::layout;
use super::stored::{End, Tomb};
use super::{Entry, Inner, LinuxDriver};
use crate::cgroup;
use crate::plan::RunRecord;
use crate::pool::Disk;

/// How long killed processes may take to go; more means that the kernel holds one.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long processes may take to end by themselves when a sandbox is stopped.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the end of a sandbox is told of after it is gone (ruling 7).
pub(super) const TOMBSTONE: jiff::SignedDuration = jiff::SignedDuration::from_secs(60);

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
        let running = {
            let mut live = self.inner.live();
            let Some(entry) = live.get_mut(&id) else { return };
            let same = |r: &mut Running| r.record.incarnation == incarnation;
            let Some(running) = entry.running.take_if(same) else { return };
            running
        };
        let reason = self.inner.reason_of(&running.record);
        self.end_compute(id, running).await;
        let inner = Arc::clone(&self.inner);
        let noted = tokio::task::spawn_blocking(move || inner.note_end(&id.bare(), reason)).await;
        if let Err(error) = noted.context("note the end").and_then(|noted| noted) {
            tracing::error!(sandbox.id = %id, error = format!("{error:#}"), "could not note an end");
        }
        if let Some(entry) = self.inner.live().get_mut(&id) {
            entry.end_reason = Some(reason);
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
    async fn kill_compute(&self, id: SandboxId, running: &Running) {
        running.ending.store(true, Ordering::SeqCst);
        if let Err(error) = cgroup::kill(&running.record.unified) {
            tracing::error!(sandbox.id = %id, error = format!("{error:#}"), "could not kill");
        }
        if tokio::time::timeout(KILL_TIMEOUT, running.dead.cancelled()).await.is_err() {
            tracing::error!(sandbox.id = %id, "processes did not die in {KILL_TIMEOUT:?}");
        }
    }

    /// What a dead incarnation had on the host.
    async fn clear_up(&self, id: SandboxId, running: Running) {
        let Running { record, egress, .. } = running;
        let had_egress = egress.is_some();
        if let Some(egress) = egress {
            egress.close().await;
        }
        let inner = Arc::clone(&self.inner);
        let cleared = tokio::task::spawn_blocking(move || {
            inner.clear(&id.bare(), &record);
            if had_egress {
                inner.keeper.forget(&record.incarnation);
            }
        });
        if let Err(error) = cleared.await {
            tracing::error!(sandbox.id = %id, %error, "could not clear up");
        }
    }

    /// Lets processes end by themselves first, as a stop should.
    pub(super) async fn terminate(&self, running: &Running) {
        let Some(pid) = rustix::process::Pid::from_raw(running.record.pid) else { return };
        let usage = cgroup::usage(&running.record.unified, &running.record.legacy);
        let frozen = cgroup::freeze_asked(&running.record.unified);
        if usage.pids <= 1 || frozen || running.dead.is_cancelled() {
            return;
        }
        // Through a pidfd that is checked against the cgroup, so that no reused pid is hit.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        if !cgroup::is_populated(&running.record.unified) {
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
        let running = self.take_running(id);
        if let Some(running) = &running {
            self.kill_compute(id, running).await;
            if !running.dead.is_cancelled() {
                return Err(Error::unavailable(format!("processes of sandbox {id} do not die")));
            }
        }
        let inner = Arc::clone(&self.inner);
        let buried = tokio::task::spawn_blocking(move || inner.bury(id, reason));
        let tombstone = match buried.await.context("remove")? {
            Ok(tombstone) => tombstone,
            // Somebody else's removal was faster.
            Err(error) => match Error::from(error) {
                Error::NotFound { .. } => return Ok(()),
                error => return Err(error),
            },
        };
        {
            let mut live = self.inner.live();
            if let Some(entry) = live.get_mut(&id) {
                entry.launching = false;
                entry.end_reason = Some(reason);
                entry.tombstone = Some(tombstone);
            }
        }
        // Nothing lives and nothing reaches the bytes any more; cgroups, egress and disks need not
        // keep the caller waiting (ruling 7).
        let driver = self.clone();
        self.inner.tasks.spawn(async move {
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

impl Inner {
    /// Why an incarnation died, from the kernel's counters and the keeper's note.
    pub(super) fn reason_of(&self, record: &RunRecord) -> EndReason {
        if record.boot_id != self.boot_id {
            return EndReason::HostLost;
        }
        let note = std::fs::read_to_string(self.layout.exit_note(&record.incarnation)).ok();
        let status: Option<i32> = note.and_then(|text| text.trim().parse().ok());
        let killed = status.is_none_or(|status| status & 0x7f == 9);
        let usage = cgroup::usage(&record.unified, &record.legacy);
        if usage.oom_kills > 0 && killed {
            return EndReason::Oom;
        }
        EndReason::Exited
    }

    /// Removes cgroups, socket and notes of a dead incarnation and gives its uids back.
    pub(super) fn clear(&self, bare: &str, record: &RunRecord) {
        cgroup::remove(&record.unified, &record.legacy);
        let _ = std::fs::remove_file(&record.socket);
        let _ = std::fs::remove_file(self.layout.exit_note(&record.incarnation));
        if !cgroup::is_populated(&record.unified) {
            self.slots().give_back(record.uid_base);
        } else {
            tracing::warn!(sandbox = bare, "its uids stay taken while processes live");
        }
    }

    /// Writes why compute ended, then forgets that there was any. Blocking.
    pub(super) fn note_end(&self, bare: &str, reason: EndReason) -> anyhow::Result<()> {
        layout::write_json(&self.layout.end(bare), &End { reason })?;
        layout::forget(&self.layout.run(bare))
    }

    /// From existing to deleted, durably: the tombstone, then the rename. Blocking.
    fn bury(&self, id: SandboxId, reason: EndReason) -> anyhow::Result<Tombstone> {
        // Two removals of one sandbox would write one file at once.
        let _one_at_a_time = self.burials.lock().expect("no holder of this lock panics");
        let stored = self.stored(id).map_err(anyhow::Error::from)?.without_env();
        let destroyed_at = Timestamp::now();
        let tomb = Tomb { stored, destroyed_at, reason };
        // It outlives the server; that it may not outlive the machine costs nobody anything.
        layout::write_whole(&self.layout.tombstone(&id.bare()), &tomb)?;
        self.move_to_deleting(&id.bare())?;
        Ok(Tombstone { destroyed_at, end_reason: reason })
    }

    pub(super) fn move_to_deleting(&self, bare: &str) -> anyhow::Result<()> {
        let from = self.layout.sandbox(bare);
        match std::fs::rename(&from, self.layout.deleting().join(bare)) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context("rename to deleting"),
        }
        layout::sync_dir(&self.layout.sandboxes())
    }

    /// Frees disks and files of a sandbox that is in `deleting`. Blocking, safe to repeat.
    pub(super) fn finish_delete(&self, bare: &str) -> anyhow::Result<()> {
        self.pool.remove(Disk::Upper, bare)?;
        self.pool.remove(Disk::Workspace, bare)?;
        match std::fs::remove_dir_all(self.layout.deleting().join(bare)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context("remove the sandbox's files")
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

impl Entry {
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        let tombstone = self.tombstone.as_ref();
        tombstone.is_some_and(|tomb| now.duration_since(tomb.destroyed_at) > TOMBSTONE)
    }
}
