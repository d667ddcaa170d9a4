//! One-shot tasks: an agent that works on what it was given at the create, and ends. The daemon in the
//! sandbox runs it; whoever leads starts it there, keeps the sandbox in use until it ends, and shows how it
//! is.
//!
//! ```text
//!  create, start, resume, a new leader ──► watch ──► PUT /internal/task (starts it, or says how it is)
//!                                            │           │
//!                                            └── waits ◄─┘ ──► agent_status
//! ```
//!
//! To start it twice is to start it once, so every way to a running sandbox does the same. What is shown is
//! what the sandbox says: for display, never for accounting.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use axum::body::{Body, to_bytes};
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Method, Request};
use engine::{AgentStatus, Caller};
use model::agent::RELAY_URL;
use model::{OwnerId, Phase, Plan, QuotaRow, SandboxId, SandboxRef, SandboxSpec};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::app::App;
use crate::order::Order;
use crate::persistence;
use crate::routes::agents;

/// A daemon answers at the latest after this long; then it is asked again.
const WAIT_SECONDS: u64 = 50;
const ANSWER_MAX: Duration = Duration::from_secs(90);
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Between two tries when the daemon does not answer.
const TRY_EVERY: Duration = Duration::from_secs(2);
/// A sandbox that runs and whose daemon does not answer for so long has no agent any more.
const SILENT_MAX: Duration = Duration::from_secs(120);
/// What is shown of an agent that could not be started.
const NOT_STARTED: i32 = 127;
/// How long a cancel may take to reach the agent.
const CANCEL_MAX: Duration = Duration::from_secs(10);

/// Sandboxes whose task is watched here, each once.
#[derive(Debug, Default)]
pub(crate) struct Watched(Mutex<HashSet<SandboxId>>);

#[derive(Debug, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
enum State {
    None,
    Running,
    Ended { exit_code: i32 },
}

/// What an ask came to.
enum Seen {
    State(State),
    /// It runs, and did not answer.
    Silent(anyhow::Error),
    Paused,
    Gone,
}

/// Starts the task of a sandbox that runs, unless it was started, and follows it. Nothing for sandboxes
/// without one.
pub(crate) fn watch(app: &App, spec: &SandboxSpec) {
    let has_task = spec.agent.as_ref().is_some_and(|agent| agent.one_shot);
    if !has_task || !app.oneshots.lock().insert(spec.id) {
        return;
    }
    let (app, owner, id) = (Arc::clone(app), spec.owner.clone(), spec.id);
    app.clone().tasks.spawn(async move {
        // Whoever leads next goes on.
        app.draining.run_until_cancelled(follow(&app, owner, id)).await;
        app.oneshots.lock().remove(&id);
    });
}

/// Lets the agent of a one-shot task wrap up. Whether it heard.
pub(crate) async fn cancel(app: &App, caller: &Caller, spec: &SandboxSpec, reason: &str) -> bool {
    if !spec.agent.as_ref().is_some_and(|agent| agent.one_shot) {
        return false;
    }
    let body = json!({ "reason": reason });
    let asked = ask(app, caller, spec.id, (Method::POST, "/internal/task/cancel", Some(body)));
    match timeout(CANCEL_MAX, asked).await {
        Ok(Ok(Value::Bool(heard))) => heard,
        Ok(Ok(_)) | Err(_) => false,
        Ok(Err(error)) => {
            let error = format!("{error:#}");
            tracing::warn!(sandbox.id = %spec.id, error, "an agent could not be told to wrap up");
            false
        }
    }
}

