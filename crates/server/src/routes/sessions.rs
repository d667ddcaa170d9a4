//! Sessions: making, finding, resuming, forking and deleting them (000 *Sessions API*).

use api::session::{
    CreateSession, ForkPoint, ForkSession, ForkedFrom, ResumeSession, ResumedFrom, Session,
    SessionCreated, SessionDeleted, SessionForked, SessionResumed, SessionUsage, Sessions as Shown,
    SessionsQuery, ShownAgent, ShownApp, ShownModel,
};
use axum::Json as Answer;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use model::{Error, SessionStatus};
use store::{AuditEntry, SessionRecord};

use crate::app::App;
use crate::audit::{About, Trail};
use crate::auth::Who;
use crate::body::{Json, OptionalJson};
use crate::refusal::{Refusal, SessionTrouble};
use crate::sessions::{ResumeError, Sessions, Started};
use crate::target::{NoQuery, RawQuery, SessionTarget};

/// Characters of an id that the audit log keeps.
const AUDITED_MAX: usize = 128;

/// Start a session
///
/// Makes a sandbox, starts the agent in it, and answers with the way to its WebSocket. The session outlives
/// connections and, by `POST /v1/sessions/resume`, its sandbox.
#[utoipa::path(
    post, path = "/v1/sessions", tag = "Sessions", operation_id = "create_session", request_body = CreateSession,
    responses(
        (status = 201, description = "It runs", body = SessionCreated),
        (status = 400, description = "A field is missing, unknown or wrong; `field` names it"),
        (status = 402, description = "`credits_exhausted`: there is no credit left"),
        (status = 404, description = "There is no such bundle of secrets"),
        (status = 409, description = "`no_capacity`: no room on any pool"),
        (status = 429, description = "`quota_exceeded`; `Retry-After` says when to come back"),
        (status = 501, description = "The template or the agent's program is not built here yet"),
        (status = 502, description = "`bad_gateway`: the agent did not start"),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    Who(caller): Who,
    _none: NoQuery,
    body: Json<CreateSession>,
) -> Result<Response, Refusal> {
    let wanted = body.value.check(&caller.owner)?;
    let started = Sessions::create(&app, &caller, wanted).await?;
    let way = way(&app, &started)?;
    let id = way.chat_session_id.clone();
    let location = [(LOCATION, format!("/v1/sessions/{id}"))];
    Ok((StatusCode::CREATED, Extension(About(id)), location, Answer(way)).into_response())
}

/// Resume a session
///
/// On a fresh sandbox, with its files, its log, its model and its secrets; what was left of the old sandbox goes
/// first. Asked twice within 30 seconds, the answer is the same.
#[utoipa::path(
    post, path = "/v1/sessions/resume", tag = "Sessions", operation_id = "resume_session", request_body = ResumeSession,
    responses(
        (status = 200, description = "It runs again", body = SessionResumed),
        (status = 400, description = "A field is missing, unknown or wrong; `field` names it"),
        (status = 402, description = "`credits_exhausted`: there is no credit left"),
        (status = 403, description = "It is another tenant's"),
        (status = 404, description = "There never was such a session"),
        (status = 409, description = "`no_capacity`: no room on any pool"),
        (status = 429, description = "`quota_exceeded`; `Retry-After` says when to come back"),
        (status = 501, description = "The template or the agent's program is not built here any more"),
        (status = 502, description = "`secret_bundle_not_found_at_resume`: a bundle of secrets was deleted meanwhile"),
    )
)]
pub(crate) async fn resume(
    State(app): State<App>,
    Who(caller): Who,
    _none: NoQuery,
    Extension(trail): Extension<Trail>,
    body: Json<ResumeSession>,
) -> Result<Answer<SessionResumed>, Refusal> {
    let (id, ttl_seconds) = body.value.check()?;
    let shown: String = id.chars().take(AUDITED_MAX).collect();
    trail.is_about(&shown);
    let id = id.parse()?;
    let resumed = match Sessions::resume(&app, &caller, id, ttl_seconds).await {
        Ok(resumed) => resumed,
        Err(ResumeError::OtherOwner(owner)) => {
            let entry = AuditEntry {
                at: Timestamp::now(),
                actor: caller.owner.to_string(),
                action: "cross_tenant_resume_denied".into(),
                target: format!("{id} owner_tenant_id={owner}"),
                outcome: "403".into(),
                address: String::new(),
            };
            app.store.audit(entry).await?;
            return Err(Refusal::Forbidden("the session is another tenant's"));
        }
        Err(ResumeError::NoBundle(bundle)) => return Err(SessionTrouble::NoBundle(bundle).into()),
        Err(ResumeError::Other(error)) => return Err(error.into()),
    };
    let way = way(&app, &resumed.started)?;
    Ok(Answer(SessionResumed {
        chat_session_id: way.chat_session_id,
        jwt: way.jwt,
        connect_url: way.connect_url,
        expires_at: way.expires_at,
        sandbox_id: way.sandbox_id,
        resumed_from: ResumedFrom { previous_status: resumed.previous_status },
    }))
}

