//! The routes that change sessions.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;

use super::extract::Body;
use crate::adapter::Answer;
use crate::api::{
    CreateSessionRequest, CreateSessionResponse, MessageRequest, PermissionReplyRequest,
    ProblemDetails, QuestionReplyRequest, SessionListResponse,
};
use crate::daemon::Daemon;
use crate::error::Result;

#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", operation_id = "list_sessions",
    responses((status = 200, description = "Newest first", body = SessionListResponse)))]
pub(crate) async fn list(State(daemon): State<Arc<Daemon>>) -> Json<SessionListResponse> {
    Json(SessionListResponse { sessions: daemon.sessions() })
}

#[utoipa::path(post, path = "/v1/sessions/{session_id}", tag = "sessions",
    operation_id = "create_session", request_body = CreateSessionRequest,
    params(("session_id" = String, Path, description = "Client session id")),
    responses(
        (status = 200, description = "The agent is ready", body = CreateSessionResponse),
        (status = 400, description = "Agent, mode or field", body = ProblemDetails),
        (status = 409, description = "The id is taken", body = ProblemDetails),
        (status = 415, description = "Not JSON", body = ProblemDetails),
        (status = 422, description = "Another shape", body = ProblemDetails),
        (status = 500, description = "The agent could not be installed", body = ProblemDetails),
        (status = 502, description = "The agent does not start", body = ProblemDetails),
    ))]
pub(crate) async fn create(
    State(daemon): State<Arc<Daemon>>,
    Path(id): Path<String>,
    Body(request): Body<CreateSessionRequest>,
) -> Result<Json<CreateSessionResponse>> {
    daemon.create(&id, request).await.map(Json)
}

/// A message that comes during a turn waits for its end.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/messages", tag = "sessions",
    operation_id = "post_message", request_body = MessageRequest,
    params(("session_id" = String, Path, description = "Session id")),
    responses(
        (status = 204, description = "Message accepted"),
        (status = 400, description = "The session has ended", body = ProblemDetails),
        (status = 404, description = "No such session", body = ProblemDetails),
        (status = 415, description = "Not JSON", body = ProblemDetails),
        (status = 422, description = "Another shape", body = ProblemDetails),
        (status = 500, description = "The agent is gone", body = ProblemDetails),
    ))]
pub(crate) async fn message(
    State(daemon): State<Arc<Daemon>>,
    Path(id): Path<String>,
    Body(request): Body<MessageRequest>,
) -> Result<StatusCode> {
    daemon.session(&id)?.message(request.message)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ours: ends the turn; the session goes on.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/interrupt", tag = "sessions",
    operation_id = "interrupt_session",
    params(("session_id" = String, Path, description = "Session id")),
    responses(
        (status = 204, description = "The turn ends soon, if one runs"),
        (status = 400, description = "The session has ended", body = ProblemDetails),
        (status = 404, description = "No such session", body = ProblemDetails),
    ))]
pub(crate) async fn interrupt(
    State(daemon): State<Arc<Daemon>>,
    Path(id): Path<String>,
) -> Result<StatusCode> {
    daemon.session(&id)?.interrupt()?;
    Ok(StatusCode::NO_CONTENT)
}

/// Answered when no process of the agent is left.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/terminate", tag = "sessions",
    operation_id = "terminate_session",
    params(("session_id" = String, Path, description = "Session id")),
    responses(
        (status = 204, description = "Session terminated"),
        (status = 404, description = "No such session", body = ProblemDetails),
    ))]
pub(crate) async fn terminate(
    State(daemon): State<Arc<Daemon>>,
    Path(id): Path<String>,
) -> Result<StatusCode> {
    daemon.session(&id)?.terminate().await?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(post, path = "/v1/sessions/{session_id}/permissions/{permission_id}/reply",
    tag = "sessions", operation_id = "reply_permission", request_body = PermissionReplyRequest,
    params(
        ("session_id" = String, Path, description = "Session id"),
        ("permission_id" = String, Path, description = "Permission id"),
    ),
    responses(
        (status = 204, description = "Permission reply accepted"),
        (status = 400, description = "No such permission is pending", body = ProblemDetails),
        (status = 404, description = "No such session", body = ProblemDetails),
        (status = 415, description = "Not JSON", body = ProblemDetails),
        (status = 422, description = "Another shape", body = ProblemDetails),
    ))]
pub(crate) async fn reply_permission(
    State(daemon): State<Arc<Daemon>>,
    Path((id, permission)): Path<(String, String)>,
    Body(request): Body<PermissionReplyRequest>,
) -> Result<StatusCode> {
    daemon.session(&id)?.reply_permission(&permission, request.reply)?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(post, path = "/v1/sessions/{session_id}/questions/{question_id}/reply",
    tag = "sessions", operation_id = "reply_question", request_body = QuestionReplyRequest,
    params(
        ("session_id" = String, Path, description = "Session id"),
        ("question_id" = String, Path, description = "Question id"),
    ),
    responses(
        (status = 204, description = "Question answered"),
        (status = 400, description = "No such question is pending", body = ProblemDetails),
        (status = 404, description = "No such session", body = ProblemDetails),
        (status = 415, description = "Not JSON", body = ProblemDetails),
        (status = 422, description = "Another shape", body = ProblemDetails),
    ))]
pub(crate) async fn reply_question(
    State(daemon): State<Arc<Daemon>>,
    Path((id, question)): Path<(String, String)>,
    Body(request): Body<QuestionReplyRequest>,
) -> Result<StatusCode> {
    daemon.session(&id)?.answer_question(&question, Answer::Answered(request.answers))?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(post, path = "/v1/sessions/{session_id}/questions/{question_id}/reject",
    tag = "sessions", operation_id = "reject_question",
    params(
        ("session_id" = String, Path, description = "Session id"),
        ("question_id" = String, Path, description = "Question id"),
    ),
    responses(
        (status = 204, description = "Question rejected"),
        (status = 400, description = "No such question is pending", body = ProblemDetails),
        (status = 404, description = "No such session", body = ProblemDetails),
    ))]
pub(crate) async fn reject_question(
    State(daemon): State<Arc<Daemon>>,
    Path((id, question)): Path<(String, String)>,
) -> Result<StatusCode> {
    daemon.session(&id)?.answer_question(&question, Answer::Rejected)?;
    Ok(StatusCode::NO_CONTENT)
}
