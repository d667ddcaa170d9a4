//! A session that runs here: what its readers share with the task that follows its agent.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::Caller;
use model::{Error, OwnerId, Plan, QuotaRow, Result, SandboxId, SessionId, SessionSpec};
use store::{LogEnd, Logged, SessionRecord, Store};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::events::{self, Next};
use super::{Live, Signal};

/// Recent events kept for readers that keep up, while there are any.
const RING_EVENTS_MAX: usize = 1024;
const RING_BYTES_MAX: usize = 1 << 20;
/// One read of the log.
const READ_BYTES_MAX: u64 = 256 * 1024;
/// Until a signal is taken by a client that is slow.
pub(super) const SIGNAL_MAX: Duration = Duration::from_secs(10);
/// Between tries to write what the store does not take.
const WRITE_AGAIN_MAX: Duration = Duration::from_secs(5);

/// The newest events, without gaps up to the last one in the log; or none.
#[derive(Default)]
pub(super) struct Ring {
    events: VecDeque<(u64, Arc<str>)>,
    bytes: usize,
}

/// The one client.
pub(super) struct Client {
    pub(super) number: u64,
    pub(super) signals: mpsc::Sender<Signal>,
    pub(super) gone: CancellationToken,
}

/// Appends to the log of one session, then tells its readers.
pub(super) struct Appender {
    store: Store,
    session: SessionId,
    life: u64,
    end: LogEnd,
    ring: Arc<Mutex<Ring>>,
    head: watch::Sender<u64>,
}

/// Somebody else appended: what is to come has to be read anew.
pub(super) struct Moved;

/// Who uses a sandbox for a session. The plan does not matter to what uses one that runs.
pub(super) fn caller_of(owner: &OwnerId) -> Caller {
    Caller { owner: owner.clone(), plan: Plan::Free, quota: QuotaRow::default() }
}

impl Live {
    /// And what writes for it.
    pub(super) async fn new(
        store: &Store,
        record: &SessionRecord,
        sandbox: SandboxId,
    ) -> Result<(Self, Appender)> {
        let appender = Appender::new(store, record).await?;
        let live = Self {
            id: record.id,
            caller: caller_of(&record.owner),
            sandbox,
            life: record.life,
            spec: record.spec.clone(),
            native: Mutex::new(record.native_session_id.clone()),
            saving: AtomicBool::new(false),
            head: appender.head.subscribe(),
            ring: Arc::clone(&appender.ring),
            client: Mutex::default(),
            stop: CancellationToken::new(),
            over: CancellationToken::new(),
        };
        Ok((live, appender))
    }

    /// What the daemon in its sandbox calls it: another one in every life.
    pub(super) fn name_inside(&self) -> String {
        format!("{}-{}", self.id, self.life)
    }

    pub(super) fn client(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the client, if there is one, and waits for it a while.
    pub(super) async fn signal(&self, signal: Signal) {
        let client = self.client().as_ref().map(|client| client.signals.clone());
        if let Some(signals) = client {
            let _ = timeout(SIGNAL_MAX, signals.send(signal)).await;
        }
    }
}

/// Events after that one: recent ones from memory, others from the log.
pub(super) async fn read(
    (store, session): (&Store, SessionId),
    ring: &Mutex<Ring>,
    (after, max): (u64, usize),
) -> Result<Vec<(u64, Arc<str>)>> {
    if let Some(events) = ring.lock().unwrap_or_else(PoisonError::into_inner).read(after, max) {
        return Ok(events);
    }
    let count = u32::try_from(max).unwrap_or(u32::MAX);
    let rows = store.session_log(session, after, (count, READ_BYTES_MAX)).await?;
    Ok(rows.into_iter().map(|row| (row.sequence, row.event)).collect())
}

impl Ring {
    fn push(&mut self, sequence: u64, event: Arc<str>) {
        self.bytes += event.len();
        self.events.push_back((sequence, event));
        while self.events.len() > RING_EVENTS_MAX || self.bytes > RING_BYTES_MAX {
            let Some((_, oldest)) = self.events.pop_front() else { break };
            self.bytes -= oldest.len();
        }
    }

    fn clear(&mut self) {
        *self = Self::default();
    }

