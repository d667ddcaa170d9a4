//! What sandboxes use, told to the store every minute or so, and what happens when nobody pays for it any more.
//!
//! The store counts; here is only asked what the host's counters say. A count that is missed is made up by
//! the next one, or by the end of the leg.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use model::{EndReason, OwnerId, Phase};
use store::{Change, Metered};

use crate::core::Core;
use crate::engine::later;
use crate::machine::Ask;
use crate::registry::Cell;
use crate::sweep::report;

/// Sandboxes that are asked at once.
const AT_ONCE: usize = 64;

/// Whether credit is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Credit {
    /// Without credit nothing starts, and what runs ends.
    pub enforced: bool,
    /// Who needs none.
    pub exempt: Vec<OwnerId>,
}

pub(crate) async fn run(core: Arc<Core>) {
    loop {
        let Ok(next) = later(core.now(), core.config.meter_every) else { return };
        let sleep = core.config.clock.sleep_until(next);
        if core.closing.run_until_cancelled(sleep).await.is_none() {
            return;
        }
        // One pool that does not answer must not hold up the count of the others.
        let counts: Vec<_> =
            core.registry.all().into_iter().map(|cell| meter(&core, cell)).collect();
        stream::iter(counts).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
        if core.config.credit.enforced {
            end_without_credit(&core).await;
        }
    }
}

async fn meter(core: &Core, cell: Arc<Cell>) {
    let incarnation = {
        let state = cell.state.borrow();
        let runs = matches!(state.phase, Phase::Running | Phase::Paused);
        state.incarnation.clone().filter(|_| runs)
    };
    let Some(incarnation) = incarnation else { return };
    let cpu_usec = core.bounded(cell.pool.driver.cpu_usec(cell.id)).await;
    // Of a sandbox that has just ended, or of a pool that does not answer: time counts all the same.
    let cpu_usec = cpu_usec.unwrap_or(0);
    let metered = Metered { incarnation: incarnation.to_string(), at: core.now(), cpu_usec };
    core.record(&cell, vec![Change::Meter(metered)]);
}

async fn end_without_credit(core: &Core) {
    if let Err(failure) = core.store.settled().await {
        return report("count what sandboxes use", failure);
    }
    let spent = match core.store.spent_owners().await {
        Ok(spent) => spent,
        Err(failure) => return report("look for owners without credit", failure),
    };
    for owner in spent.iter().filter(|owner| !core.config.credit.exempt.contains(owner)) {
        for cell in core.registry.of_owner(owner) {
            if !matches!(cell.phase(), Phase::Running | Phase::Paused) {
                continue;
            }
            // It tells who is attached. A full queue means that it is busy: the next minute asks again.
            let _ = cell.queue.try_send(Ask::End(EndReason::CreditsExhausted));
        }
    }
}
