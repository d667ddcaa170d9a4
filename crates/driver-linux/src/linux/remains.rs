//! What a dead incarnation and a deleted sandbox leave on the host, and how that goes. All of it blocks,
//! and all of it may be repeated: a crash between two steps is mended by doing them again.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use driver::{Ended, Tombstone};
use jiff::Timestamp;
use model::{EndReason, SandboxId};

use super::adopt::read_json;
use super::blanks::use_tomb;
use super::stored::{End, Tomb};
use super::{Entry, Inner};
use super::{end, layout};
use crate::cgroup::Removed;
use crate::incarnation;
use crate::plan::RunRecord;
use crate::run_record;
use crate::usage;

/// How long the end of a sandbox is told of after it is gone (ruling 7).
pub(super) const TOMBSTONE: jiff::SignedDuration = jiff::SignedDuration::from_secs(60);

/// A sandbox that is deleted, and whose processes die.
pub(super) struct Buried {
    pub(super) tombstone: Tombstone,
    /// Its mounts stay until this is closed. Else the kernel takes them down before the last process is gone, which is
    /// most of what there is to wait for.
    pub(super) mounts: Option<File>,
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
        if killed && usage::oom_kills(record) > 0 {
            return EndReason::Oom;
        }
        EndReason::Exited
    }

    /// What an incarnation used until it died. Its counters live as long as its cgroup, so this comes
    /// before [`Inner::clear`].
    pub(super) fn ended(&self, record: &RunRecord) -> Ended {
        let cpu_usec = usage::cpu_usec(record);
        let noted = std::fs::metadata(self.layout.exit_note(&record.incarnation));
        let noted = noted.and_then(|meta| meta.modified()).ok();
        let noted = noted.and_then(|at| Timestamp::try_from(at).ok());
        let lost = (record.boot_id != self.boot_id).then(booted_at).flatten();
        let ended_at = lost.or(noted).unwrap_or_else(Timestamp::now);
        Ended {
            incarnation: record.incarnation.clone(),
            started_at: record.started_at,
            ended_at: ended_at.max(record.started_at),
            cpu_usec,
        }
    }

    /// Removes cgroups, socket and notes of a dead incarnation and gives its uids back.
    pub(super) fn clear(&self, bare: &str, record: &RunRecord) {
        // Whoever removes the cgroup gives the uids back, so that they are given back once.
        match incarnation::remove(record) {
            Removed::Now => self.slots().give_back(record.uid_base),
            Removed::Before => {}
            Removed::Not => {
                tracing::warn!(sandbox = bare, "its uids stay taken while processes live");
                self.slots().hold(&record.incarnation, record.uid_base);
            }
        }
        let _ = std::fs::remove_file(&record.socket);
        let _ = std::fs::remove_file(self.layout.exit_note(&record.incarnation));
    }

    /// Ends compute that cannot be looked after.
    pub(super) fn discard(&self, id: SandboxId, record: &RunRecord) {
        let ended = incarnation::kill(record).and_then(|()| incarnation::wait_until_gone(record));
        if let Err(error) = ended {
            let error = format!("{error:#}");
            tracing::warn!(sandbox.id = %id, error, "a failed launch is left for the sweep");
        }
        self.clear(&id.bare(), record);
    }

    /// Ends what a record tells of, if there is a record, and forgets it. Of a launch that nobody waits
    /// for, and of a server that is gone.
    pub(super) fn end_recorded(&self, bare: &str, path: &Path) -> anyhow::Result<()> {
        let Some(record) = run_record::read(path).unwrap_or_default() else {
            return layout::forget(path);
        };
        if incarnation::has_remains(&record) {
            incarnation::kill(&record)?;
            incarnation::wait_until_gone(&record)?;
        }
        // Whoever was at it before may have come no further than its cgroups.
        self.clear(bare, &record);
        layout::forget(path)
    }

    /// What a failed launch may have left goes, and its uids are free again.
    pub(super) fn abandon(&self, bare: &str, path: &Path, uid_base: u32) {
        let record = run_record::read(path).unwrap_or_default();
        let Some(record) = record.filter(|record| record.uid_base == uid_base) else {
            return self.slots().give_back(uid_base);
        };
        let ended = incarnation::kill(&record).and_then(|()| incarnation::wait_until_gone(&record));
        if let Err(error) = ended {
            let error = format!("{error:#}");
            tracing::warn!(sandbox = bare, error, "a failed launch is left for the sweep");
        }
        match incarnation::remove(&record) {
            Removed::Now | Removed::Before => self.slots().give_back(uid_base),
            Removed::Not => self.slots().hold(&record.incarnation, uid_base),
        }
        let _ = std::fs::remove_file(&record.socket);
        let _ = std::fs::remove_file(self.layout.exit_note(&record.incarnation));
        let _ = std::fs::remove_file(path);
    }

    /// Notes that the upper was written to in this boot of the kernel only: however its compute ended,
    /// what it holds is whole until the next boot.
    pub(super) fn keep_upper(&self, bare: &str) -> anyhow::Result<()> {
        std::fs::write(self.layout.boot(bare), &self.boot_id).context("note the boot")
    }

    /// Writes why compute ended, then forgets that there was any.
    pub(super) fn note_end(&self, bare: &str, end: End) -> anyhow::Result<()> {
        let path = self.layout.end(bare);
        let before: Option<End> = read_json(&path).unwrap_or_default();
        let end = End { answered: self.has_answered(bare, before.as_ref()), ..end };
        layout::write_json(&path, &end)?;
        layout::forget(&self.layout.run(bare))
    }

    /// The note of its last end goes when the guest of a start has answered: until then a server that dies leaves a
    /// sandbox as it was. Flushed, or a machine that goes down may have the note again, and it would tell of what ran then.
    pub(super) fn forget_older_end(&self, bare: &str) -> anyhow::Result<()> {
        layout::forget(&self.layout.end(bare))?;
        layout::sync_dir(&self.layout.sandbox(bare))
    }

    /// Whether a guest of this sandbox has answered, in this life or, by the note of its end, before.
    pub(super) fn has_answered(&self, bare: &str, end: Option<&End>) -> bool {
        run_record::is_answered(&self.layout.run(bare))
            || end.is_some_and(|end| end.answered)
            // Older servers made a file for it.
            || self.layout.greeted(bare).exists()
    }

    /// The end of compute that nobody asked for; unless somebody did meanwhile, and perhaps started it
    /// again: then it is noted already, and what is there is another one's.
    pub(super) fn note_death(
        &self,
        id: SandboxId,
        incarnation: &str,
        (reason, last): (EndReason, Ended),
    ) -> anyhow::Result<()> {
        let bare = id.bare();
        let record = run_record::read(&self.layout.run(&bare))?;
        if record.is_none_or(|record| record.incarnation != incarnation) {
            return Ok(());
        }
        self.edit(id, |entry| {
            entry.end_reason = Some(reason);
            entry.ended = Some(last.clone());
        });
        self.pool.rest(&bare);
        let end = End::new(reason, Some(last));
        self.keep_upper(&bare).and(self.note_end(&bare, end))
    }

    /// The end of compute that somebody asked for.
    pub(super) fn note_stop(&self, id: SandboxId, reason: EndReason) -> anyhow::Result<()> {
        let (known, last) = {
            let live = self.live();
            let entry = live.get(&id);
            let last = entry.and_then(|entry| entry.ended.clone());
            (entry.and_then(|entry| entry.end_reason), last)
        };
        let bare = id.bare();
        let is_noted = !self.layout.run(&bare).exists();
        // A start that failed ends nothing that had not ended before, for a reason that is known.
        if is_noted && (known == Some(reason) || reason == EndReason::Unknown) {
            return Ok(());
        }
        if !is_noted {
            self.pool.sync(&bare)?;
            self.keep_upper(&bare)?;
            self.pool.rest(&bare);
        }
        // As above, of one that was launched and never answered.
        let reason = known.filter(|_| reason == EndReason::Unknown).unwrap_or(reason);
        // It may have died a moment before: what was asked for is what is told.
        self.note_end(&bare, End::new(reason, last))?;
        self.edit(id, |entry| entry.end_reason = Some(reason));
        Ok(())
    }

    /// From existing to deleted, durably: the tombstone, then the rename. Its processes are told to die.
    pub(super) fn bury(&self, id: SandboxId, reason: EndReason) -> anyhow::Result<Buried> {
        let stored = self.stored(id).map_err(anyhow::Error::from)?.without_env();
        // Before its processes are killed, so that what they used is told whatever happens then.
        let (last, running) = {
            let live = self.live();
            let entry = live.get(&id);
            let running = entry.and_then(|entry| entry.running.as_ref());
            let now = running.map(|running| self.ended(&running.record));
            let last = now.or_else(|| entry.and_then(|entry| entry.ended.clone()));
            (last, running.map(|one| (one.record.clone(), Arc::clone(&one.ending))))
        };
        let destroyed_at = Timestamp::now();
        let tomb = Tomb { stored, destroyed_at, reason, last: last.map(Into::into) };
        // It outlives the server; that it may not outlive the machine costs nobody anything. And a
        // deletion is what makes room on a full disk, so it does not fail for want of room.
        let tombstone = self.layout.tombstone(&id.bare());
        use_tomb(&self.layout.sandbox(&id.bare()), &tombstone.with_extension("tmp"));
        if let Err(error) = layout::write_whole(&tombstone, &tomb) {
            let error = format!("{error:#}");
            tracing::warn!(sandbox.id = %id, error, "no tombstone for a removed sandbox");
        }
        let bare = id.bare();
        self.rename_to_deleting(&self.layout.sandbox(&bare), &bare)?;
        // The next server would finish it from here on, and a machine that fails ends them too: so they need not live
        // until it is on the disk.
        let mounts = running.and_then(|(record, ending)| {
            let mounts = File::open(format!("/proc/{}/ns/mnt", record.pid));
            end::kill(id, (&record, &ending));
            mounts.ok()
        });
        layout::sync_dir(&self.layout.sandboxes())?;
        Ok(Buried { tombstone: Tombstone { destroyed_at, end_reason: reason }, mounts })
    }

    pub(super) fn move_to_deleting(&self, bare: &str) -> anyhow::Result<()> {
        self.rename_to_deleting(&self.layout.sandbox(bare), bare)?;
        layout::sync_dir(&self.layout.sandboxes())
    }

    /// `Ok` when there is nothing to rename.
    pub(super) fn rename_to_deleting(&self, from: &Path, bare: &str) -> anyhow::Result<()> {
        let to = self.layout.deleting().join(bare);
        let renamed = match std::fs::rename(from, &to) {
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
                std::fs::remove_dir_all(&to).context("remove an older deletion")?;
                std::fs::rename(from, &to)
            }
            other => other,
        };
        match renamed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context("rename to deleting")
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Frees disks and files of a sandbox that is in `deleting`.
    pub(super) fn finish_delete(&self, bare: &str) -> anyhow::Result<()> {
        let dir = self.layout.deleting().join(bare);
        // Of a server that died before it had ended them.
        self.end_recorded(bare, &dir.join("run.json"))?;
        self.end_recorded(bare, &dir.join("maintenance.json"))?;
        self.pool.remove(bare)?;
        match std::fs::remove_dir_all(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context("remove the sandbox's files")
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Changes the entry of a sandbox, if there is one.
    pub(super) fn edit(&self, id: SandboxId, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.live().get_mut(&id) {
            change(entry);
        }
    }
}

impl Entry {
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        let tombstone = self.tombstone.as_ref();
        tombstone.is_some_and(|tomb| now.duration_since(tomb.destroyed_at) > TOMBSTONE)
    }
}

/// Whatever ran before this boot had ended by then.
fn booted_at() -> Option<Timestamp> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let seconds = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    Timestamp::from_second(seconds.trim().parse().ok()?).ok()
}
