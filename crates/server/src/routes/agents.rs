//! The agent daemon of a sandbox, with the caller's authorisation instead of the daemon's token. Its
//! answers keep their own form; only what they need of headers is passed on.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HOST,
};
use axum::http::{HeaderName, HeaderValue, Method, Uri};
use axum::response::Response;
use engine::{Caller, Tunnel};
use futures_util::StreamExt as _;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use model::{Error, SandboxRef};
use tokio::time::timeout;

use crate::app::App;
use crate::auth::Who;
use crate::refusal::Refusal;
use crate::target::Target;
use crate::{persistence, turns};

/// Until an answer begins. Creating a session may mean installing its agent first.
const ANSWER_MAX: Duration = Duration::from_secs(30 * 60);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// What the daemon is told of a request.
const INWARD: [HeaderName; 3] = [ACCEPT, CONTENT_TYPE, LAST_EVENT_ID];

/// What the caller is told of an answer.
const OUTWARD: [HeaderName; 4] = [ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE];

/// Use the agent daemon of a sandbox
///
/// `/v1/sandboxes/{id}/agents` is the base URL of a daemon that runs coding agents behind one
/// interface: `…/agents/v1/agents`, `…/agents/v1/sessions/{session_id}`, its event streams and all the
/// rest, with every method. It is started on first use. While an agent works, the sandbox is in use.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/agents/{path}", tag = "Agents", operation_id = "use_agents",
    params(
        ("id" = String, Path, description = "Its id or its name"),
        ("path" = String, Path, description = "What the daemon is asked for, from `v1/`"),
    ),
    responses(
        (status = "default", description = "Whatever the daemon answers, with its status"),
        (status = 404, description = "No such sandbox, or another owner's; or no such route"),
        (status = 409, description = "`wrong_state`: the sandbox does not run"),
        (status = 503, description = "The daemon does not start, or does not answer"),
    )
)]
pub(crate) async fn proxy(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    request: Request,
) -> Result<Response, Refusal> {
    let uri = inner_uri(request.uri()).ok_or(Refusal::NoRoute)?;
    let changes = *request.method() == Method::POST;
    let begins_turn = *request.method() == Method::POST && turns::may_begin(uri.path());
    let response = call(&app, &caller, &sandbox, inward(request, uri)).await?;
    if begins_turn && response.status().is_success() {
        turns::watch(&app, &caller, &sandbox);
    }
    if changes && response.status().is_success() {
        persistence::follow(&app, &caller, &sandbox);
    }
    Ok(response)
}

/// One call, over a connection of its own.
pub(crate) async fn call(
    app: &App,
    caller: &Caller,
    sandbox: &SandboxRef,
    request: Request,
) -> Result<Response, Error> {
    through(app, app.engine.agents(caller, sandbox).await?, request).await
}

/// The same for who only listens, which is no use of the sandbox.
pub(crate) async fn listen(
    app: &App,
    caller: &Caller,
    sandbox: &SandboxRef,
    request: Request,
) -> Result<Response, Error> {
    through(app, app.engine.listen_to_agents(caller, sandbox).await?, request).await
}

async fn through(
    app: &App,
    (tunnel, token): (Tunnel, String),
    mut request: Request,
) -> Result<Response, Error> {
    let token = HeaderValue::from_str(&format!("Bearer {token}"));
    let token = token.map_err(|_| Error::unavailable("the agent daemon has no usable token"))?;
    request.headers_mut().insert(AUTHORIZATION, token);
    let answered = timeout(ANSWER_MAX, exchange(app, tunnel, request)).await;
    let broken =
        |detail: String| Error::unavailable(format!("the agent daemon does not answer: {detail}"));
    let response = answered
        .map_err(|_| broken(format!("not within {ANSWER_MAX:?}")))?
        .map_err(|error| broken(error.to_string()))?;
    Ok(outward(app, response))
}

async fn exchange(app: &App, tunnel: Tunnel, request: Request) -> hyper::Result<Response> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(tunnel)).await?;
    // Ends with the answer's body, or with whoever reads that.
    app.tasks.spawn(async move {
        let _ = connection.await;
    });
    sender.send_request(request).await.map(|response| response.map(Body::new))
}

/// What follows `/agents`, as it was written.
fn inner_uri(uri: &Uri) -> Option<Uri> {
    let (_, inner) = uri.path().strip_prefix("/v1/sandboxes/")?.split_once("/agents/")?;
    if !inner.starts_with("v1/") {
        return None;
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("/{inner}{query}").parse().ok()
}

fn inward(request: Request, uri: Uri) -> Request {
    let (parts, body) = request.into_parts();
    let mut inner = Request::new(body);
    *inner.method_mut() = parts.method;
    *inner.uri_mut() = uri;
    for name in INWARD {
        if let Some(value) = parts.headers.get(&name) {
            inner.headers_mut().insert(name, value.clone());
        }
    }
    inner.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
    inner
}

/// A stream of events never ends by itself; when the server does, its readers come back elsewhere.
fn outward(app: &App, response: Response) -> Response {
    let (parts, body) = response.into_parts();
    let streams = parts.headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    let body = match streams {
        false => body,
        true => {
            let draining = app.draining.clone().cancelled_owned();
            Body::from_stream(body.into_data_stream().take_until(draining))
        }
    };
    let mut outer = Response::new(body);
    *outer.status_mut() = parts.status;
    for name in OUTWARD {
        if let Some(value) = parts.headers.get(&name) {
            outer.headers_mut().insert(name, value.clone());
        }
    }
    outer
}
