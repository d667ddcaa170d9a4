//! The warm pool: sandboxes that wait, booted, for somebody to want one.
//!
//! A member's id, uid range and cgroup are fixed when it is made; name, environment, limits and
//! policy come with its claim, which is one rename of its directory. A member is only ever given out
//! once: taken from the queue, it is claimed by `create` or destroyed.

mod placeholder;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use driver::Observed;
use guest_proto::{ExecStart, Init};
use jiff::Timestamp;
use model::{Error, Limits, Policy, Result, SandboxId, TemplateName};
use tokio::sync::Notify;

use self::placeholder::placeholder;
use super::collect::left;
use super::compute::{Running, start_program};
use super::order::{Place, environment};
use super::stored::Stored;
use super::{Inner, LinuxDriver, layout};
use crate::run_record;
use crate::template::Built;

/// How long a taken member waits for its `create`.
const CLAIM_TIMEOUT: jiff::SignedDuration = jiff::SignedDuration::from_secs(30);
/// After a member was taken.
const FILL_DELAY: Duration = Duration::from_millis(20);
/// After a failed fill, so that a broken template does not spin.
const FILL_PAUSE: Duration = Duration::from_secs(5);

/// One waiting sandbox.
pub(super) struct Member {
    id: SandboxId,
    template: TemplateName,
    running: Running,
    limits: Limits,
    digest: String,
}

/// Who waits and who was taken.
pub(super) struct Warm {
    sizes: BTreeMap<TemplateName, usize>,
    waiting: HashMap<TemplateName, VecDeque<Member>>,
    taken: HashMap<SandboxId, (Member, Timestamp)>,
    /// Being made now, for `collect` to leave alone.
    making: Option<SandboxId>,
    wanted: Arc<Notify>,
}

impl Warm {
    pub(super) fn new(sizes: BTreeMap<TemplateName, usize>) -> Self {
        Self {
            sizes,
            waiting: HashMap::new(),
            taken: HashMap::new(),
            making: None,
            wanted: Arc::new(Notify::new()),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.sizes.values().any(|size| *size > 0)
    }

    /// Reserves a waiting sandbox of `template`.
    pub(super) fn take(&mut self, template: &TemplateName, digest: &str) -> Option<SandboxId> {
        let queue = self.waiting.get_mut(template)?;
        // Members of an older build of the template are of no use any more, nor are dead ones.
        let is_good = |one: &Member| one.digest == digest && !one.running.dead.is_cancelled();
        let place = queue.iter().position(is_good)?;
        let member = queue.remove(place)?;
        let id = member.id;
        self.taken.insert(id, (member, Timestamp::now()));
        self.wanted.notify_one();
        Some(id)
    }

    pub(super) fn give_back(&mut self, id: SandboxId) {
        if let Some((member, _)) = self.taken.remove(&id) {
            self.waiting.entry(member.template.clone()).or_default().push_front(member);
        }
    }

    fn claimed(&mut self, id: SandboxId) -> Option<Member> {
        self.taken.remove(&id).map(|(member, _)| member)
    }

    pub(super) fn owns(&self, id: SandboxId) -> bool {
        self.making == Some(id)
            || self.taken.contains_key(&id)
            || self.waiting.values().flatten().any(|member| member.id == id)
    }

    fn has_some_of_each(&self) -> bool {
        let waits = |name: &TemplateName| self.waiting.get(name).is_some_and(|q| !q.is_empty());
        self.sizes.iter().all(|(name, size)| *size == 0 || waits(name))
    }

    pub(super) fn wake(&self) {
        self.wanted.notify_one();
    }

    fn lacking(&self) -> Option<TemplateName> {
        let lacks = |(name, size): (&TemplateName, &usize)| {
            let have = self.waiting.get(name).map_or(0, VecDeque::len);
            (have < *size).then(|| name.clone())
        };
        self.sizes.iter().find_map(lacks)
    }

    /// Members that died, and taken ones that nobody came for.
    fn spoiled(&mut self) -> Vec<Member> {
        let now = Timestamp::now();
        let mut spoiled = Vec::new();
        for queue in self.waiting.values_mut() {
            while let Some(at) = queue.iter().position(|m| m.running.dead.is_cancelled()) {
                spoiled.extend(queue.remove(at));
            }
        }
        let late = |(_, since): &(Member, Timestamp)| now.duration_since(*since) > CLAIM_TIMEOUT;
        let late: Vec<SandboxId> =
            self.taken.iter().filter(|(_, taken)| late(taken)).map(|(id, _)| *id).collect();
        spoiled.extend(late.into_iter().filter_map(|id| self.claimed(id)));
        spoiled
    }

    fn drain(&mut self) -> Vec<Member> {
        let waiting = self.waiting.drain().flat_map(|(_, queue)| queue);
        let taken = self.taken.drain().map(|(_, (member, _))| member);
        waiting.chain(taken).collect()
    }
}

impl LinuxDriver {
    /// Keeps the pool full until the driver closes.
    pub(super) fn keep_warm(&self) {
        if !self.inner.warm().is_on() {
            return;
        }
        let driver = self.clone();
        self.inner.warm_tasks.spawn(async move {
            let wanted = Arc::clone(&driver.inner.warm().wanted);
            loop {
                let full = driver.fill_one().await;
                tokio::select! {
                    () = driver.inner.warm_cancel.cancelled() => break,
                    () = wanted.notified(), if full => driver.leave_the_processor().await,
                    () = std::future::ready(()), if !full => {}
                }
            }
            let left = driver.inner.warm().drain();
            for member in left {
                driver.discard(member).await;
            }
        });
    }

