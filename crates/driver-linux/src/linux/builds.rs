//! Sandboxes for the steps of a template's build: made from layers that no template names, over an
//! upper that may have something in it already, and read when they have stopped.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use driver::{Driver, Launch};
use guest_proto::Guest;
use model::{Result, SandboxId, TemplateName};

use super::LinuxDriver;
use super::stored::Stored;
use crate::pool::Disk;
use crate::template::{Built, copy_tree};

impl LinuxDriver {
    /// `create` from what is given instead of a template of the store. A copy of `seed` is what the
    /// upper begins with.
    pub(crate) async fn create_for_build(
        &self,
        launch: Launch,
        built: Built,
        seed: Option<PathBuf>,
    ) -> Result<Guest> {
        let Launch { spec, policy } = launch;
        let id = spec.id;
        let stored = Stored::new(spec, built.template.digest.clone(), &self.inner.boot_id);
        if let Some(seed) = seed {
            let inner = Arc::clone(&self.inner);
            let disk_gb = stored.spec.limits.disk_gb;
            let seeded = tokio::task::spawn_blocking(move || {
                inner.pool.create_upper(&id.bare(), disk_gb)?;
                copy_tree(&seed, &inner.pool.path(Disk::Upper, &id.bare()).join("upper"))
            });
            seeded.await.context("begin with a tree")?.context("begin with a tree")?;
        }
        self.create_on(stored, built, policy).await?;
        self.guest(id)
    }

    /// The same as on the command line, which needs no server.
    pub(super) async fn remove_built(&self, name: &TemplateName) -> Result<bool> {
        let (templates, name) = (self.inner.templates.clone(), name.clone());
        let removed = tokio::task::spawn_blocking(move || templates.remove(&name));
        removed.await.context("remove a template")?
    }

    /// What a sandbox changed; for reading when it has stopped.
    pub(crate) fn upper_of(&self, id: SandboxId) -> PathBuf {
        self.inner.readable_disks(id);
        self.inner.pool.path(Disk::Upper, &id.bare()).join("upper")
    }
}
