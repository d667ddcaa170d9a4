//! A sandbox is in use while an agent in it works, also when nobody is connected: after a call that may
//! begin a turn, the daemon is asked every few seconds whether one still runs. Asking is what counts as
//! use. An agent that waits for an answer of its user is in its turn too.
//!
//! Who leads watches: others pass such calls on. A new leader knows nothing of turns that run, so it asks
//! once every daemon that was found running.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use engine::{Caller, FoundAgents};
use futures_util::{StreamExt as _, stream};
use model::{Phase, Plan, QuotaRow, SandboxRef};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::app::App;
use crate::routes::agents;
use crate::{oneshot, persistence};

/// Shorter than the shortest idle time of a sandbox.
const ASK_EVERY: Duration = Duration::from_secs(3);

const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Daemons that are asked at the same time after a start.
const FOUND_AT_ONCE: usize = 8;

/// Asks in a row that a sandbox which runs may leave unanswered.
const SILENT_MAX: u32 = 20;

/// Of the list of sessions.
const LIST_BYTES_MAX: usize = 4 << 20;

/// Sandboxes that are watched, each once, and whether an agent was set to work since the daemon was
/// last asked: what it answered then says nothing of that turn.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<String, bool>>);

/// What an ask showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Works,
    Rests,
    /// It runs, and did not answer in time.
    Silent,
    Gone,
}

impl Turns {
    /// An agent was set to work; whether nobody watches yet.
    pub(crate) fn begin(&self, key: &str) -> bool {
        self.lock().insert(key.to_owned(), true).is_none()
    }

    /// Before the daemon is asked.
    pub(crate) fn ask(&self, key: &str) {
        self.lock().insert(key.to_owned(), false);
    }

    /// When the daemon said that nothing works: whether the watch ends.
    pub(crate) fn end(&self, key: &str) -> bool {
        let mut all = self.lock();
        if all.get(key) == Some(&true) {
            return false;
        }
        all.remove(key);
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a call to this path of the daemon may set an agent to work.
pub(crate) fn may_begin(path: &str) -> bool {
    ["/messages", "/messages/stream", "/reply", "/reject"].iter().any(|end| path.ends_with(end))
}

/// Keeps the sandbox in use until no agent in it works.
pub(crate) fn watch(app: &App, caller: &Caller, sandbox: &SandboxRef) {
    let key = format!("{} {sandbox}", caller.owner);
    if !app.turns.begin(&key) {
        return;
    }
    let (app, caller, sandbox) = (Arc::clone(app), caller.clone(), sandbox.clone());
    app.clone().tasks.spawn(async move {
        let mut silent = 0;
        loop {
            tokio::select! {
                () = sleep(ASK_EVERY) => {}
                // Nobody watches for this server any more.
                () = app.draining.cancelled() => return,
            }
            app.turns.ask(&key);
            let seen = look(&app, &caller, &sandbox).await;
            silent = if seen == Seen::Silent { silent + 1 } else { 0 };
            let over = matches!(seen, Seen::Rests | Seen::Gone) || silent >= SILENT_MAX;
            if over && app.turns.end(&key) {
                return;
            }
        }
    });
}

/// Watches the turns that ran already when this server began to lead.
pub(crate) fn find_again(app: &App, found: mpsc::Receiver<FoundAgents>) {
    let app = Arc::clone(app);
    app.clone().tasks.spawn(async move {
        let found = stream::unfold(found, async |mut found| Some((found.recv().await?, found)));
        let asked = found.for_each_concurrent(FOUND_AT_ONCE, |one| watch_if_busy(app.clone(), one));
        app.draining.run_until_cancelled(asked).await;
    });
}

async fn watch_if_busy(app: App, found: FoundAgents) {
    let FoundAgents { spec, daemon_runs } = found;
    oneshot::watch(&app, &spec);
    let (owner, sandbox) = (spec.owner.clone(), spec.id);
    // The plan does not matter to what uses a sandbox that runs.
    let caller = Caller { owner, plan: Plan::Free, quota: QuotaRow::default() };
    let sandbox = SandboxRef::Id(sandbox);
    if !daemon_runs {
        return;
    }
    persistence::follow(&app, &caller, &sandbox);
    if look(&app, &caller, &sandbox).await != Seen::Rests {
        watch(&app, &caller, &sandbox);
    }
}

async fn look(app: &App, caller: &Caller, sandbox: &SandboxRef) -> Seen {
    match timeout(ANSWER_MAX, is_busy(app, caller, sandbox)).await.ok().flatten() {
        Some(true) => return Seen::Works,
        Some(false) => return Seen::Rests,
        None => {}
    }
    match app.engine.get(caller, sandbox).await.map(|sandbox| sandbox.phase) {
        // Its turn goes on when it does.
        Ok(Phase::Paused) => Seen::Works,
        Ok(Phase::Running) => Seen::Silent,
        Ok(_) | Err(_) => Seen::Gone,
    }
}

/// Whether an agent in it is in a turn; `None` if it cannot be asked.
async fn is_busy(app: &App, caller: &Caller, sandbox: &SandboxRef) -> Option<bool> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = axum::http::Uri::from_static("/v1/sessions");
    let host = axum::http::HeaderValue::from_static("localhost");
    request.headers_mut().insert(axum::http::header::HOST, host);
    let response = agents::call(app, caller, sandbox, request).await.ok()?;
    let body = to_bytes(response.into_body(), LIST_BYTES_MAX).await.ok()?;
    let list: serde_json::Value = serde_json::from_slice(&body).ok()?;
    Some(list["sessions"].as_array()?.iter().any(|one| one["busy"] == true))
}