    /// `None` if it does not reach back so far.
    fn read(&self, after: u64, max: usize) -> Option<Vec<(u64, Arc<str>)>> {
        let (first, _) = self.events.front()?;
        let skip = usize::try_from(after.saturating_add(1).checked_sub(*first)?).ok()?;
        Some(self.events.iter().skip(skip).take(max).cloned().collect())
    }
}

impl Appender {
    pub(super) async fn new(store: &Store, record: &SessionRecord) -> Result<Self> {
        let end = store.session_log_end(record.id).await?;
        Ok(Self {
            store: store.clone(),
            session: record.id,
            life: record.life,
            end,
            ring: Arc::default(),
            head: watch::Sender::new(end.sequence),
        })
    }

    /// How far the daemon's stream of this life was read.
    pub(super) fn cursor(&self) -> u64 {
        if self.end.life == self.life { self.end.cursor } else { 0 }
    }

    /// Whether something was said in earlier lives, and nothing in this one.
    pub(super) fn is_unheard(&self) -> bool {
        self.end.sequence > 0 && self.cursor() == 0
    }

    /// What is written next was read up to here.
    pub(super) fn rewind(&mut self, cursor: u64) {
        self.end.cursor = cursor;
        self.end.life = self.life;
    }

    /// Whether a later life writes to the log.
    pub(super) fn is_outlived(&self) -> bool {
        self.end.life > self.life
    }

    pub(super) async fn read_again(&mut self) -> Result<()> {
        self.end = self.store.session_log_end(self.session).await?;
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.head.send_replace(self.end.sequence);
        Ok(())
    }

    /// The last event that is there, if this life wrote it.
    pub(super) async fn last(&self) -> Result<Option<Arc<str>>> {
        if self.end.life != self.life {
            return Ok(None);
        }
        let before = self.end.sequence.saturating_sub(1);
        let rows = self.store.session_log(self.session, before, (1, READ_BYTES_MAX)).await?;
        Ok(rows.into_iter().next().map(|row| row.event))
    }

    /// Returns when they are in the log and readers know, however long the store needs; unless `stop`.
    pub(super) async fn append(
        &mut self,
        events: Vec<Next>,
        stop: &CancellationToken,
    ) -> std::result::Result<(), Moved> {
        let Some(last) = events.last() else { return Ok(()) };
        let before = self.end;
        let after = LogEnd {
            sequence: before.sequence + events.len() as u64,
            life: self.life,
            cursor: last.cursor,
        };
        let number = |(sequence, next): (u64, Next)| Logged {
            cursor: next.cursor,
            event: events::write(next.event, self.session, sequence).into(),
        };
        let rows: Vec<Logged> = (before.sequence + 1..).zip(events).map(number).collect();
        let mut patience = Duration::from_millis(20);
        loop {
            let position = (self.life, before.sequence);
            let written = self.store.append_to_session(self.session, position, rows.clone()).await;
            let Err(failure) = written else { break };
            // It may have been written all the same.
            let Ok(end) = self.store.session_log_end(self.session).await else {
                let error = failure.to_string();
                tracing::warn!(session.id = %self.session, error, "the log of a session waits");
                tokio::select! {
                    () = sleep(patience) => {}
                    () = stop.cancelled() => return Err(Moved),
                }
                patience = (patience * 2).min(WRITE_AGAIN_MAX);
                continue;
            };
            if end == after {
                break;
            }
            if end != before || matches!(failure, Error::Conflict { .. }) {
                return Err(Moved);
            }
            tokio::select! {
                () = sleep(patience) => {}
                () = stop.cancelled() => return Err(Moved),
            }
            patience = (patience * 2).min(WRITE_AGAIN_MAX);
        }
        self.end = after;
        self.publish(before.sequence, rows);
        Ok(())
    }

    fn publish(&self, before: u64, rows: Vec<Logged>) {
        {
            let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
            // One is the session's own.
            if self.head.receiver_count() > 1 {
                for (sequence, row) in (before + 1..).zip(rows) {
                    ring.push(sequence, row.event);
                }
            } else {
                ring.clear();
            }
        }
        self.head.send_replace(self.end.sequence);
    }
}

/// Of the specs of sessions that name a bundle.
pub(super) fn names_bundle(spec: &SessionSpec, bundle: &model::BundleName) -> bool {
    spec.bundles.contains(bundle)
}