    /// Whoever just took a member is about to use it: a new one is made a little later, unless the next
    /// caller would find none.
    async fn leave_the_processor(&self) {
        if self.inner.warm().has_some_of_each() {
            tokio::time::sleep(FILL_DELAY).await;
        }
    }

    /// Whether nothing more is to do now.
    async fn fill_one(&self) -> bool {
        let spoiled = self.inner.warm().spoiled();
        for member in spoiled {
            self.discard(member).await;
        }
        let Some(template) = self.inner.warm().lacking() else { return true };
        match self.make_member(&template).await {
            Ok(member) => {
                let mut warm = self.inner.warm();
                warm.making = None;
                warm.waiting.entry(template).or_default().push_back(member);
                false
            }
            Err(error) => {
                self.inner.warm().making = None;
                tracing::warn!(%template, %error, "could not fill the warm pool");
                let pause = tokio::time::sleep(FILL_PAUSE);
                tokio::select! {
                    () = pause => {}
                    () = self.inner.warm_cancel.cancelled() => {}
                }
                true
            }
        }
    }

    async fn make_member(&self, template: &TemplateName) -> Result<Member> {
        let built = self.inner.templates.get(template)?;
        let built = built.ok_or_else(|| Error::unavailable("the template is not built"))?;
        let id = SandboxId::generate();
        self.inner.warm().making = Some(id);
        self.inner.pool.check_room()?;
        let limits = built.template.limits;
        let digest = built.template.digest.clone();
        let stored =
            Stored::new(placeholder(id, template, limits), digest.clone(), &self.inner.boot_id);
        let order = self.inner.order(stored, built, Policy::none())?;
        let place = Place { dir: self.inner.layout.warm(&id.bare()), fresh: true, save: false };
        match self.launch(order, place).await {
            Ok(running) => {
                warm_up(&running).await;
                let member = Member { id, template: template.clone(), running, limits, digest };
                let inner = Arc::clone(&self.inner);
                let reserved = tokio::task::spawn_blocking(move || inner.reserve_spec(id));
                if let Err(error) = reserved.await.context("reserve the spec").flatten() {
                    self.discard(member).await;
                    return Err(error.into());
                }
                Ok(member)
            }
            Err(error) => {
                let inner = Arc::clone(&self.inner);
                let undone = tokio::task::spawn_blocking(move || inner.discard_files(id));
                undone.await.context("undo")??;
                Err(error)
            }
        }
    }

    async fn discard(&self, member: Member) {
        let id = member.id;
        self.end_compute(id, member.running).await;
        let inner = Arc::clone(&self.inner);
        let gone = tokio::task::spawn_blocking(move || inner.discard_files(id));
        if let Err(error) = gone.await.context("discard").and_then(|gone| gone) {
            tracing::warn!(sandbox.id = %id, error = format!("{error:#}"), "left for the sweep");
        }
    }

    /// A member that was taken for a `create` of this size. One that died, or whose disk is of another size and stays
    /// so, is given up for a launch of the same id.
    pub(super) async fn fits(&self, id: SandboxId, limits: &Limits) -> bool {
        let misfit = {
            let mut warm = self.inner.warm();
            let Some((member, _)) = warm.taken.get(&id) else { return false };
            let same = member.limits.disk_gb == limits.disk_gb;
            let lives = !member.running.dead.is_cancelled();
            if lives && (same || self.inner.pool.changes_limits()) {
                return true;
            }
            warm.claimed(id)
        };
        if let Some(member) = misfit {
            self.discard(member).await;
        }
        false
    }

