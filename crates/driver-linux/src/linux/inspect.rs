//! What the doctor looks at beside what every driver tells.

use std::path::PathBuf;

use model::SandboxId;

use super::LinuxDriver;
use crate::pool::Disk;

impl LinuxDriver {
    /// What the guest that was started answers in `/health`.
    pub(crate) fn nonce_of(&self, id: SandboxId) -> Option<String> {
        let live = self.inner.live();
        live.get(&id)?.running.as_ref().map(|running| running.record.nonce.clone())
    }

    /// Where the host has the sandbox's two disks.
    pub(crate) fn disks_of(&self, id: SandboxId) -> [PathBuf; 2] {
        self.inner.readable_disks(id);
        [Disk::Upper, Disk::Workspace].map(|disk| self.inner.pool.path(disk, &id.bare()))
    }
}

impl super::Inner {
    /// Has the disks of a sandbox where [`DiskPool::path`](crate::pool::DiskPool::path) says, for reading.
    pub(super) fn readable_disks(&self, id: SandboxId) {
        if let Err(error) = self.pool.ready(&id.bare()) {
            tracing::warn!(sandbox.id = %id, error = format!("{error:#}"), "its disks are not there");
        }
    }
}
