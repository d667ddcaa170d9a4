//! What the server asks the agent daemon in a session's sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use axum::body::{Body, to_bytes};
use axum::http::header::{ACCEPT, CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Method, Request, StatusCode};
use axum::response::Response;
use model::agent::{PLACEHOLDER_KEY, RELAY_URL};
use model::{Error, Result, SandboxRef};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Live, history};
use crate::app::App;
use crate::routes::agents;

/// A start may take as long as that of the agent's program.
const START_MAX: Duration = Duration::from_secs(120);
const ANSWER_MAX: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Of the daemon's words in an error.
const DETAIL_CHARS_MAX: usize = 300;
/// Where agents keep what they go on from: in the workspace it is there again in another sandbox.
const STATE_DIR: &str = "/workspace/.bastide/agent";

/// What an agent goes on from.
#[derive(Debug)]
pub(super) enum Past {
    /// It is a new session.
    Nothing,
    /// What the log says. An agent that still knows the conversation by its own name for it is told nothing.
    Log { native_session_id: Option<String> },
}

/// How a session is in the daemon.
#[derive(Debug, Deserialize)]
pub(super) struct Told {
    /// Whether the agent remembers: `native`, `history` or `no`.
    #[serde(default)]
    resumed: String,
    #[serde(default)]
    pub(super) native_session_id: Option<String>,
    #[serde(default)]
    pub(super) event_count: u64,
}

/// Makes the session in the daemon. The log is read only for an agent that does not remember.
pub(super) async fn begin(
    app: &App,
    live: &Live,
    secrets: &BTreeMap<String, String>,
    past: Past,
) -> Result<Told> {
    let Past::Log { native_session_id } = past else {
        return put(app, live, secrets, (None, None)).await;
    };
    if native_session_id.is_some() {
        let told = put(app, live, secrets, (native_session_id, None)).await?;
        if told.resumed == "native" {
            return Ok(told);
        }
    }
    let history = history::of(&app.store, live.id).await?;
    put(app, live, secrets, (None, history)).await
}

/// Asks how it is.
pub(super) async fn ask_again(
    app: &App,
    live: &Live,
    secrets: &BTreeMap<String, String>,
) -> Result<Told> {
    put(app, live, secrets, (None, None)).await
}

/// What of it is secret is given each time: the daemon has it in memory alone.
async fn put(
    app: &App,
    live: &Live,
    secrets: &BTreeMap<String, String>,
    (native_session_id, history): (Option<String>, Option<String>),
) -> Result<Told> {
    let spec = &live.spec;
    let body = json!({
        "agent": spec.agent,
        "model": spec.model,
        "vendor": spec.vendor,
        "base_url": RELAY_URL,
        "api_key": PLACEHOLDER_KEY,
        "app_json": spec.app_json,
        "wire_version": spec.wire_version,
        "state_dir": STATE_DIR,
        "native_session_id": native_session_id,
        "history": history,
        "secrets": secrets,
    });
    let path = format!("/internal/sessions/{}", live.name_inside());
    let asked = ask(app, live, (Method::PUT, &path, Some(body)));
    let late = || Error::unavailable("the agent does not start in time");
    let answer = timeout(START_MAX, asked).await.map_err(|_| late())??;
    Ok(serde_json::from_value(answer).context("read how a session is")?)
}

/// Gives the agent other values, all of them anew.
pub(super) async fn change_secrets(
    app: &App,
    live: &Live,
    secrets: &BTreeMap<String, String>,
) -> Result<()> {
    let path = format!("/internal/sessions/{}/env", live.name_inside());
    let asked = ask(app, live, (Method::PUT, &path, Some(json!({ "secrets": secrets }))));
    in_time(asked).await.map(drop)
}

/// One of the daemon's calls below a session: `messages`, `interrupt` and so on.
pub(super) async fn tell(app: &App, live: &Live, what: &str, body: Value) -> Result<()> {
    let path = format!("/v1/sessions/{}/{what}", live.name_inside());
    in_time(ask(app, live, (Method::POST, &path, Some(body)))).await.map(drop)
}

/// The stream of what it says after that event of it. Listening is no use of the sandbox.
pub(super) async fn listen(app: &App, live: &Live, cursor: u64) -> Result<Response> {
    let path = format!("/v1/sessions/{}/events/sse?offset={cursor}", live.name_inside());
    let mut request = request(Method::GET, &path, Body::empty())?;
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    let sandbox = SandboxRef::Id(live.sandbox);
    let listening = agents::listen(app, &live.caller, &sandbox, request);
    let late = || Error::unavailable("the agent daemon does not answer in time");
    let response = timeout(ANSWER_MAX, listening).await.map_err(|_| late())??;
    match response.status() {
        StatusCode::OK => Ok(response),
        status => Err(refused(status, String::new())),
    }
}

async fn in_time<T>(asked: impl Future<Output = Result<T>>) -> Result<T> {
    let late = || Error::unavailable("the agent daemon does not answer in time");
    timeout(ANSWER_MAX, asked).await.map_err(|_| late())?
}

async fn ask(
    app: &App,
    live: &Live,
    (method, path, body): (Method, &str, Option<Value>),
) -> Result<Value> {
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    let request = request(method, path, body)?;
    let sandbox = SandboxRef::Id(live.sandbox);
    let response = agents::call(app, &live.caller, &sandbox, request).await?;
    let status = response.status();
    let body = to_bytes(response.into_body(), ANSWER_BYTES_MAX).await;
    let body = body.context("read an answer of the agent daemon")?;
    if !status.is_success() {
        let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
        let detail = ["detail", "title"].iter().find_map(|name| problem[name].as_str());
        let detail = detail.unwrap_or("it said no more").chars().take(DETAIL_CHARS_MAX).collect();
        return Err(refused(status, detail));
    }
    if body.is_empty() {
        return Ok(Value::Null);
    }
    Ok(serde_json::from_slice(&body).context("read an answer of the agent daemon")?)
}

fn request(method: Method, path: &str, body: Body) -> Result<Request<Body>> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().context("make a path of the daemon")?;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_static("localhost"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(request)
}

/// A client's mistake is told as one; the rest is the daemon's trouble.
fn refused(status: StatusCode, detail: String) -> Error {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => {
            Error::Invalid { field: "frame".into(), detail }
        }
        StatusCode::NOT_FOUND | StatusCode::CONFLICT => Error::wrong_state(detail),
        status => Error::unavailable(format!("the agent daemon answers {status}: {detail}")),
    }
}
