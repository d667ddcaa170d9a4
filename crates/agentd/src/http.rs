//! The contract over HTTP. This is the only module that knows status codes.

pub(crate) mod agents;
mod auth;
mod cors;
mod extract;
mod hosted;
mod problem;
pub(crate) mod sessions;
pub(crate) mod stream;
mod task;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post, put};
use axum::{Json, Router, middleware};

pub use self::auth::Token;
pub use self::cors::Cors;
use crate::api::HealthResponse;
use crate::daemon::Daemon;

/// The largest body of a request.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Every route of the daemon. Without a token everybody may use it.
pub(crate) fn router(daemon: Arc<Daemon>, token: Option<Token>, cors: Option<Cors>) -> Router {
    let guarded = Router::new()
        .route("/v1/agents", get(agents::list))
        .route("/v1/agents/{agent}/install", post(agents::install))
        .route("/v1/agents/{agent}/modes", get(agents::modes))
        .route("/v1/agents/{agent}/models", get(agents::models))
        .route("/v1/sessions", get(sessions::list))
        .route("/v1/sessions/{session_id}", post(sessions::create))
        .route("/v1/sessions/{session_id}/events", get(stream::events))
        .route("/v1/sessions/{session_id}/events/sse", get(stream::events_sse))
        .route("/v1/sessions/{session_id}/messages", post(sessions::message))
        .route("/v1/sessions/{session_id}/messages/stream", post(stream::message_stream))
        .route("/v1/sessions/{session_id}/interrupt", post(sessions::interrupt))
        .route("/v1/sessions/{session_id}/terminate", post(sessions::terminate))
        .route(
            "/v1/sessions/{session_id}/permissions/{permission_id}/reply",
            post(sessions::reply_permission),
        )
        .route(
            "/v1/sessions/{session_id}/questions/{question_id}/reply",
            post(sessions::reply_question),
        )
        .route(
            "/v1/sessions/{session_id}/questions/{question_id}/reject",
            post(sessions::reject_question),
        )
        .route("/internal/sessions/{session_id}", put(hosted::put))
        .route("/internal/sessions/{session_id}/env", put(hosted::change_env))
        .route("/internal/task", put(task::put).get(task::wait))
        .route("/internal/task/cancel", post(task::cancel))
        .route_layer(middleware::from_fn_with_state(token.map(Arc::new), auth::require));
    let router = guarded
        .route("/v1/health", get(health))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(daemon);
    match cors {
        None => router,
        // Around the routes, so that what they refuse is seen from other origins too.
        Some(cors) => Router::new()
            .fallback_service(router)
            .layer(middleware::from_fn_with_state(Arc::new(cors), cors::apply)),
    }
}

#[utoipa::path(get, path = "/v1/health", tag = "meta", operation_id = "get_health",
    security(()), responses((status = 200, description = "It serves", body = HealthResponse)))]
pub(crate) async fn health() -> Json<HealthResponse> {
    Json(HealthResponse { status: "ok".to_owned() })
}
