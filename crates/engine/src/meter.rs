//! Metering: what sandboxes that run have used is read from the kernel's counters every minute, written
//! down and charged. Where credit is enforced, what runs ends for owners who have none left.

use std::sync::Arc;

use model::{EndReason, Error, OPERATOR, OwnerId, Phase, Plan, Result};
use store::{Change, LegEnd};

use crate::Caller;
use crate::core::Core;
use crate::engine::later;
use crate::machine::Ask;
use crate::registry::Cell;
use crate::sweep::report;

pub(crate) async fn run(core: Arc<Core>) {
    loop {
        let Ok(next) = later(core.now(), core.config.meter_every) else { return };
        let sleep = core.config.clock.sleep_until(next);
        if core.closing.run_until_cancelled(sleep).await.is_none() {
            return;
        }
        if let Err(failure) = once(&core).await {
            report("meter and charge", failure);
        }
    }
}

async fn once(core: &Core) -> Result<()> {
    for cell in core.registry.all() {
        read(core, &cell).await;
    }
    core.store.charge(core.config.prices, core.now()).await?;
    if core.config.enforce_credit {
        for owner in core.store.owners_without_credit().await? {
            end_all(core, &owner).await;
        }
    }
    Ok(())
}

/// What cannot be read now is read the next time, or at the end.
async fn read(core: &Core, cell: &Cell) {
    if !matches!(cell.phase(), Phase::Running | Phase::Paused) {
        return;
    }
    let incarnation = || cell.state.borrow().incarnation.clone();
    let Some(read) = incarnation() else { return };
    let Ok(usage) = core.bounded(cell.pool.driver.usage(cell.id)).await else { return };
    // Else the counters may be those of the next one.
    if incarnation().is_some_and(|now| now == read) {
        let incarnation = read.to_string();
        let reading = LegEnd { incarnation, ended_at: core.now(), cpu_usec: usage.cpu_usec };
        core.record(cell, vec![Change::Meter(reading)]);
    }
}

async fn end_all(core: &Core, owner: &OwnerId) {
    if owner.as_str() == OPERATOR {
        return;
    }
    for cell in core.registry.of_owner(owner) {
        if matches!(cell.phase(), Phase::Running | Phase::Paused) {
            // A full queue means that it is busy: the next time asks again.
            let _ = cell.queue.try_send(Ask::End(EndReason::CreditsExhausted));
        }
    }
}

/// Refuses what would cost something, where credit is enforced and the caller has none.
pub(crate) async fn require_credit(core: &Core, caller: &Caller) -> Result<()> {
    if !core.config.enforce_credit || caller.plan == Plan::Operator {
        return Ok(());
    }
    if core.store.balance_cents(&caller.owner).await? > 0 {
        return Ok(());
    }
    let detail = "there is no credit left; POST /v1/billing/checkout adds some".to_owned();
    Err(Error::NoCredit { detail })
}
