//! Writes down every change of accounts, keys, limits and money: who asked for what, from where, and
//! what came of it. It is durable before the answer goes out.

use std::sync::{Arc, OnceLock};

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use jiff::Timestamp;
use store::AuditEntry;

use crate::app::App;
use crate::listen::PeerAddress;

/// Reading is not written down, and what sandboxes do is among their events.
const AUDITED: [&str; 6] =
    ["/v1/tenants", "/v1/auth", "/v1/api-keys", "/v1/admin", "/v1/billing", "/v1/workspaces"];

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

pub(crate) async fn pass(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    let Some(route) = route.filter(|route| !reads && is_audited(route)) else {
        return next.run(request).await;
    };
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
    let target = target.unwrap_or(&path).chars().take(TARGET_CHARS_MAX).collect();
    let entry = AuditEntry {
        at: Timestamp::now(),
        actor: actor.cloned().unwrap_or_default(),
        action,
        target,
        outcome: response.status().as_u16().to_string(),
        address: address.map(|address| address.to_string()).unwrap_or_default(),
    };
    if let Err(error) = app.store.audit(entry).await {
        tracing::error!(error = error.to_string(), "could not write to the audit log");
    }
    response
}

fn is_audited(route: &str) -> bool {
    AUDITED.iter().any(|of| {
        let rest = route.strip_prefix(of);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}
