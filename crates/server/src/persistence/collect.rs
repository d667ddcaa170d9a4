//! What the agent daemon of a sandbox records, read into the outbox: after every call that may have changed
//! something, and again every second while an agent works. To ask a daemon is to use its sandbox, so one in
//! which nothing works is left alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::HOST;
use engine::Caller;
use model::{SandboxId, SandboxRef};
use serde::Deserialize;
use serde_json::{Value, json};
use store::Appended;
use tokio::time::{sleep, timeout};
use url::Url;

use super::Conversation;
use crate::app::App;
use crate::routes::agents;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// When too much waits for the backend.
const FULL_EVERY: Duration = Duration::from_secs(10);
/// A look fails so often in a row before it is given up until the next call.
const FAILURES_MAX: u32 = 20;
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Of one answer of a daemon. Fewer events are asked for when it is larger.
const ANSWER_BYTES_MAX: usize = 8 << 20;
const EVENTS_MAX: u64 = 200;

/// As much of the daemon's answers as is needed here.
#[derive(Debug, Deserialize)]
struct Sessions {
    sessions: Vec<Session>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Session {
    session_id: String,
    #[serde(default)]
    event_count: u64,
    #[serde(default)]
    busy: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Events {
    events: Vec<Value>,
}

/// What a look showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Works,
    Rests,
    Full,
}

/// Reads what the agents of a sandbox did and do, until none works. Nothing for sandboxes whose conversation
/// is kept nowhere else.
pub(crate) fn follow(app: &App, caller: &Caller, sandbox: &SandboxRef) {
    let key = format!("{} {sandbox}", caller.owner);
    if !app.persistence.following.begin(&key) {
        return;
    }
    let (app, caller, sandbox) = (Arc::clone(app), caller.clone(), sandbox.clone());
    app.clone().tasks.spawn(async move {
        // Whoever leads next goes on.
        let reading = Box::pin(read_all(&app, &caller, (&sandbox, &key)));
        app.draining.run_until_cancelled(reading).await;
    });
}

async fn read_all(app: &App, caller: &Caller, (sandbox, key): (&SandboxRef, &str)) {
    let mut failures = 0;
    loop {
        app.persistence.following.ask(key);
        let seen = look(app, caller, sandbox).await;
        failures = if seen.is_ok() { 0 } else { failures + 1 };
        let (over, pause) = match &seen {
            Ok(Seen::Works) => (false, LOOK_EVERY),
            Ok(Seen::Rests) => (true, LOOK_EVERY),
            Ok(Seen::Full) => (false, FULL_EVERY),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::debug!(%sandbox, error, "could not read what an agent did");
                (failures >= FAILURES_MAX || is_gone(app, caller, sandbox).await, LOOK_EVERY)
            }
        };
        if over && app.persistence.following.end(key) {
            return;
        }
        sleep(pause).await;
    }
}

async fn is_gone(app: &App, caller: &Caller, sandbox: &SandboxRef) -> bool {
    let phase = app.engine.get(caller, sandbox).await.map(|sandbox| sandbox.phase);
    !matches!(phase, Ok(model::Phase::Running | model::Phase::Paused))
}

async fn look(app: &App, caller: &Caller, sandbox: &SandboxRef) -> Result<Seen> {
    let spec = app.engine.get(caller, sandbox).await?.spec;
    if spec.agent.is_none() {
        return Ok(Seen::Rests);
    }
    let Some(conversation) = Conversation::of(app, spec.id).await? else { return Ok(Seen::Rests) };
    let daemon = Daemon { app, caller, sandbox: spec.id };
    let listed: Sessions = serde_json::from_value(daemon.get("/v1/sessions").await?.0)
        .context("read the list of sessions")?;
    let read = app.store.persisted_origins(&spec.id.to_string()).await?;
    let read: HashMap<String, u64> = read.into_iter().collect();
    let mut seen = Seen::Rests;
    for session in listed.sessions.iter().rev() {
        let origin = format!("session:{}", session.session_id);
        let after = read.get(&origin).copied().unwrap_or(0);
        if session.busy == Some(true) {
            seen = Seen::Works;
        }
        if session.event_count > after
            && daemon.read(&conversation, session, (&origin, after)).await? == Appended::Full
        {
            return Ok(Seen::Full);
        }
    }
    Ok(seen)
}

struct Daemon<'a> {
    app: &'a App,
    caller: &'a Caller,
    sandbox: SandboxId,
}

impl Daemon<'_> {
    /// Keeps the events of a session after one of them.
    async fn read(
        &self,
        conversation: &Conversation,
        session: &Session,
        (origin, mut after): (&str, u64),
    ) -> Result<Appended> {
        let mut most = EVENTS_MAX;
        while after < session.event_count {
            let events = match self.get(&path(&session.session_id, after, most)).await {
                Ok((_, Size::TooLarge)) if most > 1 => {
                    most = (most / 8).max(1);
                    continue;
                }
                Ok((_, Size::TooLarge)) => vec![(after + 1, left_out(&session.session_id))],
                Ok((answer, Size::Fits)) => numbered(answer, after)?,
                Err(error) => return Err(error),
            };
            let Some((last, _)) = events.last() else { break };
            after = *last;
            let appended = self.app.persistence.append(conversation, origin, events).await?;
            if appended != Appended::Kept {
                return Ok(appended);
            }
        }
        Ok(Appended::Kept)
    }

    async fn get(&self, path: &str) -> Result<(Value, Size)> {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = path.parse().context("a path of the daemon")?;
        request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
        let sandbox = SandboxRef::Id(self.sandbox);
        let asked = agents::call(self.app, self.caller, &sandbox, request);
        let answered = timeout(ANSWER_MAX, asked).await.context("the daemon does not answer")?;
        let response = answered.map_err(|refusal| anyhow::anyhow!("{refusal:?}"))?;
        let status = response.status();
        ensure!(status.is_success(), "the agent daemon answers {status}");
        let body = to_bytes(response.into_body(), ANSWER_BYTES_MAX);
        let Ok(body) = timeout(ANSWER_MAX, body).await.context("the answer does not end")? else {
            return Ok((Value::Null, Size::TooLarge));
        };
        let value = serde_json::from_slice(&body).context("read an answer of the daemon")?;
        Ok((value, Size::Fits))
    }
}

enum Size {
    Fits,
    TooLarge,
}

fn path(session: &str, after: u64, most: u64) -> String {
    // What a client called a session may be anything.
    let mut url = Url::parse("http://localhost/v1/sessions").expect("it is a URL");
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.push(session).push("events");
    }
    format!("{}?offset={after}&limit={most}", url.path())
}

/// A sandbox may say anything; its numbers must go up, or it is not believed.
fn numbered(answer: Value, after: u64) -> Result<Vec<(u64, String)>> {
    let answer: Events = serde_json::from_value(answer).context("read events")?;
    let mut last = after;
    let mut all = Vec::new();
    for event in answer.events {
        let sequence = event["sequence"].as_u64().context("an event has no number")?;
        ensure!(sequence > last && event.is_object(), "events are not in order");
        last = sequence;
        all.push((sequence, event.to_string()));
    }
    Ok(all)
}

/// In the place of an event that nobody can carry.
fn left_out(session: &str) -> String {
    let data = json!({ "message": "an event was too large to be kept", "code": "event_too_large",
        "details": null });
    json!({ "type": "error", "session_id": session, "synthetic": true, "source": "daemon",
        "data": data })
    .to_string()
}
