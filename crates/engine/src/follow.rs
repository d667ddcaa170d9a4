//! The engine of a server that does not hold the pools' lease. It launches, stops and reaps nothing;
//! it speaks to the guests of sandboxes that run, and everything else is somebody else's.
//!
//! Nothing is taken in at the start. A sandbox gets a cell when somebody uses it here: its claim is read
//! from the store, its compute off the host, at every call; a small task looks again every second until
//! the call has ended, and forgets it when it is not used any more.
//!
//! ```text
//!  a call ──► claim (store) ──► look (host) ──► cell ──► its guest
//!                                    ▲            │
//!                                    └── task ◄───┘   holds it in use, sees it end
//! ```

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use driver::{Seen, Unreachable, View};
use model::{EndReason, Phase, Result, SandboxId, SandboxRef};
use store::Store;
use tokio::sync::{mpsc, watch};
use tracing::warn;

use crate::activity::Activity;
use crate::core::Core;
use crate::machine::{Ask, QUEUE_MAX};
use crate::registry::{Cell, NewCell, State};
use crate::{Caller, Engine, EngineConfig, Pool};

/// How often a sandbox in use is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long one that is not used is kept.
const KEPT_FOR: jiff::SignedDuration = jiff::SignedDuration::from_secs(30);

/// One place whose sandboxes can be used here.
pub struct Followed {
    pub name: String,
    pub view: Arc<dyn View>,
}

/// What keeps a sandbox in use, as the holder of the lease sees it.
type Hold = Box<dyn Send + Sync>;

/// A sandbox's task, which owns what is published of it.
struct Follower {
    core: Arc<Core>,
    cell: Arc<Cell>,
    state: watch::Sender<State>,
    queue: mpsc::Receiver<Ask>,
    view: Arc<dyn View>,
    hold: Option<Hold>,
}

impl Engine {
    /// An engine that only uses what runs.
    pub fn follow(config: EngineConfig, pools: Vec<Followed>, store: Store) -> Self {
        let (pools, views) = pools
            .into_iter()
            .map(|Followed { name, view }| {
                let driver = Arc::new(Unreachable);
                (Pool { name, driver, max_sandboxes: None }, view)
            })
            .unzip();
        Self::with(Core::new(config, pools, store, views))
    }

