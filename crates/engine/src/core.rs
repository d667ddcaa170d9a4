//! What the tasks of one engine share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use driver::View;
use jiff::Timestamp;
use model::{EndReason, Error, Event, EventKind, Result};
use store::{Change, Pending, Store, Transition};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::agents::Found;
use crate::create::InProgress;
use crate::owed::{self, Debt, Owed};
use crate::pool::PoolState;
use crate::registry::{Cell, Registry};
use crate::{EngineConfig, Pool};

pub(crate) struct Core {
    pub(crate) config: EngineConfig,
    pub(crate) store: Store,
    pub(crate) pools: Vec<Arc<PoolState>>,
    /// Of pools whose lease another server holds: what is looked at here, in the order of `pools`.
    pub(crate) views: Vec<Arc<dyn View>>,
    pub(crate) registry: Registry,
    /// Creates with an idempotency key that are not finished.
    pub(crate) in_progress: InProgress,
    pub(crate) agents: Found,
    pub(crate) counters: Counters,
    pub(crate) owed: Arc<Owed>,
    /// Grows with every sweep that is over.
    pub(crate) swept: watch::Sender<u64>,
    pub(crate) tasks: TaskTracker,
    /// Cancelled when the engine is shut down or dropped.
    pub(crate) closing: CancellationToken,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) creates: AtomicU64,
    pub(crate) create_failures: AtomicU64,
    pub(crate) destroys: AtomicU64,
    pub(crate) execs: AtomicU64,
    exits: Mutex<Vec<(EndReason, u64)>>,
}

impl Core {
    pub(crate) fn new(
        config: EngineConfig,
        pools: Vec<Pool>,
        store: Store,
        views: Vec<Arc<dyn View>>,
    ) -> Self {
        Self {
            config,
            store,
            pools: pools.into_iter().map(|pool| Arc::new(PoolState::new(pool))).collect(),
            views,
            registry: Registry::default(),
            in_progress: InProgress::default(),
            agents: Found::default(),
            counters: Counters::default(),
            owed: Arc::default(),
            swept: watch::Sender::default(),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.config.clock.now()
    }

    /// Runs a driver's work within its limit.
    pub(crate) async fn bounded<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = self.config.operation_timeout;
        let late = || Error::unavailable(format!("not finished within {} s", limit.as_secs()));
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(late()))
    }

    pub(crate) fn apply(&self, cell: &Cell, changes: Vec<Change>) -> Pending<()> {
        self.store.apply(cell.owner.clone(), cell.id, changes)
    }

    /// A write that nobody waits for: writes keep their order, and what fails is tried again.
    pub(crate) fn record(&self, cell: &Cell, changes: Vec<Change>) {
        self.record_and_keep(cell, changes, ());
    }

    /// The same, and keeps something until it is done.
    pub(crate) fn record_and_keep<T: Send + 'static>(
        &self,
        cell: &Cell,
        changes: Vec<Change>,
        kept: T,
    ) {
        let debt = Debt { owner: cell.owner.clone(), sandbox: cell.id, changes };
        let number = self.owed.number();
        if self.owed.owes(cell.id) {
            return self.owed.add(number, debt);
        }
        let written = self.apply(cell, debt.changes.clone());
        let (owed, id) = (Arc::clone(&self.owed), cell.id);
        self.tasks.spawn(async move {
            if let Err(failure) = written.await {
                let is_for_now = owed::is_for_now(&failure);
                let error = format!("{:#}", anyhow::Error::from(failure));
                warn!(sandbox.id = %id, error, "could not record a change of {id}");
                if is_for_now {
                    owed.add(number, debt);
                }
            }
            drop(kept);
        });
    }

    /// An event that can happen more than once.
    pub(crate) fn tell(&self, cell: &Cell, kind: EventKind, data: serde_json::Value) -> Change {
        let key = format!("{}:{}", kind.name(), self.now().as_microsecond());
        self.tell_as(cell, kind, (None, data), key)
    }

    /// An event that happens once to a sandbox, or once to an incarnation of it.
    pub(crate) fn tell_once(
        &self,
        cell: &Cell,
        kind: EventKind,
        incarnation: Option<&str>,
        reason: Option<EndReason>,
    ) -> Change {
        let key = match incarnation {
            Some(incarnation) => format!("{}:{incarnation}", kind.name()),
            None => kind.name(),
        };
        self.tell_as(cell, kind, (reason, serde_json::Value::Null), key)
    }

    fn tell_as(
        &self,
        cell: &Cell,
        kind: EventKind,
        (reason, data): (Option<EndReason>, serde_json::Value),
        key: String,
    ) -> Change {
        let (owner, sandbox) = (cell.owner.clone(), cell.id);
        let event = Event { owner, sandbox, kind, reason, at: self.now(), data };
        Change::Tell(event, Transition(key))
    }
}

impl Counters {
    pub(crate) fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_exit(&self, reason: EndReason) {
        let mut exits = self.exits.lock().unwrap_or_else(PoisonError::into_inner);
        match exits.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => exits.push((reason, 1)),
        }
    }

    pub(crate) fn exits(&self) -> Vec<(EndReason, u64)> {
        self.exits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How long a destroyed sandbox is still shown (ruling 7).
pub(crate) const TOMBSTONE_FOR: Duration = Duration::from_secs(60);
