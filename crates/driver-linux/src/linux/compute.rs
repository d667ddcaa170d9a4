//! Making and stopping compute: create, start, stop, pause, resume, update.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use driver::{Launch, Observed, Update};
use guest_proto::{Address, ExecStart, Guest, GuestError, Init};
use model::{EndReason, Error, Phase, Policy, Result, SandboxId};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::layout;
use super::order::{Begun, Order, Place, environment, not_built, uses_relay};
use super::owned::Owner;
use super::stored::{End, Stored};
use super::{Entry, Inner, LinuxDriver, bare, existing};
use crate::cgroup;
use crate::egress::{Access, EgressHandle, Sockets};
use crate::plan::RunRecord;
use crate::run_record;
use crate::template::Built;

/// How long a fresh guest may take to answer.
const GUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// One incarnation that lives.
pub(super) struct Running {
    pub(super) record: RunRecord,
    pub(super) guest: Guest,
    pub(super) egress: Option<EgressHandle>,
    /// Set before it is killed on purpose, so that its end is no news.
    pub(super) ending: Arc<AtomicBool>,
    /// Cancelled once its process is dead.
    pub(super) dead: CancellationToken,
    /// That it is looked after.
    pub(super) owner: Owner,
}

impl Running {
    pub(super) fn access_log(&self) -> Option<Vec<Access>> {
        self.egress.as_ref().map(EgressHandle::log)
    }
}

impl LinuxDriver {
    pub(super) async fn create_sandbox(&self, launch: Launch) -> Result<Observed> {
        let Launch { spec, policy } = launch;
        self.inner.pool.check_room()?;
        let built = self.inner.templates.get(&spec.template)?.ok_or_else(|| not_built(&spec))?;
        let agent = self.inner.agent_program(&spec)?;
        let stored = Stored::new(spec, built.template.digest.clone(), &self.inner.boot_id);
        let stored = stored.with_agent(agent.map(|agent| agent.template.digest));
        self.create_on(stored, built, policy).await
    }

    pub(super) async fn create_on(
        &self,
        stored: Stored,
        built: Built,
        policy: Policy,
    ) -> Result<Observed> {
        let id = stored.spec.id;
        if self.fits(id, &stored.spec.limits).await {
            return self.create_from_warm(stored, built, policy).await;
        }
        let order = self.inner.order(stored, built, policy)?;
        if let Err(error) = self.inner.enter(&order.stored) {
            self.inner.slots().give_back(order.uid_base);
            return Err(error);
        }
        let place = Place { dir: self.inner.layout.sandbox(&id.bare()), fresh: true, save: true };
        let program = order.built.start.clone();
        let launched = self.launch(order, place).await;
        if let Ok(running) = &launched {
            start_program(running, program).await;
        }
        self.settle_create(id, launched).await
    }

    /// Both the compute and the durable spec, or neither.
    pub(super) async fn settle_create(
        &self,
        id: SandboxId,
        launched: Result<Running>,
    ) -> Result<Observed> {
        match launched {
            Ok(running) => self.put(id, running),
            Err(error) => {
                self.undo_create(id).await;
                Err(error)
            }
        }
    }

    pub(super) async fn start_sandbox(&self, id: SandboxId, policy: Policy) -> Result<Observed> {
        let stored = self.inner.stored(id)?;
        if let Some(observed) = self.inner.observed_running(id) {
            return Ok(observed);
        }
        let spec = &stored.spec;
        let digest = &stored.template_digest;
        let built = self.inner.templates.get_digest(&spec.template, digest)?;
        let built = built.ok_or_else(|| not_built(spec))?;
        let order = self.inner.order(stored, built, policy)?;
        self.inner.edit(id, |entry| entry.launching = true);
        let place = Place { dir: self.inner.layout.sandbox(&id.bare()), fresh: false, save: false };
        let program = order.built.start.clone();
        match self.launch(order, place).await {
            Ok(running) => {
                start_program(&running, program).await;
                self.put(id, running)
            }
            Err(error) => {
                self.inner.edit(id, |entry| entry.launching = false);
                Err(error)
            }
        }
    }

