//! One sandbox's task. It owns the phase: nothing else changes it, and it changes it only by
//! [`model::lifecycle::next`].
//!
//! ```text
//!  calls ──► queue (bounded) ─┐
//!  exits, the sweep ──────────┼─► [ one task: one thing at a time ] ──► watch: phase, generation
//!  its own timer ─────────────┘            │           │
//!                                       driver       store
//! ```
//!
//! What takes long (a launch, a stop) is done in the task, so that calls on one sandbox happen one
//! after the other; calls on a running sandbox do not come here at all.

mod change;
mod end;
mod launch;
mod reap;
mod save;

use std::sync::Arc;

use driver::{Exit, Maintenance, Observed};
use jiff::Timestamp;
use model::lifecycle::{Transition, next};
use model::{Change, EndReason, Error, Phase, Policy, Quota, Result, SandboxSpec};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::Sandbox;
use crate::activity::Activity;
use crate::core::Core;
use crate::create::RequestClaim;
use crate::pool::PoolState;
use crate::registry::{Cell, NewCell, State};

/// Calls that may wait for one sandbox.
pub(crate) const QUEUE_MAX: usize = 64;

pub(crate) type Reply<T = Sandbox> = oneshot::Sender<Result<T>>;

/// What others ask of a sandbox's task.
pub(crate) enum Ask {
    Start(Quota, Reply),
    Stop(Reply),
    Pause(Reply),
    Resume(Reply),
    Update(Change, Reply),
    Delete(Reply),
    /// A guest over the workspace of the stopped sandbox.
    Maintain(Reply<Maintained>),
    /// Whoever decided it wants no answer.
    End(EndReason),
    Exited(Exit),
    /// The sweep saw that its compute may be gone, or that something is unfinished.
    Look,
}

/// What a sandbox's task begins with.
pub(crate) enum First {
    Launch(Box<LaunchOrder>),
    /// It is as the driver said; a fresh start of the engine told so.
    Adopted,
    FinishStart,
    FinishStop,
    /// For the reason that its state has.
    FinishDelete,
}

pub(crate) struct LaunchOrder {
    pub(crate) spec: SandboxSpec,
    pub(crate) policy: Policy,
    /// What its agent is to do, sealed.
    pub(crate) agent: Option<Vec<u8>>,
    pub(crate) request: Option<RequestClaim>,
    /// With a claim that was not used, so that the caller may try again.
    pub(crate) reply: LaunchReply,
}

pub(crate) type LaunchReply =
    oneshot::Sender<std::result::Result<Sandbox, (Error, Option<RequestClaim>)>>;

/// See [`Ask::Maintain`]. Cancelled when the sandbox is deleted.
pub(crate) struct Maintained {
    pub(crate) maintenance: Maintenance,
    pub(crate) until: CancellationToken,
}

pub(crate) struct Machine {
    core: Arc<Core>,
    cell: Arc<Cell>,
    state: watch::Sender<State>,
    queue: mpsc::Receiver<Ask>,
    /// The warning before the hard lifetime was given.
    warned: bool,
}

/// A sandbox and its task, not running yet.
pub(crate) fn make(core: &Arc<Core>, state: State, pool: Arc<PoolState>) -> (Arc<Cell>, Machine) {
    let (sender, queue) = mpsc::channel(QUEUE_MAX);
    let activity = Activity::new(core.config.clock.clone(), state.spec.created_at);
    let state = watch::Sender::new(state);
    let new = NewCell { pool, state: state.subscribe(), queue: sender, activity };
    let cell = Arc::new(Cell::new(new));
    let core = Arc::clone(core);
    let machine = Machine { core, cell: Arc::clone(&cell), state, queue, warned: false };
    (cell, machine)
}

impl Machine {
    pub(crate) fn spawn(self, first: First) {
        let core = Arc::clone(&self.core);
        core.tasks.spawn(self.run(first));
    }

