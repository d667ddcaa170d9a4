//! Finding and removing what nothing owns: after a crash, a failed launch, or a kernel that took its
//! time. Takes no input but what exists, so the happy case, the retry and the restart are one path.

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

    /// A leaf goes when it was nobody's in two sweeps: a launch that ended between two looks is
    /// somebody's by the second.
    fn collect_cgroups(&self, collected: &mut Collected) -> anyhow::Result<()> {
        let mut orphans = self.hierarchy.leaves()?;
        for owned in self.keeper.busy().map_err(anyhow::Error::from)? {
            orphans.remove(&owned);
        }
        for owned in self.owned_incarnations() {
            orphans.remove(&owned);
        }
        let suspects = std::mem::replace(&mut *self.suspects(), orphans.clone());
        for incarnation in orphans.intersection(&suspects) {
            let leaf = self.hierarchy.leaf(incarnation);
            if cgroup::is_populated(&leaf.unified) {
                cgroup::kill(&leaf.unified)?;
                collected.processes += 1;
            }
            collected.cgroups += cgroup::remove(&leaf.unified, &leaf.legacy);
        }
        Ok(())
    }

    fn owned_incarnations(&self) -> Vec<String> {
        let mut owned = self.warm().incarnations();
        owned.extend(self.maintained().iter().cloned());
        let live = self.live();
        let running = live.values().filter_map(|entry| entry.running.as_ref());
        owned.extend(running.map(|running| running.record.incarnation.clone()));
        owned
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
