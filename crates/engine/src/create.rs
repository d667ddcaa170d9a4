//! `create`: reserve, claim and launch at once, undo on any failure, and answer the same request
//! with the same sandbox (ruling 20).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use model::{Conflict, Error, NewSandbox, OwnerId, Phase, Result, SandboxId, SandboxSpec};
use serde::{Deserialize, Serialize};
use store::{Remembered, Request};
use tokio::sync::{oneshot, watch};

use crate::agents;
use crate::machine::{self, First, LaunchOrder};
use crate::registry::State;
use crate::resolve::{Resolved, resolve};
use crate::{Caller, Created, Engine, Idempotency, Sandbox};

/// Names tried before giving up; there are 30 million.
const NAMES_TRIED: usize = 8;
/// How long a request is remembered (DESIGN 2.2).
const REMEMBERED_FOR: SignedDuration = SignedDuration::from_hours(24);

type RequestKey = (OwnerId, String);

/// Creates under way, by idempotency key.
#[derive(Clone, Default)]
pub(crate) struct InProgress(Arc<Mutex<HashMap<RequestKey, Ongoing>>>);

struct Ongoing {
    body_sha256: [u8; 32],
    /// Closed when it is finished, one way or the other.
    finished: watch::Receiver<()>,
}

/// Held by the one create that works on a key.
pub(crate) struct Turn {
    all: InProgress,
    key: RequestKey,
    _finished: watch::Sender<()>,
}

enum Entry {
    Mine(Turn),
    /// Another create with the same key was under way and has finished now.
    Waited,
}

/// A claim on an idempotency key, to be written with the rest of a launch.
pub(crate) struct RequestClaim {
    pub(crate) key: String,
    pub(crate) body_sha256: [u8; 32],
    pub(crate) times: Remembered,
    /// Others with this key wait until it is dropped.
    pub(crate) _turn: Turn,
}

/// What is remembered of an answer.
#[derive(Serialize, Deserialize)]
struct Answer {
    spec: SandboxSpec,
    #[serde(default)]
    incarnation: Option<String>,
    #[serde(default)]
    started_at: Option<Timestamp>,
    last_activity_at: Timestamp,
    rootfs: String,
    pool: String,
}

impl Engine {
    /// Makes a sandbox and answers when it runs. It is made even if the caller goes away.
    pub async fn create(
        &self,
        caller: &Caller,
        wanted: NewSandbox,
        idempotency: Option<Idempotency>,
    ) -> Result<Created> {
        self.core.counters.count(&self.core.counters.creates);
        let created = match idempotency {
            None => self.launch(caller, &wanted, None).await,
            Some(request) => self.create_once(caller, &wanted, request).await,
        };
        if created.is_err() {
            self.core.counters.count(&self.core.counters.create_failures);
        }
        created
    }

    /// Refuses what [`Engine::create`] would refuse once `going` have gone; for who gives something up
    /// before it. Nothing is reserved: who comes in between takes the place.
    pub async fn require_place(
        &self,
        caller: &Caller,
        wanted: &NewSandbox,
        going: &BTreeSet<SandboxId>,
    ) -> Result<()> {
        let spec = self.check(caller, wanted).await?.spec;
        let (quota, now) = (self.quota(caller), self.core.now());
        self.core.registry.would_admit(&spec, going, &quota, now)
    }

    async fn create_once(
        &self,
        caller: &Caller,
        wanted: &NewSandbox,
        request: Idempotency,
    ) -> Result<Created> {
        let turn = loop {
            match self.core.in_progress.enter(&caller.owner, &request).await? {
                Entry::Mine(turn) => break turn,
                Entry::Waited => {}
            }
        };
        let now = self.core.now();
        let Some(known) = self.remembered(&caller.owner, &request.key).await? else {
            let claim = RequestClaim {
                key: request.key,
                body_sha256: request.body_sha256,
                times: Remembered { from: now, until: now + REMEMBERED_FOR },
                _turn: turn,
            };
            return self.launch(caller, wanted, Some(claim)).await;
        };
        if known.body_sha256 != request.body_sha256 {
            return Err(mismatch(&request.key));
        }
        let alive = self.core.registry.get(known.sandbox).map(|cell| cell.view());
        let alive = alive.filter(|sandbox| sandbox.phase != Phase::Destroyed);
        let sandbox = alive.map_or_else(|| recall(&known.answer), Ok)?;
        Ok(Created { sandbox, replayed: true })
    }

    /// What was answered with this key. A create that a crash cut off was settled or undone when this
    /// engine began, but its writes may still wait in the queue: what is not done is read again behind
    /// them, or its answer would name a sandbox that never was.
    async fn remembered(&self, owner: &OwnerId, key: &str) -> Result<Option<Request>> {
        let store = &self.core.store;
        let known = store.request(owner, key, self.core.now()).await?;
        let Some(unfinished) = known.as_ref().filter(|known| !known.done) else {
            return Ok(known);
        };
        store.apply(owner.clone(), unfinished.sandbox, Vec::new()).await?;
        store.request(owner, key, self.core.now()).await
    }

