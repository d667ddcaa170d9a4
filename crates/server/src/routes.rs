//! The handlers, one file a resource; each is its own row of the `OpenAPI` document.

pub(crate) mod administration;
pub(crate) mod agents;
pub(crate) mod billing;
pub(crate) mod catalogue;
pub(crate) mod egress;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod files;
pub(crate) mod keys;
pub(crate) mod lifecycle;
pub(crate) mod logs;
pub(crate) mod meta;
pub(crate) mod organisation_money;
pub(crate) mod organisations;
pub(crate) mod ports;
pub(crate) mod sandboxes;
pub(crate) mod secrets;
pub(crate) mod session_log;
pub(crate) mod session_socket;
pub(crate) mod sessions;
pub(crate) mod sign_in;
pub(crate) mod tenants;
pub(crate) mod tunnel;
pub(crate) mod usage;
pub(crate) mod workspace_files;
pub(crate) mod workspaces;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;

use crate::app::App;
use crate::refusal::Refusal;
use crate::{audit, code, forward, front, preview};

/// Adds what is the same for every route.
pub(crate) fn finish(routes: Router<App>, app: &App) -> Router {
    routes
        .merge(code::routes(app))
        .fallback(async || Refusal::NoRoute)
        .method_not_allowed_fallback(async || Refusal::WrongMethod)
        .layer(from_fn_with_state(Arc::clone(app), audit::pass))
        .layer(from_fn_with_state(Arc::clone(app), preview::by_host))
        .layer(from_fn_with_state(Arc::clone(app), forward::pass))
        .layer(from_fn_with_state(Arc::clone(app), front::pass))
        .with_state(Arc::clone(app))
}
