//! Sessions (000, DESIGN 2.5): conversations with an agent that outlive connections and sandboxes.
//!
//! ```text
//!  daemon in the sandbox ──► pump ──► the log ──► readers (a WebSocket, server-sent events, ranges)
//!                                      (first)     after the log only
//! ```
//!
//! One task a running session follows the daemon and appends what it says to the log before anybody sees
//! it. Who leads does all of this; others pass on every call about sessions.

mod client;
mod create;
mod daemon;
mod display;
mod end;
mod events;
mod fork;
mod frames;
mod history;
mod live;
mod orphans;
mod pick_up;
mod pump;
mod resume;
mod rotate;
pub(crate) mod socket;
pub(crate) mod token;
pub(crate) mod wire;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::session::{CheckedSession, SessionsQuery};
use bytes::Bytes;
use engine::Caller;
use jiff::Timestamp;
use model::{BundleName, Error, Result, SandboxId, SandboxRef, SessionId, SessionSpec};
use store::SessionRecord;
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, timeout};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::config::DefaultModels;
pub(crate) use crate::sessions::pick_up::find_again;
pub(crate) use crate::sessions::resume::ResumeError;

/// Sessions that are looked through at a time.
const LIST_MAX: u32 = 1000;
/// Of one page of a log.
const PAGE_BYTES_MAX: u64 = 1 << 20;
/// A session of a server that has just begun to lead may not be followed yet.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(5);

const READY_WITHIN: Duration = Duration::from_secs(10);

/// The sessions that run here.
#[derive(Default)]
pub(crate) struct Sessions {
    live: Mutex<HashMap<SessionId, Arc<Live>>>,
    launches: orphans::Launches,
    /// Which ran before this server began to lead is known.
    known: CancellationToken,
    /// Grows with every session that comes.
    came: watch::Sender<u64>,
    default_models: DefaultModels,
}

/// One of them.
struct Live {
    id: SessionId,
    caller: Caller,
    sandbox: SandboxId,
    life: u64,
    spec: SessionSpec,
    /// What the agent itself calls the conversation.
    native: Mutex<Option<String>>,
    /// Its workspace is being saved.
    saving: AtomicBool,
    head: watch::Receiver<u64>,
    ring: Arc<Mutex<live::Ring>>,
    client: Mutex<Option<live::Client>>,
    /// Who follows it stops, and says nothing of an end.
    stop: CancellationToken,
    /// Nobody follows it any more.
    over: CancellationToken,
}

/// A session that was just made, or resumed: what a token and an address are made of.
pub(crate) struct Started {
    pub(crate) record: SessionRecord,
}

pub(crate) struct Resumed {
    pub(crate) started: Started,
    /// Of the life before; `unknown` when nothing is known of it.
    pub(crate) previous_status: String,
}

/// One client. Dropping it detaches.
pub(crate) struct Attached {
    /// The sequence of the last event in the log. Closed when nothing comes any more.
    pub(crate) head: watch::Receiver<u64>,
    /// What the client is sent beside the log.
    pub(crate) signals: mpsc::Receiver<Signal>,
    hold: client::Hold,
}

pub(crate) enum Signal {
    /// A control frame, in JSON: it has no sequence.
    Control(String),
    /// An image of the display.
    Binary(Bytes),
    /// The last one. Events that are in the log by now are sent first.
    Close { code: u16, reason: &'static str },
}

/// A range of a session's log.
pub(crate) struct Page {
    /// The sequence of each event, and the event in JSON. Fewer than asked for if they are large.
    pub(crate) events: Vec<(u64, Arc<str>)>,
    /// The sequence of the last event in the log.
    pub(crate) head: u64,
}

impl Sessions {
    pub(crate) fn new(default_models: DefaultModels) -> Self {
        Self { default_models, ..Self::default() }
    }

    /// Answers when the agent is ready.
    pub(crate) async fn create(
        app: &App,
        caller: &Caller,
        wanted: CheckedSession,
    ) -> Result<Started> {
        app.sessions.ready().await?;
        create::create(app, caller, wanted).await
    }

    /// On a fresh sandbox, with what the session had. Twice within 30 s is once: everybody gets the same
    /// record, of which the same token is made. `expires_at` is whole seconds for that.
    ///
    /// [`ResumeError`] has what only a resume tells: whose it is if not the caller's.
    pub(crate) async fn resume(
        app: &App,
        caller: &Caller,
        id: SessionId,
        ttl_seconds: u64,
    ) -> std::result::Result<Resumed, ResumeError> {
        app.sessions.ready().await?;
        resume::resume(app, caller, id, ttl_seconds).await
    }

    /// A page of the caller's, newest first, and whether there are more.
    pub(crate) async fn list(
        app: &App,
        caller: &Caller,
        asked: SessionsQuery,
    ) -> Result<(Vec<SessionRecord>, bool)> {
        let limit = asked.limit.saturating_add(1);
        let mut page = app.store.sessions(&caller.owner, asked.before, limit).await?;
        let more = page.len() as u64 > u64::from(asked.limit);
        page.truncate(asked.limit as usize);
        Ok((page, more))
    }

