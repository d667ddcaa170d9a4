//! The data directory as servers see it that do not hold its lease: run records are read, guests spoken
//! to, and a lock on a file tells the holder of the lease that a sandbox is in use. The kernel takes
//! that lock back when the server dies.

use std::fs::{File, FileTimes, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::SystemTime;

use anyhow::Context;
use driver::{Seen, UsedElsewhere, View};
use guest_proto::{Address, Guest};
use jiff::Timestamp;
use model::{EndReason, Result, SandboxId};
use rustix::fs::{FlockOperation, flock};

use super::adopt::read_json;
use super::layout::Layout;
use super::stored::{End, Stored, Tomb};
use crate::{incarnation, run_record};

/// A look at the sandboxes of a data directory that another server looks after.
#[derive(Debug)]
pub struct LinuxView {
    layout: Layout,
    boot_id: String,
}

/// See [`View::hold`]. Its file's time is that of the last use.
struct Hold(File);

impl LinuxView {
    /// Makes nothing; the directory need not have anything in it.
    ///
    /// # Errors
    /// When the directory does not exist.
    pub fn open(data_dir: &Path) -> Result<Self> {
        Ok(Self { layout: Layout::existing(data_dir)?, boot_id: run_record::boot_id()? })
    }
}

impl View for LinuxView {
    fn look(&self, id: SandboxId) -> Result<Option<Seen>> {
        let bare = id.bare();
        let Some(record) = run_record::read(&self.layout.run(&bare))? else { return Ok(None) };
        let gone = record.boot_id != self.boot_id || !incarnation::is_populated(&record);
        if gone || incarnation::freeze_asked(&record) {
            return Ok(None);
        }
        let Some(stored) = read_json::<Stored>(&self.layout.spec(&bare))? else { return Ok(None) };
        Ok(Some(Seen {
            spec: stored.spec,
            incarnation: record.incarnation,
            started_at: record.started_at,
            guest: Guest::new(Address::Unix(record.socket)),
        }))
    }

    fn is_paused(&self, id: SandboxId) -> bool {
        let record = run_record::read(&self.layout.run(&id.bare())).ok().flatten();
        let record = record.filter(|record| record.boot_id == self.boot_id);
        record.as_ref().is_some_and(incarnation::freeze_asked)
    }

    fn end_reason(&self, id: SandboxId) -> Option<EndReason> {
        let bare = id.bare();
        let tomb = read_json::<Tomb>(&self.layout.tombstone(&bare)).ok().flatten();
        let end = || read_json::<End>(&self.layout.end(&bare)).ok().flatten();
        tomb.map(|tomb| tomb.reason).or_else(|| end().map(|end| end.reason))
    }

    fn hold(&self, id: SandboxId) -> Result<Box<dyn Send + Sync>> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(self.layout.in_use(&id.bare())).context("say that it is used")?;
        // Refused only while the holder of the lease looks at it; the time tells it enough.
        let _ = flock(&file, FlockOperation::NonBlockingLockShared);
        let hold = Hold(file);
        hold.touch();
        Ok(Box::new(hold))
    }
}

impl Hold {
    fn touch(&self) {
        let _ = self.0.set_times(FileTimes::new().set_modified(SystemTime::now()));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.touch();
    }
}

/// The other end of [`Hold`].
pub(super) fn used_elsewhere(layout: &Layout, id: SandboxId) -> Option<UsedElsewhere> {
    let file = File::open(layout.in_use(&id.bare())).ok()?;
    let busy = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
    let last = Timestamp::try_from(file.metadata().ok()?.modified().ok()?).ok()?;
    Some(UsedElsewhere { busy, last })
}
