//! The access log of a sandbox, as owners read it: what ended, from its file, and what is open now.

use anyhow::Context;
use driver::AccessPage;
use model::{Access, Result, SandboxId};

use super::compute::Running;
use super::{Layout, LinuxDriver, existing};
use crate::egress::{self, EgressConfig};

impl Layout {
    /// Egress that logs into the directories of the sandboxes.
    pub(super) fn logged(&self, config: EgressConfig) -> EgressConfig {
        EgressConfig { log_dir: Some(self.sandboxes()), ..config }
    }
}

impl LinuxDriver {
    /// What a sandbox reached and was refused, oldest first.
    pub fn access_log(&self, id: SandboxId) -> Vec<Access> {
        let live = self.inner.live();
        let running = live.get(&id).and_then(|entry| entry.running.as_ref());
        running.and_then(Running::access_log).unwrap_or_default()
    }

    pub(super) async fn accesses(
        &self,
        id: SandboxId,
        after: Option<u64>,
        limit: usize,
    ) -> Result<AccessPage> {
        let log = {
            let live = self.inner.live();
            let entry = existing(&live, id)?;
            let running = entry.running.as_ref();
            running.and_then(|running| running.egress.as_ref()).map(egress::EgressHandle::reader)
        };
        let open = match &log {
            Some(log) => log.flushed().await,
            None => Vec::new(),
        };
        let dir = self.inner.layout.sandbox(&id.bare());
        let read = tokio::task::spawn_blocking(move || egress::read_log(&dir, after, limit));
        Ok(AccessPage { ended: read.await.context("read the access log")?, open })
    }
}