    /// From an order to a guest that answers. On failure no process, no cgroup and no claim on uids is
    /// left.
    pub(super) async fn launch(&self, order: Order, place: Place) -> Result<Running> {
        let id = order.stored.spec.id;
        let env = environment(&order.built, &order.stored.spec);
        let policy = order.policy.clone();
        let (record_path, fresh) = (place.dir.join("run.json"), place.fresh);
        let inner = Arc::clone(&self.inner);
        let (tell, told) = oneshot::channel();
        let (finish, finished) = oneshot::channel();
        // Beside the caller. When there is none any more, because the server goes, nobody wants it.
        self.inner.tasks.spawn_blocking(move || match inner.launch_or_undo(&order, &place) {
            Err(error) => drop(tell.send(Err(error))),
            Ok(Begun { record, sockets, starting }) => match tell.send(Ok((record, sockets))) {
                Err(Ok((record, _))) => {
                    let path = place.dir.join("run.json");
                    inner.abandon(&id.bare(), &path, record.uid_base);
                }
                Ok(()) | Err(Err(_)) => drop(finish.send(starting.wait())),
            },
        });
        let (record, sockets) = told.await.context("launch")??;
        let running = self.attach(id, record, sockets.map(|sockets| (sockets, policy)))?;
        let started = async {
            self.greet(&running, env).await?;
            finished.await.context("finish the launch")??;
            run_record::set_answered(&record_path, true)?;
            if !fresh {
                let inner = Arc::clone(&self.inner);
                let forget = move || inner.forget_older_end(&id.bare());
                tokio::task::spawn_blocking(forget).await.context("forget an older end")??;
            }
            Ok(())
        };
        match started.await {
            Ok(()) => Ok(running),
            Err(error) => {
                self.end_compute(id, running).await;
                Err(error)
            }
        }
    }

    /// A `Running` over a recorded process: its guest, its egress and the watch on its death.
    pub(super) fn attach(
        &self,
        id: SandboxId,
        record: RunRecord,
        egress: Option<(Sockets, Policy)>,
    ) -> Result<Running> {
        let owner = self.inner.owned.add(&record.incarnation);
        let guest = Guest::new(Address::Unix(record.socket.clone()));
        let egress = egress.map(|(sockets, policy)| self.inner.egress.serve(id, sockets, policy));
        let egress = match egress.transpose().context("serve egress") {
            Ok(egress) => egress,
            Err(error) => {
                self.inner.discard(id, &record);
                return Err(error.into());
            }
        };
        let ending = Arc::new(AtomicBool::new(false));
        let dead = CancellationToken::new();
        let running = Running { record, guest, egress, ending, dead, owner };
        if let Err(error) = self.watch(id, &running) {
            self.inner.discard(id, &running.record);
            return Err(error);
        }
        Ok(running)
    }

    /// The first words with a guest: its environment, and the proof that it is ours.
    async fn greet(&self, running: &Running, env: BTreeMap<String, String>) -> Result<()> {
        let greeting = async {
            let init = Init { env_vars: Some(env), ..Init::default() };
            let health = running.guest.init(&init).await?;
            if health.nonce != running.record.nonce {
                return Err(GuestError::Protocol("another guest answers".to_owned()));
            }
            Ok(())
        };
        tokio::select! {
            greeted = tokio::time::timeout(GUEST_TIMEOUT, greeting) => match greeted {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(Error::Internal(anyhow::Error::new(error).context("greet the guest"))),
                Err(_) => Err(Error::unavailable("the guest did not answer in time")),
            },
            () = running.dead.cancelled() => {
                Err(Error::unavailable("the guest died before it answered"))
            }
        }
    }

    fn put(&self, id: SandboxId, running: Running) -> Result<Observed> {
        let mut live = self.inner.live();
        let entry = live.get_mut(&id).ok_or_else(|| Error::no_sandbox(id))?;
        entry.launching = false;
        entry.end_reason = None;
        entry.ended = None;
        entry.greeted = true;
        entry.running = Some(running);
        Ok(entry.observed_in(Phase::Running))
    }

    pub(super) async fn stop_sandbox(&self, id: SandboxId, reason: EndReason) -> Result<()> {
        self.inner.stored(id)?;
        if let Some(running) = self.take_running(id) {
            self.inner.begin_stop(id, &running.record, reason);
            self.terminate(&running).await;
            self.kill_compute(id, &running).await;
            let ended = self.inner.ended(&running.record);
            self.inner.edit(id, |entry| entry.ended = Some(ended));
            self.clear_up(id, running).await;
        }
        let inner = Arc::clone(&self.inner);
        let task = tokio::task::spawn_blocking(move || inner.note_stop(id, reason));
        Ok(task.await.context("stop")??)
    }

    pub(super) fn take_running(&self, id: SandboxId) -> Option<Running> {
        let mut live = self.inner.live();
        let running = live.get_mut(&id)?.running.take()?;
        running.ending.store(true, Ordering::SeqCst);
        Some(running)
    }