/// Get another token of a session
///
/// For one that runs, when the first token is lost or is somewhere else.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/token", tag = "Sessions", operation_id = "session_token",
    params(("id" = String, Path, description = "Its `chat_session_id`")),
    responses(
        (status = 200, description = "The way to it", body = SessionCreated),
        (status = 404, description = "No such session, or another owner's"),
        (status = 409, description = "`wrong_state`: it does not run; resume it"),
    )
)]
pub(crate) async fn token(
    State(app): State<App>,
    Who(caller): Who,
    SessionTarget(id): SessionTarget,
    _none: NoQuery,
) -> Result<Answer<SessionCreated>, Refusal> {
    let record = Sessions::get(&app, &caller, id).await?;
    if record.status != SessionStatus::Running {
        let detail = format!("the session is {}\nhint: resume it", record.status);
        return Err(Error::wrong_state(detail).into());
    }
    Ok(Answer(way(&app, &Started { record })?))
}

/// List your sessions
///
/// The newest first, also those that do not run, a page at a time.
#[utoipa::path(
    get, path = "/v1/sessions", tag = "Sessions", operation_id = "list_sessions",
    params(
        ("limit" = Option<u64>, Query, description = "At most 1000, the default"),
        ("token" = Option<String>, Query, description = "`next_token` of the page before"),
    ),
    responses(
        (status = 200, description = "A page", body = Shown),
        (status = 400, description = "A wrong limit or token"),
    )
)]
pub(crate) async fn list(
    State(app): State<App>,
    Who(caller): Who,
    RawQuery(query): RawQuery,
) -> Result<Answer<Shown>, Refusal> {
    let asked = SessionsQuery::parse(query.as_deref())?;
    let (sessions, more) = Sessions::list(&app, &caller, asked).await?;
    let next_token = sessions.last().filter(|_| more).map(|last| last.id.to_string());
    Ok(Answer(Shown { sessions: sessions.into_iter().map(shown).collect(), next_token }))
}

/// Get one session
#[utoipa::path(
    get, path = "/v1/sessions/{id}", tag = "Sessions", operation_id = "get_session",
    params(("id" = String, Path, description = "Its `chat_session_id`")),
    responses(
        (status = 200, description = "Found", body = Session),
        (status = 404, description = "No such session, or another owner's"),
    )
)]
pub(crate) async fn get(
    State(app): State<App>,
    Who(caller): Who,
    SessionTarget(id): SessionTarget,
    _none: NoQuery,
) -> Result<Answer<Session>, Refusal> {
    Ok(Answer(shown(Sessions::get(&app, &caller, id).await?)))
}

/// Delete a session
///
/// Its sandbox, its files and its log. Who is connected is told: 1001, `sandbox destroyed`.
#[utoipa::path(
    delete, path = "/v1/sessions/{id}", tag = "Sessions", operation_id = "delete_session",
    params(("id" = String, Path, description = "Its `chat_session_id`")),
    responses(
        (status = 200, description = "Gone", body = SessionDeleted),
        (status = 404, description = "No such session, or another owner's"),
    )
)]
pub(crate) async fn delete(
    State(app): State<App>,
    Who(caller): Who,
    SessionTarget(id): SessionTarget,
    _none: NoQuery,
) -> Result<Answer<SessionDeleted>, Refusal> {
    let deleted = Sessions::delete(&app, &caller, id).await?;
    let chat_session_id = deleted.id.to_string();
    Ok(Answer(SessionDeleted { chat_session_id, status: "deleted".into() }))
}

