//! A guest over the workspace of a stopped sandbox, for export and import: no network, no program
//! of the tenant's, and an upper that is thrown away. The host itself never reads a hostile tree.
//!
//! Its record is `maintenance.json` beside the spec: a server that finds one ends that guest before
//! anything else may use the workspace.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use driver::Maintenance;
use guest_proto::{Address, Guest};
use model::{Error, Result, SandboxId};

use super::order::plan_of;
use super::stored::Stored;
use super::{Inner, LinuxDriver};
use crate::plan::RunRecord;
use crate::pool::Disk;
use crate::run_record;
use crate::template::Built;

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
        // If the caller goes away meanwhile, the hold that comes too late ends it.
        let launched = tokio::task::spawn_blocking(move || -> anyhow::Result<Hold> {
            let digest = &stored.template_digest;
            let built = inner.templates.get_digest(&stored.spec.template, digest)?;
            let built = built.context("the sandbox's template is gone")?;
            let bare = stored.spec.id.bare();
            inner.maintained().insert(bare.clone(), None);
            match inner.launch_maintenance(&stored, &built) {
                Ok(record) => {
                    inner.maintained().insert(bare.clone(), Some(record.incarnation.clone()));
                    Ok(Hold { inner, bare, record })
                }
                Err(error) => {
                    inner.maintained().remove(&bare);
                    Err(error)
                }
            }
        });
        let hold = launched.await.context("maintenance")??;
        let guest = Guest::new(Address::Unix(hold.record.socket.clone()));
        let health = tokio::time::timeout(Duration::from_secs(10), guest.health()).await;
        if !matches!(&health, Ok(Ok(health)) if health.nonce == hold.record.nonce) {
            return Err(Error::unavailable("the maintenance guest does not answer"));
        }
        Ok(Maintenance { guest, workspace: "/workspace".into(), hold: Box::new(hold) })
    }
}

impl Inner {
    fn launch_maintenance(&self, stored: &Stored, built: &Built) -> anyhow::Result<RunRecord> {
        let bare = stored.spec.id.bare();
        let name = upper_name(&bare);
        let path = self.layout.maintenance(&bare);
        // What a crash left: its guest would write to the workspace beside ours.
        self.end_recorded(&bare, &path)?;
        self.pool.remove(&name)?;
        self.pool.create_upper(&name, 1)?;
        self.pool.ready(&bare)?;
        let mut plan = plan_of(&self.layout, built, &name, stored.spec.limits)?;
        plan.uid_base = self.slots().take()?;
        plan.root.upper = self.pool.path(Disk::Upper, &name);
        plan.workspace = self.pool.path(Disk::Workspace, &bare);
        plan.guest.binary.clone_from(&self.guest_programs.guest);
        plan.guest.no_new_privs = true;
        plan.record.clone_from(&path);
        let uid_base = plan.uid_base;
        let launched = self.keeper.launch(plan, || true, || {});
        let whole = launched.and_then(|(_, starting)| starting.wait()).map_err(anyhow::Error::from);
        let record = whole
            .and_then(|()| run_record::read(&path)?.context("the launcher left no run record"));
        if record.is_err() {
            self.abandon(&bare, &path, uid_base);
            self.pool.remove(&name)?;
            self.pool.rest(&bare);
        }
        record
    }

    fn end_maintenance(&self, bare: &str) -> anyhow::Result<()> {
        self.end_recorded(bare, &self.layout.maintenance(bare))?;
        let flushed = self.pool.sync(bare);
        self.pool.rest(bare);
        self.pool.remove(&upper_name(bare))?;
        flushed
    }
}

impl Drop for Hold {
    /// At once and in this thread: what was imported must be on the disk when the caller goes on.
    fn drop(&mut self) {
        if let Err(error) = self.inner.end_maintenance(&self.bare) {
            tracing::warn!(sandbox = self.bare, error = format!("{error:#}"), "left for the sweep");
        }
        self.inner.maintained().remove(&self.bare);
    }
}

/// The disk that is thrown away afterwards.
fn upper_name(bare: &str) -> String {
    format!("{bare}-m")
}
