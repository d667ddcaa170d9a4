//! Writes down every change of accounts, keys, limits, money and sandboxes: who asked for what, from where, and
//! what came of it. It is durable before the answer goes out; but for sandboxes, whose answers do not wait for it.

use std::sync::{Arc, OnceLock};

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use jiff::Timestamp;
use store::AuditEntry;

use crate::app::App;
use crate::listen::PeerAddress;

/// Reading is not written down, nor are commands and files.
const AUDITED: [&str; 7] = [
    "/v1/tenants",
    "/v1/auth",
    "/v1/api-keys",
    "/v1/admin",
    "/v1/billing",
    "/v1/workspaces",
    "/v1/sessions",
];

/// What is done to sandboxes; by whom they are ended otherwise is among their events.
const OF_SANDBOXES: [(Method, &str); 6] = [
    (Method::POST, "/v1/sandboxes"),
    (Method::PATCH, "/v1/sandboxes/{id}"),
    (Method::DELETE, "/v1/sandboxes/{id}"),
    (Method::POST, "/v1/sandboxes/{id}/start"),
    (Method::POST, "/v1/sandboxes/{id}/stop"),
    (Method::POST, "/v1/sandboxes/{id}/ports/{port}/link"),
];

/// Longer targets are cut: a path can be as long as a request's head.
const TARGET_CHARS_MAX: usize = 300;

/// What a handler learns about its caller, for the log.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trail {
    actor: Arc<OnceLock<String>>,
    target: Arc<OnceLock<String>>,
}

impl Trail {
    pub(crate) fn is_by(&self, actor: &impl ToString) {
        let _ = self.actor.set(actor.to_string());
    }

    /// Whom or what it is about, where the path does not say it.
    pub(crate) fn is_about(&self, target: &impl ToString) {
        let _ = self.target.set(target.to_string());
    }
}

/// What an answer is about, where the path does not say it or says it by a name.
#[derive(Debug, Clone)]
pub(crate) struct About(pub(crate) String);

pub(crate) async fn pass(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    let of_sandbox =
        OF_SANDBOXES.iter().any(|(method, of)| method == request.method() && route == Some(*of));
    let audited = |route: &&str| of_sandbox || (!reads && is_audited(route));
    let Some(route) = route.filter(audited) else { return next.run(request).await };
    let action = format!("{} {route}", request.method());
    let path = request.uri().path().to_owned();
    let peer = request.extensions().get::<PeerAddress>().copied();
    let address =
        peer.map(|PeerAddress(peer)| app.accounts.proxies.client(peer.ip(), request.headers()));
    let trail = Trail::default();
    request.extensions_mut().insert(trail.clone());
    let response = next.run(request).await;
    let (actor, target) = (trail.actor.get(), trail.target.get());
    let refused = response.status().is_client_error();
    if refused && actor.is_none() && (target.is_none() || response.status() == 429) {
        // Anybody can send such requests: they are in the access log alone.
        return response;
    }
    let told = response.extensions().get::<About>().map(|About(told)| told);
    let target = target.or(told).unwrap_or(&path).chars().take(TARGET_CHARS_MAX).collect();
    let entry = AuditEntry {
        at: Timestamp::now(),
        actor: actor.cloned().unwrap_or_default(),
        action,
        target,
        outcome: response.status().as_u16().to_string(),
        address: address.map(|address| address.to_string()).unwrap_or_default(),
    };
    let written = app.store.audit(entry);
    if of_sandbox {
        app.tasks.spawn(log_failure(written));
    } else {
        log_failure(written).await;
    }
    response
}

async fn log_failure(written: impl Future<Output = model::Result<()>>) {
    if let Err(error) = written.await {
        tracing::error!(error = error.to_string(), "could not write to the audit log");
    }
}

fn is_audited(route: &str) -> bool {
    AUDITED.iter().any(|of| {
        let rest = route.strip_prefix(of);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}