/// Fork a session
///
/// A new session with the log up to `at`, and a copy of the files as they are now: `workspace_as_of` says when
/// that was. The other one goes on. The body may be left out.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/fork", tag = "Sessions", operation_id = "fork_session",
    params(("id" = String, Path, description = "Its `chat_session_id`")),
    request_body(content = Option<ForkSession>),
    responses(
        (status = 201, description = "The new one runs", body = SessionForked),
        (status = 400, description = "A field is unknown or wrong, or `at` is beyond the end of the log"),
        (status = 402, description = "`credits_exhausted`: there is no credit left"),
        (status = 404, description = "No such session, or another owner's; or a bundle of secrets is gone"),
        (status = 409, description = "`no_capacity`: no room on any pool"),
        (status = 429, description = "`quota_exceeded`; `Retry-After` says when to come back"),
        (status = 501, description = "The template or the agent's program is not built here any more"),
        (status = 502, description = "`bad_gateway`: the agent did not start"),
    )
)]
pub(crate) async fn fork(
    State(app): State<App>,
    Who(caller): Who,
    SessionTarget(id): SessionTarget,
    _none: NoQuery,
    OptionalJson(request): OptionalJson<ForkSession>,
) -> Result<Response, Refusal> {
    let (started, workspace_as_of) = Sessions::fork(&app, &caller, id, request.check()?).await?;
    let record = &started.record;
    let Some(fork) = record.spec.forked_from.clone() else {
        return Err(Error::Internal(anyhow::anyhow!("a fork that is none")).into());
    };
    let way = way(&app, &started)?;
    let about = About(way.chat_session_id.clone());
    let location = [(LOCATION, format!("/v1/sessions/{}", way.chat_session_id))];
    let forked = SessionForked {
        chat_session_id: way.chat_session_id,
        jwt: way.jwt,
        connect_url: way.connect_url,
        expires_at: way.expires_at,
        sandbox_id: way.sandbox_id,
        forked_from: ForkedFrom {
            chat_session_id: fork.session.to_string(),
            at: fork.at,
            workspace_as_of,
        },
    };
    Ok((StatusCode::CREATED, Extension(about), location, Answer(forked)).into_response())
}

/// The token, and where it is good.
fn way(app: &App, started: &Started) -> Result<SessionCreated, Refusal> {
    let record = &started.record;
    Ok(SessionCreated {
        chat_session_id: record.id.to_string(),
        jwt: app.rt.tokens.issue(record)?,
        connect_url: format!("{}/v1/sessions/{}/ws", app.rt.url, record.id),
        expires_at: record.expires_at,
        sandbox_id: record.sandbox.map(|id| id.to_string()).unwrap_or_default(),
    })
}

fn shown(record: SessionRecord) -> Session {
    let spec = record.spec;
    let fork =
        |fork: model::Fork| ForkPoint { chat_session_id: fork.session.to_string(), at: fork.at };
    Session {
        chat_session_id: record.id.to_string(),
        status: record.status.as_str().into(),
        agent: ShownAgent { kind: spec.agent.as_str().into(), version: spec.agent_version },
        template: spec.template,
        llm: ShownModel {
            vendor: spec.vendor.as_str().into(),
            model: spec.model,
            base_url: spec.base_url,
        },
        app: ShownApp { id: spec.app_id, set_id: spec.set_id },
        wire_version: spec.wire_version,
        secrets: spec.bundles.iter().map(ToString::to_string).collect(),
        sandbox_id: record.sandbox.map(|id| id.to_string()),
        created_at: record.created_at,
        expires_at: record.expires_at,
        life: record.life,
        reason: record.reason,
        usage: SessionUsage {
            input_tokens: record.input_tokens,
            output_tokens: record.output_tokens,
            tool_calls: record.tool_calls,
        },
        forked_from: spec.forked_from.map(fork),
    }
}
