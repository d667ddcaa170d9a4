//! Finding and removing what nothing owns: after a crash, a failed launch, or a kernel that took its
//! time. Takes no input but what exists, so the happy case, the retry and the restart are one path.
//!
//! What will not go now is told and tried again by the next sweep; it keeps nothing else from going,
//! and no server from starting.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use driver::Collected;
use jiff::Timestamp;
use model::{Result, SandboxId};

use super::{Inner, LinuxDriver, layout};
use crate::cgroup::{self, Removed};
use crate::incarnation::wait_until_empty;
use crate::template::leftovers;

/// How often the host's free space is looked at.
const HOST_LOOKS: Duration = Duration::from_secs(1);

/// What was nobody's at the last look. Something goes when it was nobody's twice: what ended between
/// two looks is somebody's by the second.
#[derive(Default)]
pub(super) struct Suspects {
    incarnations: BTreeSet<String>,
    files: BTreeSet<PathBuf>,
    builds: BTreeSet<PathBuf>,
}

impl LinuxDriver {
    pub(super) async fn collect_orphans(&self) -> Result<Collected> {
        let inner = Arc::clone(&self.inner);
        let collected = tokio::task::spawn_blocking(move || inner.collect());
        Ok(collected.await.context("collect")?)
    }

    /// What template builds left whose process died, and the one that cleans up after it too.
    pub(super) async fn collect_builds(&self) {
        let found: BTreeSet<PathBuf> = {
            let dirs = std::fs::read_dir(self.inner.layout.builds()).into_iter().flatten();
            dirs.flatten().map(|dir| dir.path()).filter(|dir| !leftovers::is_busy(dir)).collect()
        };
        let suspects = std::mem::replace(&mut self.inner.suspects().builds, found.clone());
        let runtime_dir = self.inner.slots().runtime_dir().to_owned();
        for dir in found.intersection(&suspects) {
            let cleaned = leftovers::clean_one(dir, &runtime_dir);
            match cleaned.await {
                Ok(true) => tracing::info!(dir = %dir.display(), "removed what a build left"),
                Ok(false) => {}
                Err(error) => left(&dir.display().to_string(), &error.into()),
            }
        }
    }

    /// Apart, because a server that starts has yet to hear of what happened to its predecessor's.
    pub(super) async fn forget_tombstones(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let forgotten = tokio::task::spawn_blocking(move || inner.collect_tombstones());
        Ok(forgotten.await.context("forget tombstones")??)
    }

    /// Keeps sandboxes from filling the host, until the driver closes.
    pub(super) fn watch_host(&self) {
        let inner = Arc::clone(&self.inner);
        self.inner.tasks.spawn(async move {
            loop {
                tokio::select! {
                    () = inner.cancel.cancelled() => break,
                    () = tokio::time::sleep(HOST_LOOKS) => {}
                }
                let looking = Arc::clone(&inner);
                let _ = tokio::task::spawn_blocking(move || looking.pool.watch_host()).await;
            }
        });
    }

    /// Before anybody uses anything: the uids of guests that nobody owns are not given out again.
    pub(super) async fn hold_orphans(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let held = tokio::task::spawn_blocking(move || {
            let owned = inner.owned_incarnations();
            for incarnation in inner.hierarchy.leaves()?.difference(&owned) {
                if let Some(uid_base) = cgroup::owner(&inner.hierarchy.leaf(incarnation)) {
                    inner.slots().hold(incarnation, uid_base);
                }
            }
            anyhow::Ok(())
        });
        Ok(held.await.context("hold uids")??)
    }
}

impl Inner {
    fn collect(&self) -> Collected {
        let mut collected = Collected::default();
        collected.disks += told("collect the warm pool", self.collect_warm());
        self.warm().wake();
        told("collect cgroups", self.collect_cgroups(&mut collected));
        collected.disks += told("collect deletions", self.collect_deleting());
        collected.disks += told("collect disks", self.collect_disks());
        told("collect files", self.collect_files());
        told("sweep the disk pool", self.pool.sweep(&|name| self.has_guest(name)));
        let in_use = |name: &model::TemplateName, digest: &str| {
            let live = self.live();
            live.values().any(|entry| entry.stored.stands_on(name, digest))
        };
        let templates = self.templates.collect(&in_use).map_err(anyhow::Error::from);
        told("collect templates", templates.map(drop));
        collected
    }

    fn collect_cgroups(&self, collected: &mut Collected) -> anyhow::Result<()> {
        let mut orphans = self.hierarchy.leaves()?;
        for owned in self.keeper.busy().map_err(anyhow::Error::from)? {
            orphans.remove(&owned);
        }
        for owned in self.owned_incarnations() {
            orphans.remove(&owned);
        }
        let suspects = std::mem::replace(&mut self.suspects().incarnations, orphans.clone());
        for incarnation in orphans.intersection(&suspects) {
            if let Err(error) = self.collect_cgroup(incarnation, collected) {
                left(incarnation, &error);
            }
        }
        Ok(())
    }