    /// Whether a call that uses the guest of this sandbox can be served here now. It counts as in use
    /// from then on. `false` says nothing but that: perhaps it does not exist.
    pub async fn can_use(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<bool> {
        self.core.require_open()?;
        let Some((id, incarnation)) = self.core.store.running(&caller.owner, sandbox).await? else {
            return Ok(false);
        };
        let views = self.core.views.clone();
        let looked = tokio::task::spawn_blocking(move || look(&views, id)).await;
        let Some((place, seen)) = looked.unwrap_or_default() else { return Ok(false) };
        if seen.incarnation != incarnation || seen.spec.owner != caller.owner {
            return Ok(false);
        }
        self.take_in(place, seen, sandbox);
        Ok(true)
    }

    /// Makes sure that the call which follows finds what was seen.
    fn take_in(&self, place: usize, seen: Seen, asked_as: &SandboxRef) {
        let known = self.core.registry.get(seen.spec.id).filter(|cell| {
            let state = cell.state.borrow();
            let same = state.incarnation.as_deref() == Some(seen.incarnation.as_str());
            same && state.phase == Phase::Running
        });
        let cell = match known {
            Some(cell) => cell,
            None => self.begin(place, seen),
        };
        cell.activity.touch();
        if let SandboxRef::Name(name) = asked_as {
            self.core.registry.point(&cell, name);
        }
        // Wakes its task, which holds it in use. A full queue means that it is awake.
        let _ = cell.queue.try_send(Ask::Look);
    }

    fn begin(&self, place: usize, seen: Seen) -> Arc<Cell> {
        let (queue, asks) = mpsc::channel(QUEUE_MAX);
        let id = seen.spec.id;
        let activity = Activity::new(self.core.config.clock.clone(), self.core.now());
        let state = watch::Sender::new(State {
            spec: Arc::new(seen.spec),
            phase: Phase::Running,
            generation: 1,
            incarnation: Some(seen.incarnation.into()),
            started_at: Some(seen.started_at),
            end_reason: None,
            destroyed_at: None,
            rootfs: Arc::from(""),
            guest: Some(seen.guest),
        });
        let pool = Arc::clone(&self.core.pools[place]);
        let cell = Arc::new(Cell::new(NewCell { pool, state: state.subscribe(), queue, activity }));
        self.core.registry.remove(id);
        self.core.registry.adopt(&cell);
        let follower = Follower {
            core: Arc::clone(&self.core),
            cell: Arc::clone(&cell),
            state,
            queue: asks,
            view: Arc::clone(&self.core.views[place]),
            hold: None,
        };
        self.core.tasks.spawn(follower.run());
        cell
    }
}

/// In which pool it runs, and how.
fn look(views: &[Arc<dyn View>], id: SandboxId) -> Option<(usize, Seen)> {
    views.iter().enumerate().find_map(|(place, view)| match view.look(id) {
        Ok(seen) => seen.map(|seen| (place, seen)),
        Err(failure) => {
            let error = format!("{:#}", anyhow::Error::from(failure));
            warn!(sandbox.id = %id, error, "could not look at {id}");
            None
        }
    })
}

impl Follower {
    async fn run(mut self) {
        let closing = self.core.closing.clone();
        loop {
            tokio::select! {
                biased;
                () = closing.cancelled() => return,
                ask = self.queue.recv() => if ask.is_none() { return },
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            self.hold_while_used().await;
            if let Err(reason) = self.still_runs() {
                self.end(reason);
                return;
            }
            if !self.is_used() && self.core.now().duration_since(self.last()) > KEPT_FOR {
                self.forget();
                return;
            }
        }
    }

    fn last(&self) -> jiff::Timestamp {
        self.cell.activity.last()
    }

    fn is_used(&self) -> bool {
        let detached = self.cell.detached.lock().unwrap_or_else(PoisonError::into_inner);
        self.cell.activity.busy() || !detached.is_empty()
    }

    /// From the first call on until nothing is in flight and no streamed command of ours runs.
    async fn hold_while_used(&mut self) {
        let new = self.core.now().duration_since(self.last()) < jiff::SignedDuration::from_secs(1);
        if self.hold.is_none() && (new || self.is_used()) {
            let held = self.view.hold(self.cell.id);
            self.hold =
                held.inspect_err(|error| warn!(%error, "could not say that it is used")).ok();
        }
        if self.hold.is_some() && !new && !self.cell.activity.busy() {
            let guest = self.state.borrow().guest.clone();
            let runs = match guest {
                Some(guest) => self.cell.command_still_runs(&guest).await,
                None => false,
            };
            if !runs {
                self.hold = None;
            }
        }
    }

    fn still_runs(&self) -> std::result::Result<(), EndReason> {
        let incarnation = self.state.borrow().incarnation.clone();
        match self.view.look(self.cell.id) {
            // What cannot be read now may be read in a second.
            Err(_) => Ok(()),
            Ok(Some(seen)) if Some(seen.incarnation.as_str()) == incarnation.as_deref() => Ok(()),
            // Paused: its calls wait as they would for whoever paused it.
            Ok(None) if self.view.is_paused(self.cell.id) => Ok(()),
            Ok(Some(_)) => Err(EndReason::Unknown),
            Ok(None) => Err(self.view.end_reason(self.cell.id).unwrap_or(EndReason::Unknown)),
        }
    }

    fn end(&self, reason: EndReason) {
        self.state.send_modify(|state| {
            state.phase = Phase::Stopped;
            state.end_reason = Some(reason);
            state.guest = None;
        });
        self.forget();
    }

    fn forget(&self) {
        let same = |cell: &Arc<Cell>| Arc::ptr_eq(cell, &self.cell);
        if self.core.registry.get(self.cell.id).as_ref().is_some_and(same) {
            self.core.registry.remove(self.cell.id);
        }
    }
}
