//! The end of a server's part in a data directory.

use std::sync::Arc;

use anyhow::Context;

use super::LinuxDriver;

impl LinuxDriver {
    /// Lets go: sandboxes run on. When none does, nothing of ours is left on the host: no keeper, no
    /// mount, no cgroup, no claim on uids.
    pub async fn close(self) {
        self.inner.warm_cancel.cancel();
        self.inner.warm_tasks.close();
        self.inner.warm_tasks.wait().await;
        self.inner.cancel.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        let idle = self.inner.live().values().all(|entry| entry.running.is_none());
        if !idle {
            return;
        }
        let inner = Arc::clone(&self.inner);
        let left = tokio::task::spawn_blocking(move || {
            inner.keeper.quit()?;
            inner.hierarchy.remove();
            inner.pool.close();
            inner.slots().release_block();
            anyhow::Ok(())
        });
        if let Err(error) = left.await.context("leave the host").and_then(|left| left) {
            tracing::warn!(error = format!("{error:#}"), "something was left on the host");
        }
    }
}
