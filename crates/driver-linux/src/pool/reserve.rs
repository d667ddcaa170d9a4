//! What the host keeps free, so that a full pool is never a full host. Sandboxes' files are sparse: all
//! together may be promised more than the host has.
//!
//! Below the reserve nothing is created. On btrfs the bound of all sandboxes together follows what the
//! host has left, so that they find their disks full before the host's is.

use std::sync::Mutex;
use std::time::Duration;

use anyhow::Context;
use model::Error;
use tokio::time::Instant;

use super::{DiskPool, GIB, Kind};

/// With more than this left above the reserve, nobody gets there before the next look.
const PLENTY_BYTES: u64 = 8 * GIB;
/// The bound of all follows in steps of this.
const STEP_BYTES: u64 = 4 << 20;
/// After a removal the kernel may be freeing it for so long.
const FREEING: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(super) struct Reserve {
    bytes: u64,
    /// The bound of all sandboxes now.
    bound: Mutex<Option<u64>>,
    /// The last time that room was made, or wanted.
    removed: Mutex<Option<Instant>>,
}

impl Reserve {
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, bound: Mutex::new(None), removed: Mutex::new(None) }
    }

    pub(super) fn something_was_removed(&self) {
        *self.removed.lock().expect("no holder of this lock panics") = Some(Instant::now());
    }

    fn may_be_freeing(&self) -> bool {
        let removed = *self.removed.lock().expect("no holder of this lock panics");
        removed.is_some_and(|at| at.elapsed() < FREEING)
    }
}

impl DiskPool {
    /// Whether a sandbox may be made.
    ///
    /// # Errors
    /// `DiskFull` while the host has less than its reserve, `ReadOnly` when the pool had to stop
    /// writing.
    pub(crate) fn check_room(&self) -> model::Result<()> {
        if super::is_read_only(&self.dir) {
            let hint = "free the host's disk; it begins anew by itself once there is room";
            let detail = format!("the disk pool is read-only after an error\nhint: {hint}");
            return Err(Error::ReadOnly { detail });
        }
        let free = self.host_free().map_err(Error::from)?;
        if free >= self.reserve.bytes {
            return Ok(());
        }
        let (free, reserve) = (free >> 20, self.reserve.bytes >> 20);
        let detail = format!(
            "no room: the host has {free} MiB free, and keeps {reserve} MiB for itself\n\
             hint: delete sandboxes, or make room on the disk of the data directory"
        );
        Err(Error::DiskFull { detail })
    }

    /// What the file system below the data directory has free.
    fn host_free(&self) -> anyhow::Result<u64> {
        let stat = rustix::fs::statvfs(&self.data_dir).context("statvfs the data directory")?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    /// Looks at what the host has left, and follows it. Called every second.
    pub(crate) fn watch_host(&self) {
        let Kind::Btrfs(_) = &self.kind else { return };
        if let Err(error) = self.follow_host() {
            tracing::warn!(error = format!("{error:#}"), "could not follow the host's free space");
        }
    }

    fn follow_host(&self) -> anyhow::Result<()> {
        let Kind::Btrfs(pool) = &self.kind else { return Ok(()) };
        let room = self.host_free()?.saturating_sub(self.reserve.bytes);
        let wanted = match room < PLENTY_BYTES {
            true => Some(pool.used_by_all().context("read what is used")? + room),
            false => None,
        };
        let mut bound = self.reserve.bound.lock().expect("no holder of this lock panics");
        let same = match (wanted, *bound) {
            (None, None) => true,
            (Some(wanted), Some(bound)) => wanted.abs_diff(bound) < STEP_BYTES,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !same {
            pool.bound_all(wanted).context("bound all sandboxes")?;
            *bound = wanted;
        }
        if wanted.is_some() {
            self.reserve.something_was_removed();
        }
        pool.hold_bookkeeping().context("set aside what the pool's bookkeeping needs")
    }

    /// Gives the host back what nobody uses. `is_used` tells of a sandbox's name.
    pub(crate) fn sweep(&self, is_used: &dyn Fn(&str) -> bool) -> anyhow::Result<()> {
        match &self.kind {
            Kind::Plain => Ok(()),
            Kind::Btrfs(pool) => {
                pool.remove_empty_groups().context("remove groups")?;
                if !self.reserve.may_be_freeing() {
                    return Ok(());
                }
                pool.trim().context("give free space back to the host")
            }
            Kind::Images(images) => {
                let names = self.sandboxes()?;
                names.iter().filter(|name| !is_used(name)).for_each(|name| images.unmount(name));
                Ok(())
            }
        }
    }
}
