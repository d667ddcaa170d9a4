//! Whether the data directory takes what is to be made, and what a failure was that a full or read-only
//! disk caused: asked before something is made and after something failed, so that every step in
//! between, in whichever process, may fail as it likes.
//!
//! The last of the room is left to what must go on when there is no more: deletions, ends, the store.

use std::path::Path;

use anyhow::Context;
use model::{Error, Result};
use rustix::fs::{StatVfs, StatVfsMountFlags, statvfs};

use super::Inner;

/// Nothing new is made when less than this is left.
const RESERVED_BYTES: u64 = 32 << 20;
/// Nor with fewer free inodes, where a file system counts them. A launch takes about ten.
const RESERVED_INODES: u64 = 256;

impl Inner {
    /// Whether something may be made now.
    pub(super) fn may_make(&self) -> Result<()> {
        self.fence.check()?;
        self.require_room()
    }

    /// `DiskFull` or `ReadOnly` when nothing can be made now.
    pub(super) fn require_room(&self) -> Result<()> {
        takes_more(self.layout.root())?;
        if self.pool.is_broken() {
            return Err(Error::machine_read_only());
        }
        Ok(())
    }

    /// The error of a step that failed: the disk's state, if that explains it.
    pub(super) fn explain(&self, error: Error) -> Error {
        if !matches!(error, Error::Internal(_) | Error::Unavailable { .. }) {
            return error;
        }
        match self.require_room() {
            Ok(()) => error,
            Err(why) => {
                let error = format!("{:#}", anyhow::Error::from(error));
                tracing::warn!(error, "a call failed: {why}");
                why
            }
        }
    }
}

pub(super) fn takes_more(dir: &Path) -> Result<()> {
    let seen = statvfs(dir).context("look at the data directory's disk")?;
    if seen.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(Error::machine_read_only());
    }
    if is_full(&seen) { Err(Error::machine_full()) } else { Ok(()) }
}

fn is_full(seen: &StatVfs) -> bool {
    let few_inodes = seen.f_files > 0 && seen.f_favail < RESERVED_INODES;
    seen.f_bavail.saturating_mul(seen.f_frsize) < RESERVED_BYTES || few_inodes
}
