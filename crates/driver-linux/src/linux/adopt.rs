//! A server that starts reads off the host what its predecessor left: running guests are adopted,
//! dead ones become stopped, half-made ones go, deletes are finished.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use driver::{Ended, Tombstone};
use futures_util::StreamExt;
use model::{EndReason, Result, SandboxId};

use super::compute::Running;
use super::layout::{self, write_json};
use super::stored::{End, Stored, Tomb};
use super::{Entry, Inner, LinuxDriver};
use crate::incarnation;
use crate::plan::RunRecord;
use crate::run_record;

/// How many guests are spoken to at once.
const AT_ONCE: usize = 64;
/// How long a guest of a predecessor may take to answer.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// One directory of `sandboxes/`.
struct Found {
    id: SandboxId,
    stored: Stored,
    record: Option<RunRecord>,
    end: Option<End>,
    greeted: bool,
}

impl LinuxDriver {
    /// Fills the map. Called once, before anybody else can call.
    pub(super) async fn adopt(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let read = tokio::task::spawn_blocking(move || inner.read_all());
        let found = read.await.context("read the data directory")??;
        let adopted = found.into_iter().map(async |found| {
            // One that dies meanwhile is ended when it is in the map.
            let _turn = self.inner.turns.take(found.id).await;
            if let (id, Some(entry)) = self.adopt_one(found).await {
                self.inner.live().insert(id, entry);
            }
        });
        futures_util::stream::iter(adopted).buffer_unordered(AT_ONCE).collect::<()>().await;
        self.hold_orphans().await?;
        self.open_policies().await;
        // The engine has yet to hear of what tombstones tell, so they go with the first sweep.
        self.collect_orphans().await?;
        Ok(())
    }

    async fn adopt_one(&self, found: Found) -> (SandboxId, Option<Entry>) {
        let Found { id, stored, record, end, greeted } = found;
        let mut entry = Entry {
            stored,
            running: None,
            end_reason: end.as_ref().map(|end| end.reason),
            ended: end.as_ref().and_then(|end| end.last.clone()).map(Ended::from),
            tombstone: None,
            launching: false,
            greeted,
        };
        let Some(record) = record else {
            // Ended and noted: stopped. Neither run nor end: its create was never answered.
            return (id, end.is_some().then_some(entry));
        };
        // A note of another incarnation is older than this one: how it was before it was started.
        let (told, before) = match end {
            Some(end) if end.is_of(&record.incarnation) => (Some(end), None),
            older => (None, older),
        };
        let running = match &told {
            // The predecessor was asked to stop it, or saw its end, and died over what comes after.
            Some(_) => None,
            None => self.adopt_running(id, &record).await,
        };
        if let Some(running) = running {
            entry.running = Some(running);
            entry.end_reason = None;
            return (id, Some(entry));
        }
        // A start that was cut off before anything of it answered ends nothing: its older note goes, durably, before it is
        // told to anybody.
        let answered = run_record::is_answered(&self.inner.layout.run(&id.bare()));
        let told = told.or(before.filter(|_| !answered));
        let inner = Arc::clone(&self.inner);
        let noted = tokio::task::spawn_blocking(move || inner.lay_down(id, &record, told));
        let (reason, ended, noted) = match noted.await {
            Ok(laid_down) => laid_down,
            Err(error) => (EndReason::Unknown, None, Err(error.into())),
        };
        (entry.end_reason, entry.ended) = (Some(reason), ended);
        if let Err(error) = noted {
            tracing::error!(sandbox.id = %id, error = format!("{error:#}"), "could not note an end");
        }
        (id, Some(entry))
    }

    /// The guest of a record, if it lives and proves to be the one.
    async fn adopt_running(&self, id: SandboxId, record: &RunRecord) -> Option<Running> {
        let is_ours = record.boot_id == self.inner.boot_id && incarnation::holds(record);
        let answered = || run_record::is_answered(&self.inner.layout.run(&id.bare()));
        if !is_ours || !(answered() || incarnation::is_whole(record)) {
            let _ = incarnation::kill(record);
            return None;
        }
        self.inner.slots().keep(record.uid_base);
        let running = self.attach(id, record.clone(), None).ok()?;
        if incarnation::freeze_asked(record) {
            // A paused guest cannot answer; its cgroup says who it is.
            return Some(running);
        }
        match tokio::time::timeout(HEALTH_TIMEOUT, running.guest.health()).await {
            Ok(Ok(health)) if health.nonce == record.nonce => Some(running),
            // Its cgroup, which nobody else can have, holds its process: it is the one, and busy.
            Err(_) => {
                tracing::warn!(sandbox.id = %id, "a guest of before is slow to answer");
                Some(running)
            }
            Ok(answer) => {
                tracing::warn!(sandbox.id = %id, ?answer, "a guest of before does not answer");
                self.end_compute(id, running).await;
                None
            }
        }
    }

    /// Egress of adopted sandboxes, by the policies of the configuration.
    async fn open_policies(&self) {
        let wanted: Vec<_> = {
            let live = self.inner.live();
            let running = live.iter().filter(|(_, entry)| entry.running.is_some());
            let policy =
                |entry: &Entry| self.inner.policies.get(&entry.stored.spec.policy).cloned();
            running.filter_map(|(id, entry)| Some((*id, policy(entry)?))).collect()
        };
        for (id, policy) in wanted {
            if let Err(error) = self.apply_policy(id, policy).await {
                tracing::error!(sandbox.id = %id, %error, "could not open egress again");
            }
        }
    }
}

