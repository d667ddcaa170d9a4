//! Start, stop, pause, resume, cancel.

use api::cancel::CancelReason;
use api::{CancelRequest, CancelResponse, Sandbox};
use axum::Json as Answer;
use axum::extract::State;

use crate::app::App;
use crate::auth::Who;
use crate::body::OptionalJson;
use crate::oneshot;
use crate::refusal::Refusal;
use crate::target::{NoQuery, Target};

/// Start a stopped sandbox
///
/// With its workspace and home as they were. Answers once it runs; a running one is 200 at once.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/start", tag = "Lifecycle", operation_id = "start_sandbox",
    params(("id" = String, Path, description = "Its id or its name")),
    responses(
        (status = 200, description = "It runs", body = Sandbox),
        (status = 402, description = "`credits_exhausted`: there is no credit left"),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 409, description = "`wrong_state`: not from this state; `no_capacity`"),
        (status = 429, description = "`quota_exceeded`; `Retry-After` says when to come back"),
        (status = 503, description = "No pool answers"),
    )
)]
pub(crate) async fn start(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    _none: NoQuery,
) -> Result<Answer<Sandbox>, Refusal> {
    let started = app.engine.start_sandbox(&caller, &sandbox).await?;
    oneshot::watch(&app, &started.spec);
    Ok(Answer(app.shown(&started)))
}

/// Stop a sandbox
///
/// Ends every process, flushes the workspace and keeps it. Answers once that is done; a stopped
/// one is 200 at once.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/stop", tag = "Lifecycle", operation_id = "stop_sandbox",
    params(("id" = String, Path, description = "Its id or its name")),
    responses(
        (status = 200, description = "Stopped", body = Sandbox),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 409, description = "`wrong_state`: not from this state"),
    )
)]
pub(crate) async fn stop(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    _none: NoQuery,
) -> Result<Answer<Sandbox>, Refusal> {
    Ok(Answer(app.shown(&app.engine.stop(&caller, &sandbox).await?)))
}

/// Pause a sandbox
///
/// Freezes every process where it is, in memory. Its idle clock stands still, its lifetime runs.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/pause", tag = "Lifecycle", operation_id = "pause_sandbox",
    params(("id" = String, Path, description = "Its id or its name")),
    responses(
        (status = 200, description = "Paused", body = Sandbox),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 409, description = "`wrong_state`: not from this state"),
    )
)]
pub(crate) async fn pause(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    _none: NoQuery,
) -> Result<Answer<Sandbox>, Refusal> {
    Ok(Answer(app.shown(&app.engine.pause(&caller, &sandbox).await?)))
}

/// Resume a paused sandbox
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/resume", tag = "Lifecycle", operation_id = "resume_sandbox",
    params(("id" = String, Path, description = "Its id or its name")),
    responses(
        (status = 200, description = "It runs", body = Sandbox),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 409, description = "`wrong_state`: not from this state"),
    )
)]
pub(crate) async fn resume(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    _none: NoQuery,
) -> Result<Answer<Sandbox>, Refusal> {
    let resumed = app.engine.resume(&caller, &sandbox).await?;
    oneshot::watch(&app, &resumed.spec);
    Ok(Answer(app.shown(&resumed)))
}

/// Ask an agent to wrap up
///
/// A cooperative signal to every attached client, and to the agent of a one-shot task, which may write its
/// result before it ends; it does not end the sandbox (delete does). The body may be left out.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/cancel", tag = "Lifecycle", operation_id = "cancel_sandbox",
    params(("id" = String, Path, description = "Its id or its name")),
    request_body(content = Option<CancelRequest>),
    responses(
        (status = 200, description = "Told; `cancelled` is false when nobody listened",
            body = CancelResponse),
        (status = 400, description = "An unknown reason"),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 409, description = "`wrong_state`: it does not run"),
    )
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    _none: NoQuery,
    OptionalJson(request): OptionalJson<CancelRequest>,
) -> Result<Answer<CancelResponse>, Refusal> {
    let reason = match request.reason {
        CancelReason::CreditsExhausted => engine::CancelReason::CreditsExhausted,
        CancelReason::UserRequest => engine::CancelReason::UserRequest,
        CancelReason::AdminAction => engine::CancelReason::AdminAction,
        CancelReason::Timeout => engine::CancelReason::Timeout,
    };
    let told = app.engine.cancel(&caller, &sandbox, reason).await?;
    let spec = app.engine.get(&caller, &sandbox).await?.spec;
    oneshot::cancel(&app, &caller, &spec, reason.as_str()).await;
    Ok(Answer(CancelResponse {
        vm_id: told.id.to_string(),
        cancelled: told.cancelled,
        reason: request.reason,
    }))
}
