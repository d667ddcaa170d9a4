//! A guest over the workspace of a stopped sandbox, for export and import: no network, no program
//! of the tenant's, and an upper that is thrown away. The host itself never reads a hostile tree.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use driver::Maintenance;
use guest_proto::{Address, Guest};
use model::{Error, Result, SandboxId};

use super::layout;
use super::order::plan_of;
use super::{Inner, LinuxDriver};
use crate::cgroup;
use crate::plan::RunRecord;
use crate::pool::Disk;
use crate::run_record;

/// Ends the compute when dropped.
struct Hold {
    inner: Arc<Inner>,
    bare: String,
    record: RunRecord,
}

impl LinuxDriver {
    pub(super) async fn maintain(&self, id: SandboxId) -> Result<Maintenance> {
        let stored = self.inner.stored(id)?;
        if self.inner.live().get(&id).is_some_and(|entry| entry.running.is_some()) {
            return Err(Error::wrong_state(format!("sandbox {id} runs")));
        }
        let inner = Arc::clone(&self.inner);
        let launched = tokio::task::spawn_blocking(move || {
            let digest = &stored.template_digest;
            let built = inner.templates.get_digest(&stored.spec.template, digest)?;
            let built = built.context("the sandbox's template is gone")?;
            inner.launch_maintenance(&stored, &built)
        });
        let record = launched.await.context("maintenance")??;
        let guest = Guest::new(Address::Unix(record.socket.clone()));
        self.inner.maintained().insert(record.incarnation.clone());
        let hold = Hold { inner: Arc::clone(&self.inner), bare: id.bare(), record };
        let health = tokio::time::timeout(Duration::from_secs(10), guest.health()).await;
        if !matches!(&health, Ok(Ok(health)) if health.nonce == hold.record.nonce) {
            return Err(Error::unavailable("the maintenance guest does not answer"));
        }
        Ok(Maintenance { guest, workspace: "/workspace".into(), hold: Box::new(hold) })
    }
}

impl Inner {
    fn launch_maintenance(
        &self,
        stored: &super::stored::Stored,
        built: &crate::template::Built,
    ) -> anyhow::Result<RunRecord> {
        let bare = stored.spec.id.bare();
        let name = format!("{bare}-m");
        self.pool.create_upper(&name, 1)?;
        let uid_base = self.slots().take()?;
        let mut plan = plan_of(&self.layout, built, &name, stored.spec.limits)?;
        plan.uid_base = uid_base;
        plan.root.upper = self.pool.path(Disk::Upper, &name);
        plan.workspace = self.pool.path(Disk::Workspace, &bare);
        plan.guest.binary.clone_from(&self.guest_program);
        plan.guest.no_new_privs = true;
        plan.record = self.layout.sandbox(&bare).join("maintenance.json");
        let path = plan.record.clone();
        let launched = self.keeper.launch(plan).map_err(anyhow::Error::from);
        let record = launched
            .and_then(|_| run_record::read(&path)?.context("the launcher left no run record"));
        if record.is_err() {
            self.slots().give_back(uid_base);
            self.pool.remove(Disk::Upper, &name)?;
        }
        record
    }

    fn end_maintenance(&self, bare: &str, record: &RunRecord) -> anyhow::Result<()> {
        cgroup::kill(&record.unified)?;
        wait_until_empty(record);
        self.pool.sync(Disk::Workspace, bare)?;
        self.clear(bare, record);
        self.maintained().remove(&record.incarnation);
        layout::forget(&self.layout.sandbox(bare).join("maintenance.json"))?;
        self.pool.remove(Disk::Upper, &format!("{bare}-m"))
    }
}

impl Drop for Hold {
    /// At once and in this thread: what was imported must be on the disk when the caller goes on.
    fn drop(&mut self) {
        if let Err(error) = self.inner.end_maintenance(&self.bare, &self.record) {
            tracing::warn!(sandbox = self.bare, error = format!("{error:#}"), "left for the sweep");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "bounded; killed processes go within milliseconds")]
fn wait_until_empty(record: &RunRecord) {
    for _ in 0..1000 {
        if !cgroup::is_populated(&record.unified) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