    async fn launch(
        &self,
        caller: &Caller,
        wanted: &NewSandbox,
        mut request: Option<RequestClaim>,
    ) -> Result<Created> {
        let mut resolved = self.check(caller, wanted).await?;
        // A name that a removed sandbox gave up may still be its own in the store.
        self.core.pay().await;
        for _ in 0..NAMES_TRIED {
            match self.try_launch(caller, (wanted, &resolved), &mut request).await {
                Err(Error::Conflict { code: Conflict::NameTaken, .. }) if wanted.name.is_none() => {
                    resolved.spec.name = model::Name::generate();
                    resolved.spec.id = SandboxId::generate();
                }
                Err(failure) => return Err(failure),
                Ok(sandbox) => return Ok(Created { sandbox, replayed: false }),
            }
        }
        Err(Error::unavailable("no free name was found; name the sandbox yourself"))
    }

    /// What refuses it before anything is made, but for the share of the quota that it takes then.
    async fn check(&self, caller: &Caller, wanted: &NewSandbox) -> Result<Resolved> {
        self.core.require_open()?;
        self.core.require_credit(caller).await?;
        let resolved = resolve(&self.core, caller, wanted).await?;
        if wanted.workspace.is_some() {
            self.core.require_room(&caller.owner, &self.quota(caller)).await?;
        }
        Ok(resolved)
    }

    pub(crate) async fn try_launch(
        &self,
        caller: &Caller,
        (wanted, resolved): (&NewSandbox, &Resolved),
        request: &mut Option<RequestClaim>,
    ) -> Result<Sandbox> {
        let mut spec = resolved.spec.clone();
        // A sandbox that waits has its id already.
        let driver = &resolved.pool.driver;
        let waits = match &spec.agent {
            None => driver.take_warm(&spec.template, spec.tier),
            // What waits was made without what an agent needs.
            Some(_) => None,
        };
        if let Some(id) = waits {
            spec.id = id;
        }
        let state = first_state(&spec, &resolved.rootfs);
        let (cell, machine) = machine::make(&self.core, state, Arc::clone(&resolved.pool));
        let quota = self.quota(caller);
        let reserved = self.core.registry.reserve(&cell, &quota, self.core.now());
        if let (Err(_), Some(id)) = (&reserved, waits) {
            driver.return_warm(id);
        }
        reserved?;
        let (reply, answer) = oneshot::channel();
        let order = LaunchOrder {
            spec,
            policy: resolved.policy.clone(),
            agent: wanted.agent.as_ref().map(|agent| agent.sealed.clone()),
            request: request.take(),
            reply,
        };
        machine.spawn(First::Launch(Box::new(order)));
        let answered = answer.await.context("wait for the launch")?;
        answered.map_err(|(failure, unused)| {
            *request = unused;
            failure
        })
    }
}

impl InProgress {
    async fn enter(&self, owner: &OwnerId, request: &Idempotency) -> Result<Entry> {
        let key = (owner.clone(), request.key.clone());
        let mut finished = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match all.get(&key) {
                Some(ongoing) if ongoing.body_sha256 != request.body_sha256 => {
                    return Err(mismatch(&request.key));
                }
                Some(ongoing) => ongoing.finished.clone(),
                None => {
                    let (sender, finished) = watch::channel(());
                    let ongoing = Ongoing { body_sha256: request.body_sha256, finished };
                    all.insert(key.clone(), ongoing);
                    return Ok(Entry::Mine(Turn { all: self.clone(), key, _finished: sender }));
                }
            }
        };
        // Nothing is ever sent: this returns when the sender is dropped.
        let _ = finished.changed().await;
        Ok(Entry::Waited)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// What is remembered of a sandbox that was just made, or is about to be.
pub(crate) fn remember(sandbox: &Sandbox) -> Result<String> {
    // No answer shows the environment, and a stolen database must not either.
    let spec = SandboxSpec { env: BTreeMap::new(), ..sandbox.spec.clone() };
    let answer = Answer {
        spec,
        incarnation: sandbox.incarnation.clone(),
        started_at: sandbox.started_at,
        last_activity_at: sandbox.last_activity_at,
        rootfs: sandbox.rootfs.clone(),
        pool: sandbox.pool.clone(),
    };
    Ok(serde_json::to_string(&answer).context("write an answer")?)
}

fn recall(text: &str) -> Result<Sandbox> {
    let answer: Answer = serde_json::from_str(text).context("read a remembered answer")?;
    Ok(Sandbox {
        deadline: model::reaper::deadline(answer.spec.clocks, answer.spec.created_at),
        agent: agents::status(&answer.spec, None),
        spec: answer.spec,
        phase: Phase::Running,
        generation: 0,
        incarnation: answer.incarnation,
        started_at: answer.started_at,
        last_activity_at: answer.last_activity_at,
        end_reason: None,
        rootfs: answer.rootfs,
        pool: answer.pool,
    })
}

fn first_state(spec: &SandboxSpec, rootfs: &Arc<str>) -> State {
    State {
        spec: Arc::new(spec.clone()),
        phase: Phase::Creating,
        generation: 1,
        incarnation: None,
        started_at: None,
        end_reason: None,
        destroyed_at: None,
        rootfs: Arc::clone(rootfs),
        guest: None,
    }
}

fn mismatch(key: &str) -> Error {
    let detail = format!("the Idempotency-Key {key:?} was used for another request");
    Error::IdempotencyMismatch { detail }
}
