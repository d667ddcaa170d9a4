//! Errors as problem bodies.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};

use crate::api::ProblemDetails;
use crate::error::Error;

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let (status, problem) = problem(&self);
        if status.is_server_error() {
            tracing::warn!("{} {}: {self}", status.as_u16(), problem.kind);
        }
        (status, Json(problem)).into_response()
    }
}

/// A request that nobody can read, with the status that says how.
pub(super) fn unreadable(status: StatusCode, message: &str) -> Response {
    let error = Error::invalid(message);
    let (_, problem) = problem(&error);
    (status, Json(ProblemDetails { status: status.as_u16(), ..problem })).into_response()
}

fn problem(error: &Error) -> (StatusCode, ProblemDetails) {
    let (status, name, title) = kind(error);
    let problem = ProblemDetails {
        kind: format!("urn:sandbox-agent:error:{name}"),
        title: title.to_owned(),
        status: status.as_u16(),
        detail: Some(error.to_string()),
        instance: None,
        agent: agent(error).map(str::to_owned),
        session_id: session(error).map(str::to_owned),
        details: details(error),
    };
    (status, problem)
}

fn kind(error: &Error) -> (StatusCode, &'static str, &'static str) {
    match error {
        Error::InvalidRequest { .. } => {
            (StatusCode::BAD_REQUEST, "invalid_request", "Invalid Request")
        }
        Error::UnsupportedAgent { .. } => {
            (StatusCode::BAD_REQUEST, "unsupported_agent", "Unsupported Agent")
        }
        Error::ModeNotSupported { .. } => {
            (StatusCode::BAD_REQUEST, "mode_not_supported", "Mode Not Supported")
        }
        Error::TokenInvalid => (StatusCode::UNAUTHORIZED, "token_invalid", "Token Invalid"),
        Error::AgentNotInstalled { .. } => {
            (StatusCode::NOT_FOUND, "agent_not_installed", "Agent Not Installed")
        }
        Error::SessionNotFound { .. } => {
            (StatusCode::NOT_FOUND, "session_not_found", "Session Not Found")
        }
        Error::SessionAlreadyExists { .. } => {
            (StatusCode::CONFLICT, "session_already_exists", "Session Already Exists")
        }
        Error::InstallFailed { .. } => {
            (StatusCode::INTERNAL_SERVER_ERROR, "install_failed", "Install Failed")
        }
        Error::AgentProcessExited { .. } => {
            (StatusCode::INTERNAL_SERVER_ERROR, "agent_process_exited", "Agent Process Exited")
        }
        Error::Stream { .. } => (StatusCode::BAD_GATEWAY, "stream_error", "Stream Error"),
        Error::Timeout { .. } => (StatusCode::GATEWAY_TIMEOUT, "timeout", "Timeout"),
    }
}

fn agent(error: &Error) -> Option<&str> {
    match error {
        Error::UnsupportedAgent { agent }
        | Error::ModeNotSupported { agent, .. }
        | Error::AgentNotInstalled { agent }
        | Error::InstallFailed { agent, .. }
        | Error::AgentProcessExited { agent, .. } => Some(agent),
        Error::InvalidRequest { .. }
        | Error::TokenInvalid
        | Error::SessionNotFound { .. }
        | Error::SessionAlreadyExists { .. }
        | Error::Stream { .. }
        | Error::Timeout { .. } => None,
    }
}

fn session(error: &Error) -> Option<&str> {
    match error {
        Error::SessionNotFound { session_id } | Error::SessionAlreadyExists { session_id } => {
            Some(session_id)
        }
        Error::InvalidRequest { .. }
        | Error::UnsupportedAgent { .. }
        | Error::ModeNotSupported { .. }
        | Error::TokenInvalid
        | Error::AgentNotInstalled { .. }
        | Error::InstallFailed { .. }
        | Error::AgentProcessExited { .. }
        | Error::Stream { .. }
        | Error::Timeout { .. } => None,
    }
}

fn details(error: &Error) -> Option<Value> {
    match error {
        Error::ModeNotSupported { mode, .. } => Some(json!({ "mode": mode })),
        Error::TokenInvalid => Some(json!({ "message": "missing or invalid token" })),
        Error::InstallFailed { stderr, .. } => Some(json!({ "stderr": stderr })),
        Error::AgentProcessExited { exit_code, stderr, .. } => {
            Some(json!({ "exitCode": exit_code, "stderr": stderr }))
        }
        Error::Stream { message } | Error::Timeout { message } => {
            Some(json!({ "message": message }))
        }
        Error::InvalidRequest { .. }
        | Error::UnsupportedAgent { .. }
        | Error::AgentNotInstalled { .. }
        | Error::SessionNotFound { .. }
        | Error::SessionAlreadyExists { .. } => None,
    }
}