    pub(crate) async fn get(app: &App, caller: &Caller, id: SessionId) -> Result<SessionRecord> {
        let found = app.store.session(id).await?.filter(|record| record.owner == caller.owner);
        found.ok_or_else(|| Error::NotFound { what: "session", id: id.to_string() })
    }

    /// Whoever's: for a WebSocket, whose token says who may use it.
    pub(crate) async fn find(app: &App, id: SessionId) -> Result<Option<SessionRecord>> {
        app.store.session(id).await
    }

    /// Ends it, and removes its sandbox, its workspace and its log.
    pub(crate) async fn delete(app: &App, caller: &Caller, id: SessionId) -> Result<SessionRecord> {
        app.sessions.ready().await?;
        let record = Self::get(app, caller, id).await?;
        if let Some(live) = app.sessions.live(id) {
            live.stop.cancel();
            live.over.cancelled().await;
            live.signal(Signal::Close { code: 1001, reason: "sandbox destroyed" }).await;
        }
        if let Some(sandbox) = record.sandbox {
            end::gone(app.engine.delete(caller, &SandboxRef::Id(sandbox)).await)?;
        }
        remove_files(app, &record).await?;
        app.store.delete_session_log(id).await?;
        app.store.delete_session(id).await?;
        Ok(record)
    }

    /// A new session with the log up to `at` (all of it if absent) and the files as they are now, which
    /// is the time in the answer.
    pub(crate) async fn fork(
        app: &App,
        caller: &Caller,
        id: SessionId,
        wanted: (Option<u64>, u64),
    ) -> Result<(Started, Timestamp)> {
        app.sessions.ready().await?;
        let parent = Self::get(app, caller, id).await?;
        fork::fork(app, caller, parent, wanted).await
    }

    /// What comes after an event, oldest first.
    pub(crate) async fn page(app: &App, id: SessionId, after: u64, max: usize) -> Result<Page> {
        let count = u32::try_from(max).unwrap_or(u32::MAX);
        // The head first: nothing between it and the events is left out.
        let head = app.store.session_log_end(id).await?.sequence;
        let after = after.min(i64::MAX.unsigned_abs());
        let rows = app.store.session_log(id, after, (count, PAGE_BYTES_MAX)).await?;
        let events: Vec<_> = rows.into_iter().map(|row| (row.sequence, row.event)).collect();
        let head = events.last().map_or(head, |(last, _)| head.max(*last));
        Ok(Page { events, head })
    }

    /// Displaces who was there, with 1011. `Unavailable` when nothing of it runs.
    pub(crate) async fn attach(app: &App, id: SessionId) -> Result<Attached> {
        let gone = || Error::unavailable("the session does not run; resume it");
        let mut came = app.sessions.came.subscribe();
        let followed = async {
            loop {
                came.borrow_and_update();
                if let Some(live) = app.sessions.live(id) {
                    return Some(live);
                }
                let record = app.store.session(id).await.ok().flatten()?;
                if record.status != model::SessionStatus::Running || came.changed().await.is_err() {
                    return None;
                }
            }
        };
        let live = timeout(FOLLOWED_WITHIN, followed).await.ok().flatten().ok_or_else(gone)?;
        client::attach(app, live).await.map_err(|_| gone())
    }

    /// For who reads along without being the client: no one is displaced, and it does not count as use.
    /// `None` when it does not run: then the log is all there is.
    pub(crate) fn watch(app: &App, id: SessionId) -> Option<watch::Receiver<u64>> {
        app.sessions.live(id).map(|live| live.head.clone())
    }

    /// Tells the sessions that run and name this bundle of it.
    pub(crate) async fn rotated(app: &App, caller: &Caller, bundle: &BundleName) {
        rotate::rotated(app, caller, bundle).await;
    }

    /// What begins before that would be taken for what a predecessor left.
    async fn ready(&self) -> Result<()> {
        let late = || Error::unavailable("the sessions that run are not known yet; try again");
        timeout(READY_WITHIN, self.known.cancelled()).await.map_err(|_| late())
    }

    fn live(&self, id: SessionId) -> Option<Arc<Live>> {
        self.lock().get(&id).cloned()
    }

    fn remember(&self, live: &Arc<Live>) {
        self.lock().insert(live.id, Arc::clone(live));
        self.came.send_modify(|count| *count += 1);
    }

    /// Another life of it stays.
    fn forget(&self, live: &Arc<Live>) {
        let mut all = self.lock();
        if all.get(&live.id).is_some_and(|known| Arc::ptr_eq(known, live)) {
            all.remove(&live.id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn remove_files(app: &App, record: &SessionRecord) -> Result<()> {
    let workspace = record.spec.workspace(&record.id)?;
    app.blobs.remove(&record.owner, &workspace).await?;
    app.store.forget_workspace_size(&record.owner, &workspace).await
}
