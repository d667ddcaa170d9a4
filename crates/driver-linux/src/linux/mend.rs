//! A pool that the kernel made read-only, because the host's disk had no room for it: mounted again
//! once there is room. Whatever runs has a disk that takes no writes, so it is ended first; it is then
//! as after a crash of the machine, and what was flushed before is there.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use model::Result;

use super::room::takes_more;
use super::{Inner, LinuxDriver, collect};
use crate::cgroup;

/// For the mounts of what was killed to go.
const UNUSED_WITHIN: Duration = Duration::from_secs(10);

impl LinuxDriver {
    /// One more try is made by every sweep.
    pub(super) async fn mend_pool(&self) {
        if !self.inner.pool.is_broken() || takes_more(self.inner.layout.root()).is_err() {
            return;
        }
        tracing::error!("the disk of the sandboxes is read-only: all of them end, it begins anew");
        match self.mount_pool_again().await {
            Ok(()) => tracing::warn!("the disk of the sandboxes can be written to again"),
            Err(error) => collect::left("pool", &anyhow::Error::from(error)),
        }
    }

    async fn mount_pool_again(&self) -> Result<()> {
        let deadline = tokio::time::Instant::now() + UNUSED_WITHIN;
        loop {
            let inner = Arc::clone(&self.inner);
            let mounted = tokio::task::spawn_blocking(move || {
                inner.end_all()?;
                inner.pool.mount_again()
            });
            match mounted.await.context("mount the pool")? {
                Ok(()) => return Ok(()),
                Err(error) if tokio::time::Instant::now() > deadline => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

impl Inner {
    /// Their ends are noticed as any others are.
    fn end_all(&self) -> anyhow::Result<()> {
        for incarnation in self.owned_incarnations() {
            if let Some(unified) = self.hierarchy.leaf(&incarnation).unified
                && cgroup::is_populated(&unified)
            {
                cgroup::kill(&unified)?;
            }
        }
        Ok(())
    }
}