    async fn run(mut self, first: First) {
        match first {
            First::Launch(order) => self.launch(*order).await,
            First::Adopted => self.core.keep_workspace(&self.cell, None),
            First::FinishStart => self.finish_start().await,
            First::FinishStop => drop(self.stop(EndReason::Unknown).await),
            First::FinishDelete => self.finish_delete().await,
        }
        let closing = self.core.closing.clone();
        let clock = self.core.config.clock.clone();
        // A destroyed sandbox has nothing left to do; it is shown for a while from the registry.
        while self.phase() != Phase::Destroyed {
            let wake = self.next_wake();
            tokio::select! {
                biased;
                () = closing.cancelled() => return,
                ask = self.queue.recv() => match ask {
                    Some(ask) => self.handle(ask).await,
                    None => return,
                },
                () = clock.sleep_until(wake.unwrap_or(Timestamp::MAX)), if wake.is_some() => {
                    self.reap().await;
                }
            }
        }
        self.refuse_the_rest();
    }

    async fn handle(&mut self, ask: Ask) {
        match ask {
            Ask::Start(quota, reply) => answer(reply, self.start(&quota).await),
            Ask::Stop(reply) => answer(reply, self.stop(EndReason::UserRequest).await),
            Ask::Pause(reply) => answer(reply, self.pause().await),
            Ask::Resume(reply) => answer(reply, self.resume().await),
            Ask::Update(change, reply) => answer(reply, self.update(change).await),
            Ask::Delete(reply) => answer(reply, self.delete(EndReason::UserRequest).await),
            Ask::Maintain(reply) => answer(reply, self.maintain().await),
            Ask::End(reason) => self.end_for(reason).await,
            Ask::Exited(exit) => self.exited(&exit).await,
            Ask::Look => self.look().await,
        }
    }

    /// Calls that came while the sandbox was being destroyed.
    fn refuse_the_rest(&mut self) {
        self.queue.close();
        while let Ok(ask) = self.queue.try_recv() {
            let gone = || Error::no_sandbox(self.cell.id);
            match ask {
                Ask::Delete(reply) => answer(reply, Ok(self.cell.view())),
                Ask::Start(_, reply)
                | Ask::Stop(reply)
                | Ask::Pause(reply)
                | Ask::Resume(reply)
                | Ask::Update(_, reply) => answer(reply, Err(gone())),
                Ask::Maintain(reply) => answer(reply, Err(gone())),
                Ask::End(_) | Ask::Exited(_) | Ask::Look => {}
            }
        }
    }

    fn phase(&self) -> Phase {
        self.state.borrow().phase
    }

    fn incarnation(&self) -> Option<Arc<str>> {
        self.state.borrow().incarnation.clone()
    }

    fn view(&self) -> Sandbox {
        self.cell.view()
    }

    /// The only place that changes a phase. `change` adds what goes with it.
    fn publish(&self, transition: Transition, change: impl FnOnce(&mut State)) -> Result<()> {
        let phase = next(self.phase(), transition).map_err(|refused| {
            Error::wrong_state(format!("the sandbox {} is {}", self.cell.id, refused.phase))
        })?;
        self.state.send_modify(|state| {
            state.phase = phase;
            state.generation += 1;
            change(state);
        });
        Ok(())
    }

    /// Everything that comes with compute that runs.
    fn publish_running(&self, observed: &Observed) -> Result<()> {
        let guest = self.cell.pool.driver.guest(self.cell.id)?;
        self.cell.activity.touch();
        if self.phase() == Phase::Creating {
            self.publish(Transition::DiskMade, |_| {})?;
        }
        if self.phase() == Phase::Configuring {
            self.publish(Transition::Launched, |_| {})?;
        }
        self.publish(Transition::GuestReady, |state| {
            state.incarnation = observed.incarnation.as_deref().map(Arc::from);
            state.started_at = observed.started_at.or_else(|| Some(self.core.now()));
            state.end_reason = None;
            state.guest = Some(guest);
        })
    }

    fn wrong_state(&self) -> Error {
        match self.phase() {
            Phase::Destroyed => Error::no_sandbox(self.cell.id),
            phase => Error::wrong_state(format!("the sandbox {} is {phase}", self.cell.id)),
        }
    }
}

fn answer<T>(reply: Reply<T>, outcome: Result<T>) {
    // Whoever asked may have gone; what was done is done.
    let _ = reply.send(outcome);
}
