//! What the store has of sandboxes that do not exist: claims without one, and compute that nobody saw end.

use std::collections::{HashMap, HashSet};

use model::{EndReason, Event, EventKind, Phase, Result, SandboxId};
use store::{Change, LegEnd, NameClaim, Transition};

use crate::core::Core;

/// Claims whose sandbox does not exist any more, and legs that nobody saw end. Nothing while a pool
/// was not read: what it has is claimed too.
pub(crate) async fn drop_all(core: &Core) -> Result<()> {
    if !core.pools.iter().all(|pool| pool.is_adopted()) {
        return Ok(());
    }
    // Read before looking at what lives: a sandbox made meanwhile is in the registry before its
    // claims are in the store.
    let names = core.store.names().await?;
    let unfinished = core.store.unfinished_requests().await?;
    let legs = core.store.open_legs().await?;
    let all = core.registry.all().into_iter().filter(|cell| cell.phase() != Phase::Destroyed);
    let live: HashMap<SandboxId, _> = all.map(|cell| (cell.id, cell)).collect();
    for claim in names.into_iter().filter(|claim| !live.contains_key(&claim.sandbox)) {
        let mut changes = vec![Change::Release];
        // Whoever was told that it exists is told that it does not.
        changes.extend(claim.ready.then(|| lost(core, &claim)));
        drop(core.store.apply(claim.owner, claim.sandbox, changes));
    }
    let mut undone = HashSet::new();
    for request in unfinished.into_iter().filter(|r| !live.contains_key(&r.sandbox)) {
        if undone.insert(request.sandbox) {
            drop(core.store.apply(request.owner, request.sandbox, vec![Change::Unclaim]));
        }
    }
    for leg in legs {
        let cell = live.get(&leg.sandbox);
        let state = cell.map(|cell| cell.state.borrow().clone());
        let runs = state.as_ref().and_then(|state| state.incarnation.as_deref());
        if runs != Some(leg.incarnation.as_str()) {
            let mut changes = Vec::new();
            if let (Some(cell), Some(state)) = (cell, &state)
                && state.phase == Phase::Stopped
            {
                // The machine went down, and with it what the driver knew of this life.
                let (life, reason) = (Some(leg.incarnation.as_str()), state.end_reason);
                changes.push(core.tell_once(cell, EventKind::Stopped, life, reason));
            }
            // When it ended nobody knows; so nothing is paid for beyond what was counted.
            let (incarnation, ended_at) = (leg.incarnation, leg.counted_until);
            changes.push(Change::EndLeg(LegEnd { incarnation, ended_at, cpu_usec: 0 }));
            drop(core.store.apply(leg.owner, leg.sandbox, changes));
        }
    }
    Ok(())
}

/// A sandbox that was there and of which nothing is left, not even how it ended.
fn lost(core: &Core, claim: &NameClaim) -> Change {
    let event = Event {
        owner: claim.owner.clone(),
        sandbox: claim.sandbox,
        kind: EventKind::Destroyed,
        reason: Some(EndReason::Unknown),
        at: core.now(),
        data: serde_json::Value::Null,
    };
    Change::Tell(event, Transition(EventKind::Destroyed.name()))
}
