//! The handle that the front doors hold, and the use cases that change or show a sandbox.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use driver::Template;
use futures_util::future::join_all;
use jiff::Timestamp;
use model::{
    Change, Error, EventKind, OwnerId, Phase, Plan, Quota, Result, SandboxId, SandboxRef,
    TemplateName,
};
use store::Store;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::DropGuard;

use crate::core::Core;
use crate::machine::{Ask, Reply};
use crate::pool::{PoolState, none_answers};
use crate::registry::Cell;
use crate::{
    Attachment, Caller, CancelReason, Cancelled, EngineConfig, Listing, Notice, Pool, Sandbox,
    Snapshot, adopt, sweep,
};

/// When to ask again for room that only the owner can make.
const NO_ROOM_RETRY: Duration = Duration::from_secs(3600);
/// Launches and stops in flight get this long at a shutdown.
const SHUTDOWN_MAX: Duration = Duration::from_secs(30);

/// Clones share one engine; when the last one is dropped, its tasks end and sandboxes go on.
#[derive(Clone)]
pub struct Engine {
    pub(crate) core: Arc<Core>,
    _end: Arc<DropGuard>,
}

impl Engine {
    /// Re-adopts every sandbox that exists in the pools, and finishes what a crash left half done.
    pub async fn start(config: EngineConfig, pools: Vec<Pool>, store: Store) -> Result<Self> {
        let engine = Self::with(Core::new(config, pools, store, Vec::new()));
        let core = &engine.core;
        adopt::all(core).await?;
        sweep::spawn(core);
        Ok(engine)
    }

    pub(crate) fn with(core: Core) -> Self {
        let end = Arc::new(core.closing.clone().drop_guard());
        Self { core: Arc::new(core), _end: end }
    }

    /// Stops taking calls and waits for what is in flight. Sandboxes go on.
    pub async fn shutdown(&self) {
        self.core.closing.cancel();
        self.core.tasks.close();
        let finished = tokio::time::timeout(SHUTDOWN_MAX, self.core.tasks.wait()).await;
        if finished.is_err() {
            tracing::warn!("calls in flight did not end in time");
        }
    }

    /// Oldest first, and those destroyed in the last minute. What a pool that does not answer has
    /// is missing.
    pub async fn list(&self, caller: &Caller) -> Result<Listing> {
        self.core.require_open()?;
        let limit = self.core.config.list_timeout;
        let asked = self.core.pools.iter().map(|pool| pool.answers(limit));
        let answers = join_all(asked).await;
        if !answers.contains(&true) {
            return Err(none_answers());
        }
        let now = self.core.now();
        let answered = |cell: &Arc<Cell>| {
            let mut pools = self.core.pools.iter().zip(&answers);
            pools.any(|(pool, answered)| *answered && Arc::ptr_eq(pool, &cell.pool))
        };
        let cells = self.core.registry.of_owner(&caller.owner);
        let shown = cells.iter().filter(|cell| !cell.is_forgotten(now) && answered(cell));
        let unread = |pool: &Arc<PoolState>| !pool.is_adopted();
        Ok(Listing {
            sandboxes: shown.map(|cell| cell.view()).collect(),
            partial: answers.contains(&false) || self.core.pools.iter().any(unread),
        })
    }

