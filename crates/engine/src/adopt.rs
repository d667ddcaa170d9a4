//! A start of the engine: every sandbox that exists gets its task again, what a crash left half done
//! is finished or undone, and claims without a sandbox are dropped.
//!
//! A create answers only when its sandbox runs and its claims are durable. So what has no claim, or
//! one that is not `ready`, was never answered; it is removed unless it runs and is claimed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use driver::{Ended, Observed};
use futures_util::future::join_all;
use jiff::SignedDuration;
use model::{EndReason, EventKind, Phase, Result, SandboxId, Shape, Tier};
use store::{Change, Leg, LegEnd, NameClaim, Transition};

use crate::core::{Core, TOMBSTONE_FOR};
use crate::exec_stream;
use crate::machine::{self, First};
use crate::orphans;
use crate::pool::PoolState;
use crate::registry::{Cell, State};
use crate::resolve;
use crate::sweep::{older_than, report};

/// A sandbox without a claim that is older than this was not left by a crash: the database is older
/// than the sandbox (a backup, a new file), and the sandbox is taken in.
const UNCLAIMED_IS_NEW_FOR: SignedDuration = SignedDuration::from_mins(10);

/// How far back what was not written down is made good; the events of before are forgotten.
const MENDED_FOR: SignedDuration = SignedDuration::from_hours(24);

/// What the store knows of one sandbox.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    Ready,
    Unready,
    None,
}

/// What the store knows of all of them.
struct Known {
    claims: HashMap<SandboxId, NameClaim>,
    /// What ran of those whose end was told, and was seen to end.
    ended: HashSet<(SandboxId, String)>,
    /// Those whose create was not finished.
    unfinished: HashSet<SandboxId>,
}

/// Adopts every pool that answers. A pool that does not is adopted by a later sweep.
pub(crate) async fn all(core: &Arc<Core>) -> Result<()> {
    let adopted = core.pools.iter().map(|each| pool(core, each));
    for failure in join_all(adopted).await.into_iter().filter_map(Result::err) {
        report("adopt a pool", failure);
    }
    orphans::drop_all(core).await?;
    // What that wrote is read by the first calls: one that tries a create again must find its key free.
    if let Err(failure) = core.store.settled().await {
        report("write down what was adopted", failure);
    }
    Ok(())
}

/// Takes in what one pool has.
pub(crate) async fn pool(core: &Arc<Core>, pool: &Arc<PoolState>) -> Result<()> {
    let observed = core.bounded(pool.driver.list()).await?;
    if let Err(failure) = core.bounded(pool.read_templates()).await {
        report("read the templates", failure);
    }
    let known = Known::read(core, &observed).await?;
    for sandbox in observed {
        if core.registry.get(sandbox.spec.id).is_none() {
            adopt(core, pool, sandbox, &known).await?;
        }
    }
    pool.set_adopted();
    Ok(())
}

impl Known {
    async fn read(core: &Core, observed: &[Observed]) -> Result<Self> {
        let claims = core.store.names().await?;
        let tombstones = observed.iter().filter_map(|one| one.tombstone.as_ref());
        let ended = match tombstones.map(|tombstone| tombstone.destroyed_at).min() {
            // The store heard of it after the disk had it.
            Some(first) => {
                let destroyed = Transition(EventKind::Destroyed.name());
                core.store.ended_legs_of_told(destroyed, first).await?
            }
            None => HashSet::new(),
        };
        let unfinished = core.store.unfinished_requests().await?;
        let unfinished = unfinished.into_iter().map(|request| request.sandbox).collect();
        let claims = claims.into_iter().map(|claim| (claim.sandbox, claim)).collect();
        Ok(Self { claims, ended, unfinished })
    }

    /// Whether all that a tombstone tells is written. That its end was told says nothing of what came before: a
    /// write that was refused may be owed, and lost with the server, while a later one was taken.
    fn has_all_of(&self, observed: &Observed) -> bool {
        let id = observed.spec.id;
        let ended = observed.ended.as_ref().map(|ended| (id, ended.incarnation.clone()));
        ended.is_some_and(|last| self.ended.contains(&last))
            && !self.claims.contains_key(&id)
            && !self.unfinished.contains(&id)
    }
}

async fn adopt(
    core: &Arc<Core>,
    pool: &Arc<PoolState>,
    observed: Observed,
    known: &Known,
) -> Result<()> {
    let claim = match known.claims.get(&observed.spec.id) {
        Some(claim) if claim.ready => Claim::Ready,
        Some(_) => Claim::Unready,
        None => Claim::None,
    };
    let rootfs = rootfs(pool, &observed).await;
    if observed.tombstone.is_some() {
        let is_written = known.has_all_of(&observed);
        adopt_tombstone(core, pool, &observed, (rootfs, is_written));
        return Ok(());
    }
    let (first, why) = first(core, &observed, claim);
    let observed = Observed { end_reason: why.or(observed.end_reason), ..observed };
    let state = state_of(core, pool, &observed, (&first, rootfs));
    let (cell, machine) = machine::make(core, state, Arc::clone(pool));
    let counted = matches!(cell.phase(), Phase::Running | Phase::Paused | Phase::Creating);
    core.registry.adopt(&cell);
    if observed.end_reason == Some(EndReason::CreateFailed) {
        // Nobody was told of it, so it is in nobody's way.
        core.registry.free_name(&cell, &observed.spec.name);
    }
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
    exec_stream::recall(core, &cell);
    Ok(())
}