impl Inner {
    /// An incarnation that is not to live on: why it ended, what it used, whether that was noted.
    fn lay_down(
        &self,
        id: SandboxId,
        record: &RunRecord,
        told: Option<End>,
    ) -> (EndReason, Option<Ended>, anyhow::Result<()>) {
        let reason = told.as_ref().map_or_else(|| self.reason_of(record), |end| end.reason);
        let bare = id.bare();
        let killed = incarnation::kill(record).and_then(|()| incarnation::wait_until_gone(record));
        let last = told.and_then(|end| end.last).map(Ended::from);
        let ended = last.unwrap_or_else(|| self.ended(record));
        self.clear(&bare, record);
        let end = End::new(reason, Some(ended.clone()));
        // After another boot there is nothing to flush, and perhaps no disk: it may not have been flushed.
        let same_boot = record.boot_id == self.boot_id;
        let flushed = if same_boot { self.pool.sync(&bare) } else { Ok(()) };
        self.pool.rest(&bare);
        let kept = if same_boot { self.keep_upper(&bare) } else { Ok(()) };
        let noted = killed.and(flushed).and(kept).and_then(|()| self.note_end(&bare, end));
        (reason, Some(ended), noted)
    }

    fn read_all(&self) -> anyhow::Result<Vec<Found>> {
        self.read_tombstones()?;
        let mut all = Vec::new();
        for entry in std::fs::read_dir(self.layout.sandboxes()).context("list sandboxes")? {
            let name = entry.context("list sandboxes")?.file_name();
            let Ok(id) = name.to_string_lossy().parse::<SandboxId>() else { continue };
            match self.read_one(id) {
                Ok(Some(found)) => all.push(found),
                Ok(None) => {}
                Err(error) => {
                    // Leave the bytes for the operator; one bad file must not stop the town.
                    let error = format!("{error:#}");
                    tracing::error!(sandbox.id = %id, error, "could not read a sandbox");
                }
            }
        }
        Ok(all)
    }

    /// `None` for one that was never whole: it is removed.
    fn read_one(&self, id: SandboxId) -> anyhow::Result<Option<Found>> {
        let bare = id.bare();
        let stored: Option<Stored> = read_json(&self.layout.spec(&bare))?;
        let lost =
            stored.as_ref().is_some_and(|stored| stored.may_be_of_another_boot(&self.boot_id));
        // What is not flushed may be torn then: the record, and the note of a stop that was under way.
        let record = run_record::read(&self.layout.run(&bare));
        let record = if lost { record.unwrap_or_default() } else { record? };
        let end = read_json::<End>(&self.layout.end(&bare));
        let mut end = if lost { end.unwrap_or_default() } else { end? };
        if lost && record.is_none() && end.is_none() {
            // It may have been answered, and run when the machine went down.
            end = Some(End { answered: true, ..End::new(EndReason::HostLost, None) });
            write_json(&self.layout.end(&bare), &end)?;
            layout::forget(&self.layout.run(&bare))?;
        }
        let Some(stored) = stored.filter(|_| record.is_some() || end.is_some()) else {
            self.end_recorded(&bare, &self.layout.run(&bare))?;
            self.move_to_deleting(&bare)?;
            return Ok(None);
        };
        // A guest over its workspace that nobody holds any more.
        self.end_recorded(&bare, &self.layout.maintenance(&bare))?;
        let stale = stored.is_sealed_with_an_old_key(&self.sealer);
        let stored = stored.opened(&self.sealer)?;
        if stale {
            write_json(&self.layout.spec(&bare), &stored.sealed(&self.sealer)?)?;
        }
        let greeted = self.has_answered(&bare, end.as_ref());
        Ok(Some(Found { id, stored, record, end, greeted }))
    }

    fn read_tombstones(&self) -> anyhow::Result<()> {
        // There may be thousands, and each flush takes its time: one is for all of them.
        let mut has_any = false;
        for entry in std::fs::read_dir(self.layout.tombstones()).context("list tombstones")? {
            let path = entry.context("list tombstones")?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let Ok(Some(tomb)) = read_json::<Tomb>(&path) else { continue };
            let tombstone = Tombstone { destroyed_at: tomb.destroyed_at, end_reason: tomb.reason };
            let bare = tomb.stored.spec.id.bare();
            // Written before the rename: finish what the predecessor began.
            self.rename_to_deleting(&self.layout.sandbox(&bare), &bare)?;
            has_any = true;
            let entry = Entry {
                end_reason: Some(tomb.reason),
                stored: tomb.stored,
                running: None,
                ended: tomb.last.map(Ended::from),
                tombstone: Some(tombstone),
                launching: false,
                greeted: true,
            };
            self.live().insert(entry.stored.spec.id, entry);
        }
        if has_any { layout::sync_dir(&self.layout.sandboxes()) } else { Ok(()) }
    }
}

pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<Option<T>> {
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .with_context(|| format!("decode {}", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}
