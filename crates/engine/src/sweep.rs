//! The safety net: every 10 s it looks for what timers and exit notices missed, finishes what is
//! unfinished, forgets what is old, and adopts pools that came back.

use std::collections::HashMap;
use std::sync::Arc;

use driver::{Exit, Observed};
use jiff::{SignedDuration, Timestamp};
use model::reaper::decide;
use model::{Error, Phase, Result, SandboxId};
use tokio::sync::mpsc;
use tracing::warn;

use crate::adopt;
use crate::core::Core;
use crate::engine::later;
use crate::machine::Ask;
use crate::meter;
use crate::orphans;
use crate::pool::PoolState;
use crate::registry::Cell;

/// How long events are kept (ruling 21).
const EVENTS_KEPT_FOR: SignedDuration = SignedDuration::from_hours(24);
/// Sweeps between two prunings of the store.
const PRUNE_EVERY: u64 = 60;

/// Starts the sweep, and a listener for the exits of each pool.
pub(crate) fn spawn(core: &Arc<Core>) {
    for pool in &core.pools {
        if let Some(exits) = pool.driver.take_exits() {
            core.tasks.spawn(pass_on_exits(Arc::clone(core), exits));
        }
    }
    core.tasks.spawn(meter::run(Arc::clone(core)));
    core.tasks.spawn(run(Arc::clone(core)));
}

async fn pass_on_exits(core: Arc<Core>, mut exits: mpsc::Receiver<Exit>) {
    while let Some(Some(exit)) = core.closing.run_until_cancelled(exits.recv()).await {
        let Some(cell) = core.registry.get(exit.id) else { continue };
        // A full queue or an ended task: the sweep will see it.
        let _ = cell.queue.try_send(Ask::Exited(exit));
    }
}

async fn run(core: Arc<Core>) {
    for sweep in 0_u64.. {
        let Ok(next) = later(core.now(), core.config.sweep_every) else { return };
        let sleep = core.config.clock.sleep_until(next);
        if core.closing.run_until_cancelled(sleep).await.is_none() {
            return;
        }
        // Not interrupted: what it does is short, or is done in other tasks.
        once(&core).await;
        core.swept.send_modify(|count| *count += 1);
        if sweep % PRUNE_EVERY == 0 {
            let now = core.now();
            if let Err(failure) = core.store.prune(now, now - EVENTS_KEPT_FOR).await {
                report("forget old events", failure);
            }
        }
    }
}

async fn once(core: &Arc<Core>) {
    core.pay().await;
    forget_destroyed(core);
    for pool in &core.pools {
        if !pool.answers(core.config.list_timeout).await {
            continue;
        }
        if !pool.is_adopted()
            && let Err(failure) = adopt_late(core, pool).await
        {
            report("adopt a pool", failure);
            continue;
        }
        compare(core, pool).await;
        if let Err(failure) = core.bounded(pool.driver.collect()).await {
            report("collect what nothing owns", failure);
        }
        if let Err(failure) = core.bounded(pool.read_templates()).await {
            report("read the templates", failure);
        }
    }
}

/// A pool that did not answer when the engine was started.
async fn adopt_late(core: &Arc<Core>, pool: &Arc<PoolState>) -> Result<()> {
    adopt::pool(core, pool).await?;
    orphans::drop_all(core).await
}

fn forget_destroyed(core: &Core) {
    let now = core.now();
    for cell in core.registry.all() {
        if cell.is_forgotten(now) {
            core.registry.remove(cell.id);
        }
    }
}

/// Asks every sandbox whose state does not fit what exists to look for itself.
async fn compare(core: &Core, pool: &Arc<PoolState>) {
    // Taken before the list, so that a sandbox made meanwhile is not taken for a missing one.
    let cells = core.registry.all();
    let seen = match core.bounded(pool.driver.list()).await {
        Ok(seen) => seen,
        Err(failure) => return report("list a pool", failure),
    };
    let seen: HashMap<SandboxId, Observed> =
        seen.into_iter().map(|observed| (observed.spec.id, observed)).collect();
    for cell in cells.iter().filter(|cell| Arc::ptr_eq(&cell.pool, pool)) {
        if cell.phase() == Phase::Running {
            cell.hear_of_use_elsewhere();
        }
        // Its own timer sees to what is due, unless that was missed (ruling 23).
        let is_due = decide(core.now(), &cell.observed(true)).is_some();
        if is_due || needs_a_look(cell, seen.get(&cell.id)) {
            // A full queue means that it is busy: the next sweep asks again.
            let _ = cell.queue.try_send(Ask::Look);
        }
    }
}

fn needs_a_look(cell: &Cell, seen: Option<&Observed>) -> bool {
    let state = cell.state.borrow();
    match state.phase {
        Phase::Running | Phase::Paused => {
            let incarnation = seen.and_then(|seen| seen.incarnation.as_deref());
            incarnation != state.incarnation.as_deref()
        }
        Phase::Stopping | Phase::Deleting => true,
        Phase::Creating
        | Phase::Configuring
        | Phase::Booting
        | Phase::Stopped
        | Phase::Destroyed => false,
    }
}

pub(crate) fn report(what: &str, failure: Error) {
    warn!(error = format!("{:#}", anyhow::Error::from(failure)), "could not {what}");
}

/// Whether something at `at` is older than `age`.
pub(crate) fn older_than(now: Timestamp, at: Timestamp, age: SignedDuration) -> bool {
    now.duration_since(at) >= age
}
