//! About the server itself: health, metrics, its own description, the templates it has.

use api::{Template, Templates};
use axum::Json as Answer;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY};
use axum::response::{IntoResponse, Response};
use model::Error;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::auth::Who;
use crate::config::MetricsAccess;
use crate::refusal::Refusal;
use crate::target::{NoQuery, TemplateTarget};

#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({ "status": "ok", "version": "0.0.0", "role": "leader", "epoch": 1 }))]
pub(crate) struct Health {
    status: &'static str,
    version: &'static str,
    /// `leader`: launches and stops sandboxes; `follower`: passes such calls to the leader.
    #[schema(value_type = String)]
    role: &'static str,
    /// Of the lease. Grows whenever another server becomes the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    /// The process that answers.
    pid: u32,
}

/// Is the server ready?
#[utoipa::path(
    get, path = "/healthz", tag = "Server", operation_id = "get_health", security(()),
    responses(
        (status = 200, description = "Ready", body = Health),
        (status = 503, description = "Draining: it finishes what it has and takes nothing new"),
    )
)]
pub(crate) async fn healthz(State(app): State<App>) -> Result<Answer<Health>, Refusal> {
    if app.draining.is_cancelled() {
        return Err(Error::unavailable("the server is ending").into());
    }
    let (role, epoch) = app.standing.told();
    let pid = std::process::id();
    Ok(Answer(Health { status: "ok", version: env!("CARGO_PKG_VERSION"), role, epoch, pid }))
}

/// This description
#[utoipa::path(
    get, path = "/openapi.json", tag = "Server", operation_id = "get_openapi", security(()),
    responses((status = 200, description = "OpenAPI 3.1", body = Object))
)]
pub(crate) async fn openapi(State(app): State<App>) -> Response {
    ([(CONTENT_TYPE, "application/json")], app.pages.openapi_json.clone()).into_response()
}

/// This description, to read
#[utoipa::path(
    get, path = "/docs", tag = "Server", operation_id = "get_docs", security(()),
    responses((status = 200, description = "A page", body = String, content_type = "text/html"))
)]
pub(crate) async fn docs(State(app): State<App>) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, app.pages.docs_policy.as_str()),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, app.pages.docs_html.clone()).into_response()
}

/// Counters for Prometheus
///
/// Open to everybody unless the setting `metrics` says otherwise.
#[utoipa::path(
    get, path = "/metrics", tag = "Server", operation_id = "get_metrics", security((), ("api_key" = [])),
    responses(
        (status = 200, description = "OpenMetrics text", body = String,
            content_type = "application/openmetrics-text"),
        (status = 401, description = "The setting asks for the operator's key, and there is none"),
        (status = 403, description = "The setting asks for the operator's key"),
        (status = 404, description = "Switched off"),
    )
)]
pub(crate) async fn metrics(State(app): State<App>, request: Request) -> Result<Response, Refusal> {
    match app.metrics_access {
        MetricsAccess::Open => {}
        MetricsAccess::Off => return Err(Refusal::NoRoute),
        MetricsAccess::Operator => {
            let (mut parts, _) = request.into_parts();
            let who = Who::from_request_parts(&mut parts, &app).await?;
            if !who.is_operator() {
                return Err(Refusal::Forbidden("metrics are for the operator's key"));
            }
        }
    }
    app.metrics.stands(app.standing.told());
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], app.metrics.text(&app.engine.snapshot())).into_response())
}

/// List the templates that are built
///
/// What `template` and `image` of a create may name on this server.
#[utoipa::path(
    get, path = "/v1/sandbox-templates", tag = "Sandboxes", operation_id = "list_templates",
    responses(
        (status = 200, description = "All of them", body = Templates),
        (status = 503, description = "No pool answers"),
    )
)]
pub(crate) async fn templates(
    State(app): State<App>,
    _who: Who,
    _none: NoQuery,
) -> Result<Answer<Templates>, Refusal> {
    let built = app.engine.templates().await?;
    let templates = built
        .into_iter()
        .map(|template| Template {
            name: template.name.to_string(),
            digest: template.digest,
            built_at: template.built_at,
            size_bytes: template.bytes,
            user: template.user,
            vcpu: template.limits.vcpu,
            cpu_fraction: template.limits.cpu_fraction,
            memory_mib: template.limits.memory_mib,
        })
        .collect();
    Ok(Answer(Templates { templates }))
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({ "name": "mine", "status": "removed" }))]
pub(crate) struct RemovedTemplate {
    name: String,
    status: &'static str,
}

/// Remove a template
///
/// For the operator. Nothing new is made from it; sandboxes keep what they stand on. One that comes with
/// Bastide is not removed while sandboxes are made from it.
#[utoipa::path(
    delete, path = "/v1/sandbox-templates/{name}", tag = "Sandboxes", operation_id = "remove_template",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "Removed", body = RemovedTemplate),
        (status = 403, description = "Not the operator's key"),
        (status = 404, description = "Not built here"),
        (status = 409, description = "`wrong_state`: sandboxes are made from it; `detail` names them"),
    )
)]
pub(crate) async fn remove_template(
    State(app): State<App>,
    who: Who,
    TemplateTarget(name): TemplateTarget,
    _none: NoQuery,
) -> Result<Answer<RemovedTemplate>, Refusal> {
    if !who.is_operator() {
        return Err(Refusal::Forbidden("templates are removed with the operator's key"));
    }
    app.engine.remove_template(&name).await?;
    Ok(Answer(RemovedTemplate { name: name.to_string(), status: "removed" }))
}