    #[expect(clippy::unused_async, reason = "a replica that does not hold the sandbox will ask")]
    pub async fn get(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<Sandbox> {
        Ok(self.core.find(caller, sandbox)?.view())
    }

    /// Whose it is; for somebody who proved by other means than a key that he may use it.
    pub fn owner_of(&self, id: SandboxId) -> Option<OwnerId> {
        let cell = self.core.registry.get(id)?;
        (cell.phase() != Phase::Destroyed).then(|| cell.owner.clone())
    }

    /// Changes name and policy of a live sandbox (ruling 10).
    pub async fn update(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        change: Change,
    ) -> Result<Sandbox> {
        self.ask(caller, sandbox, |reply| Ask::Update(change, reply)).await
    }

    pub async fn start_sandbox(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<Sandbox> {
        self.core.require_credit(caller).await?;
        let quota = self.quota(caller);
        self.ask(caller, sandbox, |reply| Ask::Start(quota, reply)).await
    }

    pub async fn stop(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<Sandbox> {
        self.ask(caller, sandbox, Ask::Stop).await
    }

    pub async fn pause(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<Sandbox> {
        self.ask(caller, sandbox, Ask::Pause).await
    }

    pub async fn resume(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<Sandbox> {
        self.ask(caller, sandbox, Ask::Resume).await
    }

    /// Ends everything of it before it answers (ruling 7).
    pub async fn delete(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<Sandbox> {
        let cell = self.core.find(caller, sandbox)?;
        if cell.phase() == Phase::Destroyed {
            return Ok(cell.view());
        }
        match self.core.ask(&cell, Ask::Delete).await {
            // It was destroyed while we asked.
            Err(Error::NotFound { .. }) if cell.phase() == Phase::Destroyed => Ok(cell.view()),
            other => other,
        }
    }

    /// Tells attached clients to wrap up; does not end the sandbox.
    #[expect(clippy::unused_async, reason = "a replica that does not hold the sandbox will ask")]
    pub async fn cancel(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        reason: CancelReason,
    ) -> Result<Cancelled> {
        let cell = self.core.find_running(caller, sandbox)?;
        let cancelled = cell.activity.notify(Notice::Cancel(reason));
        let data = serde_json::json!({ "reason": reason.as_str(), "cancelled": cancelled });
        let told = self.core.tell(&cell, EventKind::Cancel, data);
        self.core.record(&cell, vec![told]);
        Ok(Cancelled { id: cell.id, cancelled, reason })
    }

    /// Counts the caller as an attached client until the value is dropped.
    #[expect(clippy::unused_async, reason = "a replica that does not hold the sandbox will ask")]
    pub async fn attach(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<Attachment> {
        Ok(Attachment::begin(&self.core.find_running(caller, sandbox)?))
    }

    /// What sandboxes can be made from now, over all pools.
    pub async fn templates(&self) -> Result<Vec<Template>> {
        let read = self.core.pools.iter().map(|pool| self.core.bounded(pool.read_templates()));
        let mut all: Vec<Template> = Vec::new();
        let mut failure = None;
        for read in join_all(read).await {
            match read {
                Err(error) => failure = Some(error),
                Ok(templates) => {
                    all.extend(templates);
                }
            }
        }
        // Of one that several pools have, the first is shown.
        let mut names = HashSet::new();
        all.retain(|template| names.insert(template.name.clone()));
        match failure {
            Some(failure) if all.is_empty() => Err(failure),
            _ => Ok(all),
        }
    }

    /// Removes a template from every pool that has it; sandboxes keep what they stand on.
    pub async fn remove_template(&self, name: &TemplateName) -> Result<()> {
        let mut found = false;
        for pool in &self.core.pools {
            found |= self.core.bounded(pool.driver.remove_template(name)).await?;
            self.core.bounded(pool.read_templates()).await?;
        }
        if found { Ok(()) } else { Err(Error::NotFound { what: "template", id: name.to_string() }) }
    }

    /// What was made for sessions, and is there or on its way out. What a pool that does not answer has is
    /// missing.
    pub fn of_sessions(&self) -> Vec<Sandbox> {
        let all = self.core.registry.all().into_iter().map(|cell| cell.view());
        all.filter(|one| {
            let is_of_one = one.spec.agent.as_ref().is_some_and(|agent| agent.session.is_some());
            is_of_one && one.phase != Phase::Destroyed
        })
        .collect()
    }

    /// Whether what exists in every pool was read: what is not known then does not exist.
    pub fn has_read_all(&self) -> bool {
        self.core.pools.iter().all(|pool| pool.is_adopted())
    }

    /// Changes when a sweep is over: what it found in pools that came back is known then. For who sweeps too.
    pub fn swept(&self) -> watch::Receiver<u64> {
        self.core.swept.subscribe()
    }

    /// Refuses whoever keeps more in workspaces than it may.
    pub async fn admit_workspace(&self, caller: &Caller) -> Result<()> {
        self.core.require_room(&caller.owner, &self.quota(caller)).await
    }

    /// What the caller may have.
    pub fn quota(&self, caller: &Caller) -> Quota {
        caller.quota.over(self.core.config.quota(caller.plan))
    }

    /// Counters for `/metrics`.
    pub fn snapshot(&self) -> Snapshot {
        let counters = &self.core.counters;
        // What is only followed is counted by whoever looks after it.
        let follows = !self.core.views.is_empty();
        let cells = if follows { Vec::new() } else { self.core.registry.all() };
        let count = |phase: Phase| cells.iter().filter(|cell| cell.phase() == phase).count() as u64;
        let unreachable = self.core.pools.iter().filter(|pool| !pool.is_reachable());
        Snapshot {
            phases: PHASES.map(|phase| (phase, count(phase))).to_vec(),
            creates_total: counters.creates.load(Ordering::Relaxed),
            create_failures_total: counters.create_failures.load(Ordering::Relaxed),
            destroys_total: counters.destroys.load(Ordering::Relaxed),
            exits_total: counters.exits(),
            execs_total: counters.execs.load(Ordering::Relaxed),
            pools_unreachable: unreachable.count() as u64,
            pools_without: self.lacking(),
        }
    }

    fn lacking(&self) -> Vec<(&'static str, u64)> {
        let pools = &self.core.pools;
        let count = |has: fn(driver::Capabilities) -> bool| {
            pools.iter().filter(|pool| !has(pool.driver.capabilities())).count() as u64
        };
        vec![
            ("pause", count(|has| has.pause)),
            ("limits", count(|has| has.limits)),
            ("disk_limit", count(|has| has.disk_limit)),
            ("egress", count(|has| has.egress)),
        ]
    }

    async fn ask(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        ask: impl FnOnce(Reply) -> Ask,
    ) -> Result<Sandbox> {
        let cell = self.core.find_live(caller, sandbox)?;
        self.core.ask(&cell, ask).await
    }
}

const PHASES: [Phase; 9] = [
    Phase::Creating,
    Phase::Configuring,
    Phase::Booting,
    Phase::Running,
    Phase::Paused,
    Phase::Stopping,
    Phase::Stopped,
    Phase::Deleting,
    Phase::Destroyed,
];

impl Core {
    /// Asks a sandbox's task and waits for its answer.
    pub(crate) async fn ask<T>(&self, cell: &Cell, ask: impl FnOnce(Reply<T>) -> Ask) -> Result<T> {
        self.require_open()?;
        let (reply, answer) = oneshot::channel();
        let limit = self.config.operation_timeout;
        // The queue is full only while something before us takes long.
        let queued = tokio::time::timeout(limit, cell.queue.send(ask(reply))).await;
        let late = || Error::unavailable("too many calls are waiting for this sandbox");
        if queued.map_err(|_| late())?.is_err() {
            return Err(self.why_no_answer(cell));
        }
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(self.why_no_answer(cell)),
        }
    }

    /// The caller's sandbox, also one that was destroyed a moment ago.
    pub(crate) fn find(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<Arc<Cell>> {
        self.registry.find(caller, sandbox, self.now())
    }

    /// The caller's sandbox, unless it is destroyed (ruling 7).
    pub(crate) fn find_live(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<Arc<Cell>> {
        let cell = self.find(caller, sandbox)?;
        match cell.phase() {
            Phase::Destroyed => Err(Error::no_sandbox(sandbox)),
            _ => Ok(cell),
        }
    }

    /// The caller's sandbox, if it runs (ruling 13).
    pub(crate) fn find_running(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<Arc<Cell>> {
        let cell = self.find_live(caller, sandbox)?;
        match cell.phase() {
            Phase::Running => Ok(cell),
            phase => Err(Error::wrong_state(format!("the sandbox {} is {phase}", cell.id))),
        }
    }

    pub(crate) fn require_open(&self) -> Result<()> {
        if self.closing.is_cancelled() {
            return Err(Error::unavailable("the server is shutting down"));
        }
        Ok(())
    }

    /// For what costs money.
    pub(crate) async fn require_credit(&self, caller: &Caller) -> Result<()> {
        let credit = &self.config.credit;
        let exempt = caller.plan == Plan::Operator || credit.exempt.contains(&caller.owner);
        if !credit.enforced || exempt || self.store.balance(&caller.owner).await?.has_credit() {
            return Ok(());
        }
        Err(Error::NoCredit { detail: "there is no credit left; top it up first".into() })
    }

    /// For what keeps more in workspaces.
    pub(crate) async fn require_room(&self, owner: &OwnerId, quota: &Quota) -> Result<()> {
        if quota.workspace_gib_max.is_none() {
            return Ok(());
        }
        let used = self.store.workspace_bytes(owner).await?;
        quota.admit_workspace(used, 0).map_err(no_room)
    }

    fn why_no_answer(&self, cell: &Cell) -> Error {
        if cell.phase() == Phase::Destroyed {
            return Error::no_sandbox(cell.id);
        }
        match self.require_open() {
            Err(closing) => closing,
            Ok(()) => Error::Internal(anyhow::anyhow!("the task of {} has ended", cell.id)),
        }
    }
}

fn no_room(detail: String) -> Error {
    Error::Exhausted { detail, retry_after: NO_ROOM_RETRY }
}

/// `now` as a wait of the clock can be told.
pub(crate) fn later(now: Timestamp, by: Duration) -> Result<Timestamp> {
    Ok(now.checked_add(by).context("add to the time")?)
}
