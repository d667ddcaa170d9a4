//! A start of the engine: every sandbox that exists gets its task again, what a crash left half done
//! is finished or undone, and claims without a sandbox are dropped.
//!
//! A create answers only when its sandbox runs and its claims are durable. So what has no claim, or
//! one that is not `ready`, was never answered; it is removed unless it runs and is claimed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use driver::Observed;
use futures_util::future::join_all;
use jiff::SignedDuration;
use model::{EndReason, EventKind, Phase, Result, SandboxId, Shape, Tier};
use store::{Change, Leg, LegEnd, NameClaim};

use crate::core::{Core, TOMBSTONE_FOR};
use crate::machine::{self, First};
use crate::pool::PoolState;
use crate::registry::{Cell, State};
use crate::resolve;
use crate::sweep::{older_than, report};

/// A sandbox without a claim that is older than this was not left by a crash: the database is older
/// than the sandbox (a backup, a new file), and the sandbox is taken in.
const UNCLAIMED_IS_NEW_FOR: SignedDuration = SignedDuration::from_mins(10);

/// What the store knows of one sandbox.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    Ready,
    Unready,
    None,
}

type Claims = HashMap<SandboxId, NameClaim>;

/// Adopts every pool that answers. A pool that does not is adopted by a later sweep.
pub(crate) async fn all(core: &Arc<Core>) -> Result<()> {
    let adopted = core.pools.iter().map(|each| pool(core, each));
    for failure in join_all(adopted).await.into_iter().filter_map(Result::err) {
        report("adopt a pool", failure);
    }
    drop_orphaned_claims(core).await
}

/// Takes in what one pool has.
pub(crate) async fn pool(core: &Arc<Core>, pool: &Arc<PoolState>) -> Result<()> {
    let observed = core.bounded(pool.driver.list()).await?;
    if let Err(failure) = core.bounded(pool.read_templates()).await {
        report("read the templates", failure);
    }
    let claims: Claims =
        core.store.names().await?.into_iter().map(|claim| (claim.sandbox, claim)).collect();
    for sandbox in observed {
        if core.registry.get(sandbox.spec.id).is_none() {
            adopt(core, pool, sandbox, &claims).await?;
        }
    }
    pool.set_adopted();
    Ok(())
}

async fn adopt(
    core: &Arc<Core>,
    pool: &Arc<PoolState>,
    observed: Observed,
    claims: &Claims,
) -> Result<()> {
    let claim = match claims.get(&observed.spec.id) {
        Some(claim) if claim.ready => Claim::Ready,
        Some(_) => Claim::Unready,
        None => Claim::None,
    };
    let template = pool.template(&observed.spec.template).await.ok().flatten();
    let rootfs = resolve::rootfs(&observed.spec.template, template.as_ref());
    if observed.tombstone.is_some() {
        adopt_tombstone(core, pool, observed, rootfs);
        return Ok(());
    }
    let (first, why) = first(core, &observed, claim);
    let observed = Observed { end_reason: why.or(observed.end_reason), ..observed };
    let state = state_of(core, pool, &observed, (&first, rootfs));
    let (cell, machine) = machine::make(core, state, Arc::clone(pool));
    let counted = matches!(cell.phase(), Phase::Running | Phase::Paused | Phase::Creating);
    core.registry.adopt(&cell);
    if counted {
        core.registry.count_anyway(&cell);
    }
    if matches!(cell.phase(), Phase::Running | Phase::Paused) {
        cell.activity.touch();
    }
    let changes = changes(core, &cell, &observed, claim);
    if !changes.is_empty() {
        // Writes keep their order, so nothing that the task writes can come before.
        core.record(&cell, changes);
    }
    machine.spawn(first);
    Ok(())
}

/// What is left to do about a sandbox, and the reason if it is to end.
fn first(core: &Core, observed: &Observed, claim: Claim) -> (First, Option<EndReason>) {
    let is_new = !older_than(core.now(), observed.spec.created_at, UNCLAIMED_IS_NEW_FOR);
    let runs = matches!(observed.phase, Phase::Running | Phase::Paused);
    let never_answered = match claim {
        Claim::Ready => false,
        Claim::Unready => !runs,
        Claim::None => is_new,
    };
    if never_answered {
        return (First::FinishDelete, Some(EndReason::CreateFailed));
    }
    match observed.phase {
        Phase::Running | Phase::Paused => (First::Adopted, None),
        Phase::Creating | Phase::Configuring | Phase::Booting => (First::FinishStart, None),
        Phase::Stopping => (First::FinishStop, None),
        Phase::Stopped => match died(observed) {
            Some(reason) => (First::FinishDelete, Some(reason)),
            None => (First::Adopted, None),
        },
        Phase::Deleting | Phase::Destroyed => {
            (First::FinishDelete, Some(observed.end_reason.unwrap_or(EndReason::UserRequest)))
        }
    }
}

/// The compute of an ephemeral template sandbox ended while nobody looked (ruling 12).
fn died(observed: &Observed) -> Option<EndReason> {
    if observed.spec.shape != Shape::Template || observed.spec.tier != Tier::Ephemeral {
        return None;
    }
    match observed.end_reason.unwrap_or(EndReason::Unknown) {
        EndReason::UserRequest
        | EndReason::Idle
        | EndReason::Deadline
        | EndReason::Lifetime
        | EndReason::CreditsExhausted
        | EndReason::AdminAction => None,
        reason @ (EndReason::Oom
        | EndReason::Exited
        | EndReason::HostLost
        | EndReason::CreateFailed
        | EndReason::Unknown) => Some(reason),
    }
}