    pub(super) async fn set_frozen(&self, id: SandboxId, on: bool) -> Result<()> {
        let unified = {
            let live = self.inner.live();
            let running = existing(&live, id)?.running.as_ref();
            let running =
                running.ok_or_else(|| Error::wrong_state(format!("sandbox {id} does not run")))?;
            running.record.unified.clone()
        };
        let unified = unified.context("this host gives us no control group to pause with")?;
        cgroup::freeze(&unified, on)?;
        // The kernel stops processes within microseconds, unless one is in an uninterruptible wait.
        for _ in 0..200 {
            if cgroup::is_frozen(&unified) == on {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    pub(super) async fn update_sandbox(&self, id: SandboxId, update: Update) -> Result<()> {
        let mut stored = self.inner.stored(id)?;
        if let Some(name) = update.name {
            stored.spec.name = name;
        }
        let rules = update.policy.map(|(name, rules)| {
            stored.spec.policy = name;
            rules
        });
        let inner = Arc::clone(&self.inner);
        let saving = stored.clone();
        let saved = tokio::task::spawn_blocking(move || inner.save(&saving));
        saved.await.context("write the spec")??;
        if let Some(entry) = self.inner.live().get_mut(&id) {
            entry.stored = stored;
        }
        match rules {
            Some(rules) => self.apply_policy(id, rules).await,
            None => Ok(()),
        }
    }

    /// Gives a running sandbox its policy; egress that was never needed is made now.
    pub(super) async fn apply_policy(&self, id: SandboxId, policy: Policy) -> Result<()> {
        let (incarnation, pid) = {
            let live = self.inner.live();
            let Some(entry) = live.get(&id) else { return Ok(()) };
            let Some(running) = &entry.running else { return Ok(()) };
            if let Some(egress) = &running.egress {
                egress.set_policy(policy);
                return Ok(());
            }
            if policy.is_closed() && !uses_relay(&entry.stored.spec) {
                return Ok(());
            }
            (running.record.incarnation.clone(), running.record.pid)
        };
        let keeper = self.inner.keeper.clone();
        let named = incarnation.clone();
        let asked = tokio::task::spawn_blocking(move || keeper.egress(&named, pid));
        let sockets = asked.await.context("open egress")??;
        let handle = self.inner.egress.serve(id, sockets, policy).context("serve egress")?;
        let mut live = self.inner.live();
        if let Some(running) = live.get_mut(&id).and_then(|entry| entry.running.as_mut())
            && running.record.incarnation == incarnation
        {
            running.egress = Some(handle);
        }
        Ok(())
    }
}

/// Starts what the template or image runs in the background. A program that does not start is the
/// image's own affair; its output is kept as that of any command.
pub(super) async fn start_program(running: &Running, program: Vec<String>) {
    if program.is_empty() {
        return;
    }
    let start =
        ExecStart { id: "start".into(), argv: program, detached: true, ..ExecStart::default() };
    if let Err(error) = running.guest.exec(&start).await {
        tracing::info!(incarnation = running.record.incarnation, %error, "no start program");
    }
}

impl Inner {
    /// Enters a new sandbox in the map, so that nobody else takes its id and `collect` leaves what
    /// is being made alone.
    pub(super) fn enter(&self, stored: &Stored) -> Result<()> {
        let id = stored.spec.id;
        let mut live = self.live();
        if live.contains_key(&id) {
            return Err(Error::Conflict {
                code: model::Conflict::WrongState,
                detail: format!("sandbox {id} exists already"),
            });
        }
        live.insert(
            id,
            Entry {
                stored: stored.clone(),
                running: None,
                end_reason: None,
                ended: None,
                tombstone: None,
                launching: true,
                greeted: false,
            },
        );
        Ok(())
    }

    fn observed_running(&self, id: SandboxId) -> Option<Observed> {
        let live = self.live();
        live.get(&id).filter(|entry| entry.running.is_some()).map(Entry::observed)
    }

    /// What runs of a sandbox, if anything does.
    pub(super) fn running_record(&self, id: SandboxId) -> Result<Option<RunRecord>> {
        let live = self.live();
        let running = existing(&live, id)?.running.as_ref();
        Ok(running.map(|running| running.record.clone()))
    }

    /// Writes the spec of a sandbox whose directory is new, durably.
    pub(super) fn save_new(&self, stored: &Stored) -> anyhow::Result<()> {
        self.save(stored)?;
        layout::sync_dir(&self.layout.sandboxes())
    }

    fn save(&self, stored: &Stored) -> anyhow::Result<()> {
        let sealed = stored.sealed(&self.sealer)?;
        layout::write_json(&self.layout.spec(&bare(&stored.spec)), &sealed)
    }

    /// A server that dies from here on leaves word that this was a stop. A full disk does not keep
    /// anybody from stopping.
    fn begin_stop(&self, id: SandboxId, record: &RunRecord, reason: EndReason) {
        let stopping = Some(record.incarnation.clone());
        let end = End { stopping, ..End::new(reason, None) };
        if let Err(error) = layout::write_whole(&self.layout.end(&id.bare()), &end) {
            tracing::warn!(sandbox.id = %id, error = format!("{error:#}"), "could not note a stop");
        }
    }
}