async fn follow(app: &App, owner: OwnerId, id: SandboxId) {
    // The plan does not matter to what uses a sandbox that runs.
    let caller = Caller { owner, plan: Plan::Free, quota: QuotaRow::default() };
    let mut started = false;
    let mut silent_since = None;
    loop {
        let seen =
            if started { wait(app, &caller, id).await } else { start(app, &caller, id).await };
        match look(app, &caller, id, seen).await {
            Seen::State(State::Running) => {
                if !started {
                    persistence::task_began(app, id).await;
                }
                (started, silent_since) = (true, None);
                app.engine.tell_agent(id, AgentStatus::Running);
            }
            Seen::State(State::Ended { exit_code }) => {
                persistence::task_ended(app, &caller, id, exit_code).await;
                return app.engine.tell_agent(id, AgentStatus::Ended { exit_code });
            }
            // Another daemon, which knows of none.
            Seen::State(State::None) => started = false,
            Seen::Paused => {
                silent_since = None;
                sleep(TRY_EVERY).await;
            }
            Seen::Gone => return,
            Seen::Silent(error) => {
                let since = *silent_since.get_or_insert_with(Instant::now);
                if since.elapsed() > SILENT_MAX {
                    let error = format!("{error:#}");
                    tracing::warn!(sandbox.id = %id, error, "the agent of {id} is not heard of");
                    let exit_code = NOT_STARTED;
                    return app.engine.tell_agent(id, AgentStatus::Ended { exit_code });
                }
                // It may have been another daemon's.
                started = false;
                sleep(TRY_EVERY).await;
            }
        }
    }
}

/// Why there was no answer, if there was none.
async fn look(app: &App, caller: &Caller, id: SandboxId, answered: anyhow::Result<State>) -> Seen {
    let error = match answered {
        Ok(state) => return Seen::State(state),
        Err(error) => error,
    };
    match app.engine.get(caller, &SandboxRef::Id(id)).await.map(|sandbox| sandbox.phase) {
        Ok(Phase::Running) => Seen::Silent(error),
        Ok(Phase::Paused) => Seen::Paused,
        Ok(_) | Err(_) => Seen::Gone,
    }
}

async fn start(app: &App, caller: &Caller, id: SandboxId) -> anyhow::Result<State> {
    let spec = app.engine.get(caller, &SandboxRef::Id(id)).await?.spec;
    let order = Order::of(&app.vault, id).await?;
    let (_, order) = order.context("nothing says what the agent is to do")?;
    let order = persistence::go_on(app, id, order).await;
    let task = task(&spec, order).context("the sandbox has no agent")?;
    let answer = ask(app, caller, id, (Method::PUT, "/internal/task", Some(task))).await?;
    serde_json::from_value(answer).context("read how the task is")
}

async fn wait(app: &App, caller: &Caller, id: SandboxId) -> anyhow::Result<State> {
    let path = format!("/internal/task?seconds={WAIT_SECONDS}");
    let asked = ask(app, caller, id, (Method::GET, &path, None));
    let answer = timeout(ANSWER_MAX, asked).await.context("wait for the task")??;
    serde_json::from_value(answer).context("read how the task is")
}

/// In the words of `env.json`. What is secret of it is apart.
fn task(spec: &SandboxSpec, order: Order) -> Option<Value> {
    let agent = spec.agent.as_ref()?;
    let vendor = agent.vendor;
    let mut env = spec.env.clone();
    env.extend(order.env);
    let mut secrets = BTreeMap::new();
    let mut base_url = Some(RELAY_URL);
    if !agent.relay {
        base_url = None;
        for name in ["LLM_API_KEY", vendor.key_variable()] {
            secrets.insert(name, order.model.key.0.clone());
        }
    }
    Some(json!({
        "AGENT_TYPE": agent.kind,
        "TASK": order.task.unwrap_or_default(),
        "LLM_MODEL": agent.model,
        "LLM_VENDOR": vendor,
        "LLM_BASE_URL": base_url,
        "SESSION_ID": order.session_id,
        "AGENT_CMD": order.agent_cmd,
        "WIRE_VERSION": order.wire_version,
        "APP_JSON": order.app_json,
        "ENV": env,
        "SECRETS": secrets,
    }))
}

async fn ask(
    app: &App,
    caller: &Caller,
    id: SandboxId,
    (method, path, body): (Method, &str, Option<Value>),
) -> anyhow::Result<Value> {
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().context("a path of the daemon")?;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_static("localhost"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let answered = agents::call(app, caller, &SandboxRef::Id(id), request).await;
    let response = answered?;
    let status = response.status();
    let body = to_bytes(response.into_body(), ANSWER_BYTES_MAX).await.context("read an answer")?;
    // Never what it was sent, which an older daemon might repeat.
    anyhow::ensure!(status.is_success(), "the agent daemon answers {status}");
    serde_json::from_slice(&body).context("read an answer")
}

impl Watched {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<SandboxId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
