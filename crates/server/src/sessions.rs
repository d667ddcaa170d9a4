//! Sessions (000, DESIGN 2.5): conversations with an agent that outlive connections and sandboxes.
//!
//! ```text
//!  daemon in the sandbox ──► pump ──► the log ──► readers (a WebSocket, server-sent events, ranges)
//!                                      (first)     after the log only
//! ```
//!
//! One task a running session follows the daemon and appends what it says to the log before anybody sees
//! it. Who leads does all of this; others pass on every call about sessions.

#![expect(dead_code, reason = "routes that use it come next")]

pub(crate) mod socket;
pub(crate) mod token;
pub(crate) mod wire;

use std::sync::Arc;

use api::ClientFrame;
use api::session::CheckedSession;
use bytes::Bytes;
use engine::Caller;
use model::{Error, Result, SessionId};
use store::SessionRecord;
use tokio::sync::{mpsc, watch};

use crate::app::App;

/// The sessions that run here.
#[derive(Default)]
pub(crate) struct Sessions {}

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
}

pub(crate) enum Signal {
    /// A control frame, in JSON: it has no sequence.
    Control(String),
    /// An image of the display.
    Binary(Bytes),
    /// The last one.
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
    /// Answers when the agent is ready.
    pub(crate) async fn create(
        app: &App,
        caller: &Caller,
        wanted: CheckedSession,
    ) -> Result<Started> {
        let _ = (app, caller, wanted);
        Err(not_yet())
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
        let _ = (app, caller, id, ttl_seconds);
        Err(not_yet().into())
    }

    /// The caller's, newest first.
    pub(crate) async fn list(app: &App, caller: &Caller) -> Result<Vec<SessionRecord>> {
        let _ = (app, caller);
        Err(not_yet())
    }

    pub(crate) async fn get(app: &App, caller: &Caller, id: SessionId) -> Result<SessionRecord> {
        let _ = (app, caller, id);
        Err(not_yet())
    }

    /// Whoever's: for a WebSocket, whose token says who may use it.
    pub(crate) async fn find(app: &App, id: SessionId) -> Result<Option<SessionRecord>> {
        let _ = (app, id);
        Err(not_yet())
    }

    /// Ends it, and removes its sandbox, its workspace and its log.
    pub(crate) async fn delete(app: &App, caller: &Caller, id: SessionId) -> Result<SessionRecord> {
        let _ = (app, caller, id);
        Err(not_yet())
    }

    /// A new session with the log up to `at` (all of it if absent) and the files as they are now.
    pub(crate) async fn fork(
        app: &App,
        caller: &Caller,
        id: SessionId,
        at: Option<u64>,
    ) -> Result<Started> {
        let _ = (app, caller, id, at);
        Err(not_yet())
    }

    /// What comes after an event, oldest first.
    pub(crate) async fn page(app: &App, id: SessionId, after: u64, max: usize) -> Result<Page> {
        let _ = (app, id, after, max);
        Err(not_yet())
    }

    /// Displaces who was there, with 1011. `Unavailable` when nothing of it runs.
    pub(crate) async fn attach(app: &App, id: SessionId) -> Result<Attached> {
        let _ = (app, id);
        Err(not_yet())
    }

    /// For who reads along without being the client: no one is displaced, and it does not count as use.
    /// `None` when it does not run: then the log is all there is.
    pub(crate) fn watch(app: &App, id: SessionId) -> Option<watch::Receiver<u64>> {
        let _ = (app, id);
        None
    }

    /// Tells the sessions that run and name this bundle of it.
    pub(crate) async fn rotated(app: &App, caller: &Caller, bundle: &model::BundleName) {
        let _ = (app, caller, bundle);
    }
}

impl Attached {
    /// At most `max` events after that one, oldest first; empty when there are none yet.
    pub(crate) async fn read(&mut self, after: u64, max: usize) -> Result<Vec<(u64, Arc<str>)>> {
        let _ = (after, max);
        Err(not_yet())
    }

    /// What a client says. What comes of it is an event, a signal, or this refusal.
    pub(crate) async fn say(&self, frame: ClientFrame) -> Result<()> {
        let _ = frame;
        Err(not_yet())
    }
}

/// Why a session is not resumed.
pub(crate) enum ResumeError {
    /// 403, audited as `cross_tenant_resume_denied` with the owner.
    OtherOwner(model::OwnerId),
    /// 502 `secret_bundle_not_found_at_resume`.
    NoBundle(String),
    /// `NotFound` is 404, audited.
    Other(Error),
}

impl From<Error> for ResumeError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

fn not_yet() -> Error {
    let detail = "sessions are being built".to_owned();
    Error::NotImplemented { code: "sessions_not_available", detail }
}