/// What is left to do about a sandbox, and the reason if it is to end.
fn first(core: &Core, observed: &Observed, claim: Claim) -> (First, Option<EndReason>) {
    let is_new = !older_than(core.now(), observed.spec.created_at, UNCLAIMED_IS_NEW_FOR);
    let runs = matches!(observed.phase, Phase::Running | Phase::Paused);
    // Answers are given before the claim is made final: one that was whole may have been answered, even
    // if its compute has ended since. One whose guest never said a word was not.
    let has_run = observed.ended.is_some() && observed.greeted;
    let was_whole = runs || (observed.phase == Phase::Stopped && has_run);
    let never_answered = match claim {
        Claim::Ready => false,
        Claim::Unready => !was_whole,
        Claim::None => is_new,
    };
    if never_answered {
        return (First::FinishDelete, Some(EndReason::CreateFailed));
    }
    if observed.spec.payer.is_some() && observed.phase != Phase::Deleting {
        // The call that it served went with its server.
        return (First::FinishDelete, Some(EndReason::Unknown));
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
        } else {
            if claim == Claim::Unready {
                changes.push(Change::Settle { answer: None });
            }
            changes.extend(mend_ended(core, cell, observed, false));
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
        changes.push(mend_begin(core, cell, leg(cell, incarnation, started_at)));
    }
    changes.extend(mend_ended(core, cell, observed, true));
    changes
}

fn leg(cell: &Cell, incarnation: String, started_at: jiff::Timestamp) -> Leg {
    let spec = Arc::clone(&cell.state.borrow().spec);
    let (limits, payer) = (spec.limits, spec.payer.clone());
    Leg { incarnation, started_at, payer, memory_mib: limits.memory_mib, disk_gb: limits.disk_gb }
}

/// The leg of compute, and that it began, unless both were written down.
fn mend_begin(core: &Core, cell: &Cell, leg: Leg) -> Change {
    let running = core.tell_once(cell, EventKind::Running, Some(&leg.incarnation), None);
    match running {
        Change::Tell(event, transition) => Change::MendBegin(leg, event, transition),
        other => other,
    }
}

/// The last compute of a sandbox, as far as nobody wrote it down: that it began, what it used, and,
/// where the sandbox is kept, that it stopped.
fn mend_ended(core: &Core, cell: &Cell, observed: &Observed, is_kept: bool) -> Vec<Change> {
    let Some(ended) = observed.ended.clone() else { return Vec::new() };
    // What is old was written down, and may have been forgotten since.
    if observed.incarnation.is_some() || older_than(core.now(), ended.ended_at, MENDED_FOR) {
        return Vec::new();
    }
    let Ended { incarnation, started_at, ended_at, cpu_usec } = ended;
    let begun = mend_begin(core, cell, leg(cell, incarnation.clone(), started_at));
    let reason = observed.end_reason;
    let stopped = core.tell_once(cell, EventKind::Stopped, Some(&incarnation), reason);
    let end = LegEnd { incarnation, ended_at, cpu_usec };
    let ended = match stopped {
        Change::Tell(event, transition) if is_kept => Change::MendEnd(end, event, transition),
        _ => Change::EndLeg(end),
    };
    vec![begun, ended]
}

/// The build that it stands on, which need not be the newest.
async fn rootfs(pool: &PoolState, observed: &Observed) -> Arc<str> {
    let name = &observed.spec.template;
    if let Some(digest) = &observed.digest {
        return Arc::from(format!("{name}@{digest}"));
    }
    let template = pool.template(name).await.ok().flatten();
    resolve::rootfs(name, template.as_ref())
}

fn adopt_tombstone(
    core: &Arc<Core>,
    pool: &Arc<PoolState>,
    observed: &Observed,
    (rootfs, is_written): (Arc<str>, bool),
) {
    let Some(tombstone) = observed.tombstone.clone() else { return };
    if tombstone.end_reason == EndReason::CreateFailed {
        return;
    }
    let state = State {
        rootfs,
        spec: Arc::new(observed.spec.clone()),
        phase: Phase::Destroyed,
        generation: 1,
        incarnation: None,
        started_at: None,
        end_reason: Some(tombstone.end_reason),
        destroyed_at: Some(tombstone.destroyed_at),
        guest: None,
    };
    let (cell, _) = machine::make(core, state, Arc::clone(pool));
    let shown_for = SignedDuration::try_from(TOMBSTONE_FOR).unwrap_or_default();
    if !older_than(core.now(), tombstone.destroyed_at, shown_for) {
        core.registry.adopt(&cell);
    }
    if is_written {
        return;
    }
    // It was answered, so its idempotency key goes on answering.
    let mut changes = vec![Change::Settle { answer: None }, Change::Release];
    changes.extend(mend_ended(core, &cell, observed, false));
    changes.push(core.tell_once(&cell, EventKind::Destroyed, None, Some(tombstone.end_reason)));
    core.record(&cell, changes);
}
