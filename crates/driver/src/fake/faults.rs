//! Faults and delays, by step.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use model::{Error, Result};

/// The places at which the fake driver can be made to fail or wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Before anything of a new sandbox is made.
    Create,
    /// A spec exists, its disk does not.
    MakeDisk,
    /// A disk exists, its compute does not.
    MakeCompute,
    /// Compute exists and its guest does not answer.
    BootGuest,
    Start,
    Stop,
    Pause,
    Resume,
    Remove,
    /// Nothing runs any more, the disk is still there.
    RemoveDisk,
    Update,
    Maintenance,
    /// Every call that only looks.
    Answer,
}

impl Step {
    /// What `create` goes through, in order.
    pub const OF_CREATE: [Self; 4] =
        [Self::Create, Self::MakeDisk, Self::MakeCompute, Self::BootGuest];
}

#[derive(Default)]
pub(super) struct Faults(Mutex<Plan>);

#[derive(Default)]
struct Plan {
    failures: HashMap<Step, u32>,
    delays: HashMap<Step, Duration>,
    unreachable: bool,
}

impl Faults {
    pub(super) fn fail(&self, step: Step, times: u32) {
        self.plan(|plan| plan.failures.insert(step, times));
    }

    pub(super) fn delay(&self, step: Step, delay: Duration) {
        self.plan(|plan| plan.delays.insert(step, delay));
    }

    pub(super) fn set_reachable(&self, reachable: bool) {
        self.plan(|plan| plan.unreachable = !reachable);
    }

    /// Waits and fails as planned.
    pub(super) async fn at(&self, step: Step) -> Result<()> {
        let (delay, fails, unreachable) = self.plan(|plan| {
            let left = plan.failures.entry(step).or_default();
            let fails = *left > 0;
            *left = left.saturating_sub(1);
            (plan.delays.get(&step).copied(), fails, plan.unreachable)
        });
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        if unreachable {
            return Err(Error::unavailable("the pool does not answer"));
        }
        if fails {
            return Err(anyhow::anyhow!("told to fail at {step:?}").into());
        }
        Ok(())
    }

    fn plan<T>(&self, change: impl FnOnce(&mut Plan) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
