//! What a server without the lease does with a request: answer it here when a running guest or the
//! store is all that it needs, else pass it to the server that holds the lease.
//!
//! A call is passed on as it came, with its credential: the leader checks it again, so there is no
//! second way to be somebody. When the leader ends before it answered, the call is repeated at the
//! next one if that cannot do anything twice; a create is given an `Idempotency-Key` for that.

mod leader;
mod socket;

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::{
    CONNECTION, CONTENT_TYPE, EXPECT, HeaderName, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional_with_sizes;

use crate::app::{App, Standing};
use crate::auth::Who;
use crate::body;
pub(crate) use crate::forward::leader::Leader;
use crate::forward::leader::Passed;
use crate::limits::TUNNEL_BUFFER_BYTES;
use crate::listen::{MayStall, PeerAddress};
use crate::preview;
use crate::refusal::Refusal;
use crate::routes::session_socket;
use crate::target::Target;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// For whom a server passes a call on. No header of this beginning reaches a sandbox.
const PEER: HeaderName = HeaderName::from_static("x-forwarded-bastide-peer");

/// Where a route is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// By any server: it needs the store at most.
    Anywhere,
    /// By any server, when the sandbox runs.
    Guest,
    Leader,
    /// By the leader, who also looks at links and cookies.
    Port,
}

/// Routes that need the store, or the storage of workspaces, alone.
const STORED: &[&str] = &[
    "/v1/api-keys",
    "/v1/tenants",
    "/v1/auth",
    "/v1/workspace-files",
    "/v1/usage",
    "/v1/dashboard",
    "/v1/billing",
    "/v1/admin",
];

/// Of those, what sessions that run are told of: the leader has them.
const TOLD: &str = "/v1/tenants/me/secrets/{name}";

/// The WebSocket of a session.
const SOCKET: &str = "/v1/sessions/{id}/ws";

/// It ends when a server does.
const EVENT_STREAM: &str = "text/event-stream";

/// Hop by hop, not end to end.
const PER_CONNECTION: [HeaderName; 6] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    TRANSFER_ENCODING,
    TE,
    TRAILER,
    // Whoever reads the body has said that it may come.
    EXPECT,
];

/// A client's end of a connection that may become something else.
struct Upgraded {
    client: OnUpgrade,
    /// The WebSocket of a session.
    is_session: bool,
}

pub(crate) async fn pass(State(app): State<App>, request: Request, next: Next) -> Response {
    let Standing::Follows(leader) = &app.standing else { return next.run(request).await };
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let place = match route {
        _ if preview::is_for_a_host(&app, &request) => Place::Port,
        Some(route) => place(route),
        None => Place::Anywhere,
    };
    let route = route.unwrap_or_default().to_owned();
    match place {
        Place::Anywhere => return next.run(request).await,
        Place::Port => {
            let passed = to_leader(&app, leader, &route, request);
            return passed.await.unwrap_or_else(IntoResponse::into_response);
        }
        Place::Guest | Place::Leader => {}
    }
    let (mut parts, body) = request.into_parts();
    if route == SOCKET {
        // It has a token of its own.
        if let Err(refusal) = session_socket::known(&app, &parts) {
            return refusal.into_response();
        }
        let passed = to_leader(&app, leader, &route, Request::from_parts(parts, body));
        return passed.await.unwrap_or_else(IntoResponse::into_response);
    }
    // Nobody unknown is a burden to the leader.
    let caller = match Who::from_request_parts(&mut parts, &app).await {
        Ok(Who(caller)) => caller,
        Err(refusal) => return refusal.into_response(),
    };
    if place == Place::Guest {
        let target = Target::from_request_parts(&mut parts, &app).await;
        let here = match target {
            Ok(Target(sandbox)) => app.engine.can_use(&caller, &sandbox).await,
            // Its handler says so better.
            Err(_) => Ok(true),
        };
        match here {
            Ok(true) => return next.run(Request::from_parts(parts, body)).await,
            Ok(false) => {}
            Err(error) => return Refusal::from(error).into_response(),
        }
    }
    let passed = to_leader(&app, leader, &route, Request::from_parts(parts, body));
    passed.await.unwrap_or_else(IntoResponse::into_response)
}

/// Who is at the other end of a connection to the server that passed this on.
pub(crate) fn peer_of(headers: &HeaderMap) -> Option<SocketAddr> {
    headers.get(PEER)?.to_str().ok()?.parse().ok()
}

