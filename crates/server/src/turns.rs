//! A sandbox is in use while an agent in it works, also when nobody is connected: after a call that may
//! begin a turn, the daemon is asked every few seconds whether one still runs. Asking is what counts as
//! use. An agent that waits for an answer of its user is in its turn too.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use engine::Caller;
use model::SandboxRef;
use tokio::time::{sleep, timeout};

use crate::app::App;
use crate::routes::agents;

/// Shorter than the shortest idle time of a sandbox.
const ASK_EVERY: Duration = Duration::from_secs(3);

const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Of the list of sessions.
const LIST_BYTES_MAX: usize = 4 << 20;

/// Sandboxes that are watched, each once, and whether an agent was set to work since the daemon was
/// last asked: what it answered then says nothing of that turn.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<String, bool>>);

impl Turns {
    /// An agent was set to work; whether nobody watches yet.
    fn begin(&self, key: &str) -> bool {
        self.lock().insert(key.to_owned(), true).is_none()
    }

    /// Before the daemon is asked.
    fn ask(&self, key: &str) {
        self.lock().insert(key.to_owned(), false);
    }

    /// When the daemon said that nothing works: whether the watch ends.
    fn end(&self, key: &str) -> bool {
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
        loop {
            tokio::select! {
                () = sleep(ASK_EVERY) => {}
                // Nobody watches for this server any more.
                () = app.draining.cancelled() => return,
            }
            app.turns.ask(&key);
            if !works(&app, &caller, &sandbox).await && app.turns.end(&key) {
                return;
            }
        }
    });
}

/// What cannot be asked does not work: the sandbox was stopped, or its daemon ended.
async fn works(app: &App, caller: &Caller, sandbox: &SandboxRef) -> bool {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = axum::http::Uri::from_static("/v1/sessions");
    let host = axum::http::HeaderValue::from_static("localhost");
    request.headers_mut().insert(axum::http::header::HOST, host);
    let asked = async {
        let response = agents::call(app, caller, sandbox, request).await.ok()?;
        let body = to_bytes(response.into_body(), LIST_BYTES_MAX).await.ok()?;
        serde_json::from_slice::<serde_json::Value>(&body).ok()
    };
    let list = timeout(ANSWER_MAX, asked).await.ok().flatten();
    let sessions = list.as_ref().and_then(|list| list["sessions"].as_array());
    sessions.is_some_and(|all| all.iter().any(|one| one["busy"] == true))
}