fn state_of(
    core: &Core,
    pool: &PoolState,
    observed: &Observed,
    (first, rootfs): (&First, Arc<str>),
) -> State {
    let phase = match first {
        // What a launch goes through; the task goes on from its beginning.
        First::FinishStart => Phase::Creating,
        First::FinishDelete => Phase::Deleting,
        First::FinishStop => Phase::Stopping,
        First::Adopted | First::Launch(_) => observed.phase,
    };
    let runs = matches!(phase, Phase::Running | Phase::Paused);
    State {
        spec: Arc::new(observed.spec.clone()),
        phase,
        generation: 1,
        incarnation: observed.incarnation.as_deref().map(Arc::from),
        started_at: observed.started_at.or_else(|| runs.then(|| core.now())),
        end_reason: observed.end_reason.filter(|_| !runs),
        destroyed_at: None,
        rootfs,
        guest: pool.driver.guest(observed.spec.id).ok().filter(|_| runs),
    }
}

/// What the store must hear about a sandbox that is taken in.
fn changes(core: &Core, cell: &Cell, observed: &Observed, claim: Claim) -> Vec<Change> {
    let mut changes = Vec::new();
    if cell.phase() == Phase::Deleting {
        if cell.state.borrow().end_reason == Some(EndReason::CreateFailed) {
            changes.push(Change::Unclaim);
            let reason = Some(EndReason::CreateFailed);
            changes.push(core.tell_once(cell, EventKind::CreateFailed, None, reason));
        }
        return changes;
    }
    if claim == Claim::None {
        // By itself: when another has the name, the rest still holds.
        core.record(cell, vec![Change::ClaimName(observed.spec.name.clone())]);
    }
    if claim != Claim::Ready {
        changes.push(Change::Settle { answer: None });
    }
    if let Some(incarnation) = observed.incarnation.clone() {
        let started_at = observed.started_at.unwrap_or_else(|| core.now());
        changes.push(Change::BeginLeg(Leg { incarnation, started_at }));
    }
    changes
}

fn adopt_tombstone(core: &Arc<Core>, pool: &Arc<PoolState>, observed: Observed, rootfs: Arc<str>) {
    let Some(tombstone) = observed.tombstone else { return };
    let shown_for = SignedDuration::try_from(TOMBSTONE_FOR).unwrap_or_default();
    let old = older_than(core.now(), tombstone.destroyed_at, shown_for);
    if old || tombstone.end_reason == EndReason::CreateFailed {
        return;
    }
    let state = State {
        rootfs,
        spec: Arc::new(observed.spec),
        phase: Phase::Destroyed,
        generation: 1,
        incarnation: None,
        started_at: None,
        end_reason: Some(tombstone.end_reason),
        destroyed_at: Some(tombstone.destroyed_at),
        guest: None,
    };
    let (cell, _) = machine::make(core, state, Arc::clone(pool));
    core.registry.adopt(&cell);
    let reason = Some(tombstone.end_reason);
    let destroyed = core.tell_once(&cell, EventKind::Destroyed, None, reason);
    core.record(&cell, vec![Change::Release, destroyed]);
}

/// Claims whose sandbox does not exist any more, and legs that nobody saw end. Nothing while a pool
/// was not read: what it has is claimed too.
pub(crate) async fn drop_orphaned_claims(core: &Core) -> Result<()> {
    if !core.pools.iter().all(|pool| pool.is_adopted()) {
        return Ok(());
    }
    // Read before looking at what lives: a sandbox made meanwhile is in the registry before its
    // claims are in the store.
    let names = core.store.names().await?;
    let unfinished = core.store.unfinished_requests().await?;
    let legs = core.store.open_legs().await?;
    let live: HashMap<SandboxId, Option<Arc<str>>> = core
        .registry
        .all()
        .into_iter()
        .filter(|cell| cell.phase() != Phase::Destroyed)
        .map(|cell| (cell.id, cell.state.borrow().incarnation.clone()))
        .collect();
    for claim in names.into_iter().filter(|claim| !live.contains_key(&claim.sandbox)) {
        drop(core.store.apply(claim.owner, claim.sandbox, vec![Change::Release]));
    }
    let mut undone = HashSet::new();
    for request in unfinished.into_iter().filter(|r| !live.contains_key(&r.sandbox)) {
        if undone.insert(request.sandbox) {
            drop(core.store.apply(request.owner, request.sandbox, vec![Change::Unclaim]));
        }
    }
    for leg in legs {
        let runs = live.get(&leg.sandbox).and_then(|incarnation| incarnation.as_deref());
        if runs != Some(leg.incarnation.as_str()) {
            let (incarnation, ended_at) = (leg.incarnation, core.now());
            let end = LegEnd { incarnation, ended_at, cpu_usec: 0 };
            drop(core.store.apply(leg.owner, leg.sandbox, vec![Change::EndLeg(end)]));
        }
    }
    Ok(())
}
