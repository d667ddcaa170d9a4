//! The routes about agents.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;

use super::extract::Body;
use crate::api::{
    AgentInstallRequest, AgentListResponse, AgentModelsResponse, AgentModesResponse, ProblemDetails,
};
use crate::daemon::Daemon;
use crate::error::Result;

#[utoipa::path(get, path = "/v1/agents", tag = "agents", operation_id = "list_agents",
    responses((status = 200, description = "Every agent", body = AgentListResponse)))]
pub(crate) async fn list(State(daemon): State<Arc<Daemon>>) -> Json<AgentListResponse> {
    Json(AgentListResponse { agents: daemon.agents().await })
}

#[utoipa::path(post, path = "/v1/agents/{agent}/install", tag = "agents",
    operation_id = "install_agent", request_body = AgentInstallRequest,
    params(("agent" = String, Path, description = "Agent id")),
    responses(
        (status = 204, description = "Agent installed"),
        (status = 400, description = "No such agent", body = ProblemDetails),
        (status = 404, description = "Not installed", body = ProblemDetails),
        (status = 415, description = "Not JSON", body = ProblemDetails),
        (status = 422, description = "Another shape", body = ProblemDetails),
        (status = 500, description = "It could not be installed", body = ProblemDetails),
    ))]
pub(crate) async fn install(
    State(daemon): State<Arc<Daemon>>,
    Path(agent): Path<String>,
    Body(request): Body<AgentInstallRequest>,
) -> Result<StatusCode> {
    daemon.install(&agent, request.reinstall.unwrap_or(false), request.version).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(get, path = "/v1/agents/{agent}/modes", tag = "agents",
    operation_id = "get_agent_modes", params(("agent" = String, Path, description = "Agent id")),
    responses(
        (status = 200, description = "Its modes", body = AgentModesResponse),
        (status = 400, description = "No such agent", body = ProblemDetails),
    ))]
pub(crate) async fn modes(
    State(daemon): State<Arc<Daemon>>,
    Path(agent): Path<String>,
) -> Result<Json<AgentModesResponse>> {
    let modes = daemon.adapter(&agent)?.modes(daemon.host()).await;
    Ok(Json(AgentModesResponse { modes }))
}

/// Ours: what `model` may be.
#[utoipa::path(get, path = "/v1/agents/{agent}/models", tag = "agents",
    operation_id = "get_agent_models", params(("agent" = String, Path, description = "Agent id")),
    responses(
        (status = 200, description = "What it can tell; maybe nothing", body = AgentModelsResponse),
        (status = 400, description = "No such agent", body = ProblemDetails),
        (status = 502, description = "It does not answer", body = ProblemDetails),
    ))]
pub(crate) async fn models(
    State(daemon): State<Arc<Daemon>>,
    Path(agent): Path<String>,
) -> Result<Json<AgentModelsResponse>> {
    let models = daemon.adapter(&agent)?.models(daemon.host()).await?;
    Ok(Json(AgentModelsResponse { models }))
}
