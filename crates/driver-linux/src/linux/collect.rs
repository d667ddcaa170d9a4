//! Finding and removing what nothing owns: after a crash, a failed launch, or a kernel that took its
//! time. Takes no input but what exists, so the happy case, the retry and the restart are one path.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context;
use driver::Collected;
use jiff::Timestamp;
use model::Result;

use super::{Inner, LinuxDriver, layout};
use crate::cgroup;

impl LinuxDriver {
    pub(super) async fn collect_orphans(&self) -> Result<Collected> {
        let inner = Arc::clone(&self.inner);
        let collected = tokio::task::spawn_blocking(move || inner.collect());
        Ok(collected.await.context("collect")??)
    }
}

impl Inner {
    fn collect(&self) -> anyhow::Result<Collected> {
        let mut collected = Collected::default();
        collected.disks += self.collect_warm()?;
        self.warm().wake();
        self.collect_cgroups(&mut collected)?;
        self.collect_deleting(&mut collected)?;
        self.collect_disks(&mut collected)?;
        self.collect_tombstones()?;
        let in_use = |name: &model::TemplateName, digest: &str| {
            let live = self.live();
            let uses = |entry: &super::Entry| {
                entry.stored.spec.template == *name && entry.stored.template_digest == digest
            };
            live.values().any(uses)
        };
        self.templates.collect(&in_use).map_err(anyhow::Error::from)?;
        Ok(collected)
    }

    fn collect_cgroups(&self, collected: &mut Collected) -> anyhow::Result<()> {
        // Listed before the map is read: what appears later is entered in the map first.
        let leaves = self.hierarchy.leaves()?;
        let owned = self.owned_leaves();
        for (unified, legacy) in leaves {
            let name = unified.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let warm = name.split('.').next().and_then(|bare| bare.parse().ok());
            if warm.is_some_and(|id| self.warm().owns(id)) {
                continue;
            }
            if owned.contains(&name) || name.ends_with(super::maintenance::SUFFIX) {
                continue;
            }
            if cgroup::is_populated(&unified) {
                cgroup::kill(&unified)?;
                collected.processes += 1;
            }
            collected.cgroups += cgroup::remove(&unified, &legacy);
        }
        Ok(())
    }

    fn owned_leaves(&self) -> BTreeSet<String> {
        let live = self.live();
        let leaf = |(id, entry): (&model::SandboxId, &super::Entry)| {
            let running = entry.running.as_ref().map(|r| r.record.incarnation.clone());
            let incarnation = running.or_else(|| entry.launching.clone())?;
            Some(format!("{}.{incarnation}", id.bare()))
        };
        live.iter().filter_map(leaf).collect()
    }

    fn collect_deleting(&self, collected: &mut Collected) -> anyhow::Result<()> {
        for entry in std::fs::read_dir(self.layout.deleting()).context("list deleting")? {
            let name = entry.context("list deleting")?.file_name();
            self.finish_delete(&name.to_string_lossy())?;
            collected.disks += 1;
        }
        Ok(())
    }

    fn collect_disks(&self, collected: &mut Collected) -> anyhow::Result<()> {
        for bare in self.pool.sandboxes()? {
            let known = bare.parse::<model::SandboxId>().is_ok_and(|id| {
                self.warm().owns(id)
                    || self.live().get(&id).is_some_and(|entry| entry.tombstone.is_none())
            });
            // A directory without a place in the map is one that could not be read: keep its disks.
            if !known && !self.layout.sandbox(&bare).exists() && !bare.ends_with("-m") {
                self.finish_delete(&bare)?;
                collected.disks += 1;
            }
        }
        Ok(())
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