/// New routes are the leader's until somebody says otherwise here.
fn place(route: &str) -> Place {
    if route == TOLD {
        return Place::Leader;
    }
    let Some(of_sandbox) = route.strip_prefix("/v1/sandboxes/{id}/") else {
        let own = ["/healthz", "/openapi.json", "/docs", "/metrics", "/debug/endpoints"];
        let own = own.contains(&route);
        let stored = STORED.iter().any(|of| {
            route.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        return if own || stored { Place::Anywhere } else { Place::Leader };
    };
    if of_sandbox.starts_with("ports/") {
        return Place::Port;
    }
    match of_sandbox {
        "exec" | "exec/stream" | "exec/{exec_id}" | "files" | "files/export" | "files/import"
        | "logs" | "tunnel" => Place::Guest,
        _ => Place::Leader,
    }
}

/// Whether doing it twice is the same as doing it once (with a key, for a create).
fn is_repeatable(method: &Method, route: &str) -> bool {
    let lifecycle = ["start", "stop", "pause", "resume", "cancel"];
    let of_sandbox = route.strip_prefix("/v1/sandboxes/{id}/").unwrap_or_default();
    let once = ["/v1/sandboxes", "/v1/sessions/resume", "/v1/sessions/{id}/token"];
    let once = once.contains(&route);
    *method != Method::POST || once || lifecycle.contains(&of_sandbox)
}

async fn to_leader(
    app: &App,
    leader: &Leader,
    route: &str,
    request: Request,
) -> Result<Response, Refusal> {
    let (mut parts, body) = request.into_parts();
    let streams =
        route.contains("/files") || !route.starts_with("/v1") || place(route) == Place::Port;
    if let Some(peer) = parts.extensions.get::<PeerAddress>() {
        let peer = HeaderValue::try_from(peer.0.to_string()).expect("an address is printable");
        parts.headers.insert(PEER, peer);
    }
    let upgrade = parts.extensions.remove::<OnUpgrade>();
    let upgrade = upgrade.filter(|_| parts.headers.contains_key(UPGRADE));
    if upgrade.is_some()
        && let Some(connection) = parts.extensions.get::<MayStall>()
    {
        connection.allow();
    }
    let creates = parts.method == Method::POST && route == "/v1/sandboxes";
    let keyed = creates && !parts.headers.contains_key(IDEMPOTENCY_KEY);
    if keyed {
        parts.headers.insert(IDEMPOTENCY_KEY, fresh_key());
    }
    end_to_end(&mut parts.headers, upgrade.is_some());
    let uri = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let head = hyper::Request::builder().method(parts.method.clone()).uri(uri);
    let mut head = head.body(()).map_err(|_| Refusal::NoRoute)?;
    *head.headers_mut() = parts.headers.clone();
    // Nothing is said on a socket that is not there yet.
    let quiet = upgrade.is_none() || route == SOCKET;
    let repeatable = !streams && quiet && is_repeatable(&parts.method, route);
    let passed = if streams {
        leader.pass_once(app, head.map(|()| body)).await
    } else {
        let bytes = body::read(Request::from_parts(parts, body), app).await?;
        leader.pass(app, head.map(|()| bytes), repeatable).await
    };
    let response = match passed {
        Passed::Answered(response) => response,
        Passed::Refused(refusal) => return Err(refusal),
    };
    let carried = upgrade.map(|client| Upgraded { client, is_session: route == SOCKET });
    Ok(answered(app, response, carried, keyed))
}

/// The answer as the client gets it; a connection that was upgraded is carried on.
fn answered(
    app: &App,
    mut response: hyper::Response<hyper::body::Incoming>,
    upgrade: Option<Upgraded>,
    keyed: bool,
) -> Response {
    let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if let (true, Some(Upgraded { client, is_session })) = (upgraded, upgrade) {
        let server = hyper::upgrade::on(&mut response);
        let draining = app.draining.clone();
        // The leader is the first to lose it.
        let patience = Duration::from_secs(app.limits.body_timeout_seconds) * 2;
        app.tasks.spawn(async move {
            if is_session {
                return socket::carry((client, server), draining, patience).await;
            }
            draining.run_until_cancelled(carry(client, server)).await;
        });
    }
    end_to_end(response.headers_mut(), upgraded);
    if keyed {
        response.headers_mut().remove(REPLAYED);
    }
    let endless = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == EVENT_STREAM);
    let response = response.map(Body::new);
    if !endless {
        return response;
    }
    let draining = app.draining.clone().cancelled_owned();
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(draining)))
}

async fn carry(client: OnUpgrade, server: OnUpgrade) {
    let (Ok(client), Ok(server)) = (client.await, server.await) else { return };
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    let size = TUNNEL_BUFFER_BYTES;
    // Either end breaking is how tunnels end; there is nobody left to tell.
    let _ = copy_bidirectional_with_sizes(&mut client, &mut server, size, size).await;
}

fn end_to_end(headers: &mut HeaderMap, upgrades: bool) {
    for name in PER_CONNECTION {
        if !(upgrades && name == CONNECTION) {
            headers.remove(name);
        }
    }
    if !upgrades {
        headers.remove(UPGRADE);
    }
}

/// One that no client has chosen: ids are random.
fn fresh_key() -> HeaderValue {
    let text = format!("passed-on-{}", model::SandboxId::generate());
    HeaderValue::try_from(text).expect("an id is printable")
}

/// A body that can be sent again.
fn again(bytes: &Bytes) -> Body {
    Body::from(bytes.clone())
}

#[cfg(test)]
mod tests;