    /// `create` with a sandbox that waits: everything but the launch.
    pub(super) async fn create_from_warm(
        &self,
        stored: Stored,
        built: Built,
        policy: Policy,
    ) -> Result<Observed> {
        let id = stored.spec.id;
        // In the map before it leaves the pool: `collect` must find it in one of them.
        self.inner.enter(&stored)?;
        let claimed = self.inner.warm().claimed(id);
        let Some(member) = claimed else {
            self.inner.live().remove(&id);
            return Err(Error::unavailable("the warm sandbox was not claimed in time"));
        };
        let env = environment(&built, &stored.spec);
        let inner = Arc::clone(&self.inner);
        let saving = stored.clone();
        let had = member.limits;
        let saved = tokio::task::spawn_blocking(move || inner.claim(&saving, &had));
        let init = Init { env_vars: Some(env), ..Init::default() };
        let told = member.running.guest.init(&init).await;
        let launched = match told {
            Ok(_) => {
                start_program(&member.running, built.start).await;
                Ok(member.running)
            }
            Err(error) => {
                self.end_compute(id, member.running).await;
                Err(Error::Internal(anyhow::Error::new(error).context("tell a warm guest")))
            }
        };
        let record = self.inner.layout.run(&id.bare());
        let saved = saved.await.context("claim").flatten();
        let saved = saved.and_then(|()| run_record::set_answered(&record, true));
        let launched = match (launched, saved) {
            (Ok(running), Err(error)) => {
                self.end_compute(id, running).await;
                Err(error.into())
            }
            (launched, _) => launched,
        };
        let observed = self.settle_create(id, launched).await?;
        if !policy.is_closed() {
            self.apply_policy(id, policy).await?;
        }
        Ok(observed)
    }
}

impl Inner {
    /// The limits that it was asked with, its spec, and the rename that makes a member a sandbox. A
    /// server that dies before the rename left a member with half a spec, which the next one discards
    /// unread: so the spec needs no rename of its own, and its name is on the disk since the filling.
    fn claim(&self, stored: &Stored, had: &Limits) -> anyhow::Result<()> {
        let bare = stored.spec.id.bare();
        let limits = &stored.spec.limits;
        let spec = serde_json::to_vec(&stored.sealed(&self.sealer)?).context("encode")?;
        let file = keeper::write_over(&self.spec_of_member(&bare), &spec);
        file.context("write the spec")?.sync_data().context("flush the spec")?;
        // That it answered in the pool is no answer to whoever wants it now.
        run_record::set_answered(&self.layout.warm(&bare).join("run.json"), false)?;
        std::fs::rename(self.layout.warm(&bare), self.layout.sandbox(&bare)).context("claim")?;
        layout::sync_dir(&self.layout.sandboxes())?;
        if limits != had {
            let record = run_record::read(&self.layout.run(&bare))?;
            let incarnation = record.context("no run record")?.incarnation;
            self.hierarchy.limit(&incarnation, limits)?;
        }
        if limits.disk_gb != had.disk_gb {
            self.pool.set_limit(&bare, limits.disk_gb)?;
        }
        Ok(())
    }

    fn reserve_spec(&self, id: SandboxId) -> anyhow::Result<()> {
        let path = self.spec_of_member(&id.bare());
        // A directory that was made in advance has a file for it.
        if std::fs::rename(path.with_extension("tmp"), &path).is_err() {
            layout::make_room(&path).context("reserve the spec")?;
        }
        layout::sync_dir(&self.layout.warm(&id.bare()))
    }

    fn spec_of_member(&self, bare: &str) -> PathBuf {
        self.layout.warm(bare).join("spec.json")
    }

    fn discard_files(&self, id: SandboxId) -> anyhow::Result<()> {
        let bare = id.bare();
        self.rename_to_deleting(&self.layout.warm(&bare), &bare)?;
        self.finish_delete(&bare)
    }

    /// Members of a server that is gone: never given out, so nobody misses them.
    pub(super) fn collect_warm(&self) -> anyhow::Result<u32> {
        let mut removed = 0;
        for entry in std::fs::read_dir(self.layout.warm_dir()).context("list the warm pool")? {
            let name = entry.context("list the warm pool")?.file_name();
            let Ok(id) = name.to_string_lossy().parse::<SandboxId>() else { continue };
            // One that is being given out is in the map before it leaves the pool, so it is looked for there after.
            if self.warm().owns(id) || self.live().contains_key(&id) {
                continue;
            }
            match self.discard_files(id) {
                Ok(()) => removed += 1,
                Err(error) => left(&id.bare(), &error),
            }
        }
        Ok(removed)
    }
}

/// Runs a program once, so that the first one of whoever claims it is not the first of all. A template
/// without it is as good.
async fn warm_up(running: &Running) {
    let start = ExecStart {
        id: "warm-up".to_owned(),
        argv: vec!["/bin/true".to_owned()],
        timeout_ms: Some(5000),
        ..ExecStart::default()
    };
    if let Ok(mut frames) = running.guest.exec(&start).await {
        while let Some(Ok(_)) = frames.next().await {}
    }
}