    fn collect_cgroup(&self, incarnation: &str, collected: &mut Collected) -> anyhow::Result<()> {
        let leaf = self.hierarchy.leaf(incarnation);
        let Some(unified) = &leaf.unified else { return Ok(()) };
        if cgroup::is_populated(unified) {
            cgroup::kill(unified)?;
            collected.processes += 1;
            wait_until_empty(unified)?;
        }
        match cgroup::remove_leaf(unified, &leaf.legacy) {
            Removed::Now => collected.cgroups += 1,
            Removed::Before => {}
            Removed::Not => return Ok(()),
        }
        self.slots().let_go(incarnation);
        Ok(())
    }

    pub(super) fn owned_incarnations(&self) -> BTreeSet<String> {
        let mut owned = self.owned.all();
        owned.extend(self.maintained().values().flatten().cloned());
        owned
    }

    fn collect_deleting(&self) -> anyhow::Result<u32> {
        let mut removed = 0;
        for name in names_in(&self.layout.deleting())? {
            match self.finish_delete(&name) {
                Ok(()) => removed += 1,
                Err(error) => left(&name, &error),
            }
        }
        Ok(removed)
    }

    fn collect_disks(&self) -> anyhow::Result<u32> {
        let mut removed = 0;
        for name in self.pool.sandboxes()? {
            if self.owns_disk(&name) {
                continue;
            }
            let gone = match name.strip_suffix("-m") {
                // Busy while its guest lives, which has no cgroup that is ours for long.
                Some(_) => self.pool.remove(&name),
                None => self.finish_delete(&name),
            };
            match gone {
                Ok(()) => removed += 1,
                Err(error) => left(&name, &error),
            }
        }
        Ok(removed)
    }

    fn owns_disk(&self, name: &str) -> bool {
        if let Some(bare) = name.strip_suffix("-m") {
            return self.maintained().contains_key(bare);
        }
        let lives =
            |id: SandboxId| self.live().get(&id).is_some_and(|entry| entry.tombstone.is_none());
        // A directory without a place in the map is one that could not be read: keep its disks.
        name.parse().is_ok_and(|id| self.warm().owns(id) || lives(id))
            || self.layout.sandbox(name).exists()
    }

    /// Sockets and notes of guests that are gone, and what a crash left half written.
    fn collect_files(&self) -> anyhow::Result<()> {
        let mut strays = BTreeSet::new();
        let sockets = self.layout.socket("");
        for name in names_in(&sockets)? {
            let bare = name.strip_suffix("-m").unwrap_or(&name);
            if bare.parse::<SandboxId>().is_ok() && !self.has_guest(&name) {
                strays.insert(sockets.join(name));
            }
        }
        let owned = self.owned_incarnations();
        for name in names_in(&self.layout.exit_note(""))? {
            if !owned.contains(&name) {
                strays.insert(self.layout.exit_note(&name));
            }
        }
        for name in names_in(&self.layout.tombstones())? {
            if name.ends_with(".tmp") {
                strays.insert(self.layout.tombstones().join(name));
            }
        }
        let suspects = std::mem::replace(&mut self.suspects().files, strays.clone());
        strays.intersection(&suspects).try_for_each(|stray| layout::forget(stray))
    }

    /// Whether somebody has, or makes, the guest with the socket and the disks of this name.
    fn has_guest(&self, name: &str) -> bool {
        if let Some(maintained) = name.strip_suffix("-m") {
            return self.maintained().contains_key(maintained);
        }
        let Ok(id) = name.parse::<SandboxId>() else { return false };
        let runs = |entry: &super::Entry| entry.running.is_some() || entry.launching;
        self.warm().owns(id)
            || self.maintained().contains_key(name)
            || self.live().get(&id).is_some_and(runs)
    }

    fn collect_tombstones(&self) -> anyhow::Result<()> {
        let now = Timestamp::now();
        let expired: Vec<_> = {
            let live = self.live();
            live.iter().filter(|(_, entry)| entry.is_expired(now)).map(|(id, _)| *id).collect()
        };
        for id in expired {
            layout::forget(&self.layout.tombstone(&id.bare()))?;
            self.live().remove(&id);
        }
        Ok(())
    }
}

/// Something that could not be collected: the next sweep tries again.
pub(super) fn left(name: &str, error: &anyhow::Error) {
    tracing::warn!(name, error = format!("{error:#}"), "left for the next sweep");
}

fn told<T: Default>(what: &str, outcome: anyhow::Result<T>) -> T {
    outcome.unwrap_or_else(|error| {
        tracing::warn!(error = format!("{error:#}"), "could not {what}");
        T::default()
    })
}

fn names_in(dir: &Path) -> anyhow::Result<Vec<String>> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect::<std::io::Result<_>>().with_context(|| format!("list {}", dir.display()))
}
