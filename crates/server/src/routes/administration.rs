//! What owners and organisations may have, and the audit log: for the operator.

use api::admin::{AuditBegins, AuditLine, AuditLog, LimitsBody, OwnerLimits};
use api::query::Query;
use axum::Json as Answer;
use axum::extract::State;
use model::Error;
use store::{AuditRecord, LimitRow, Limited};

use crate::app::App;
use crate::auth::Operator;
use crate::body::Json;
use crate::refusal::Refusal;
use crate::target::{NoQuery, OrganisationTarget, OwnerTarget, RawQuery};

const PAGE_MAX: u32 = 1000;

/// Show what an owner may have
#[utoipa::path(
    get, path = "/v1/admin/owners/{owner}/limits", tag = "Administration",
    operation_id = "get_owner_limits",
    params(("owner" = String, Path, description = "`usr_…`")),
    responses(
        (status = 200, description = "Its own rows, and what holds", body = OwnerLimits),
        (status = 403, description = "Not the operator's key"),
        (status = 404, description = "No such owner"),
    )
)]
pub(crate) async fn of_owner(
    State(app): State<App>,
    _operator: Operator,
    OwnerTarget(owner): OwnerTarget,
    _none: NoQuery,
) -> Result<Answer<OwnerLimits>, Refusal> {
    let own = app.store.limits_of(&Limited::Owner(owner.clone())).await?;
    let effective = app.store.standing(&owner).await?.unwrap_or(own);
    Ok(Answer(OwnerLimits {
        owner: owner.to_string(),
        own: LimitsBody::new(own.plan, own.quota),
        effective: LimitsBody::new(effective.plan, effective.quota),
    }))
}

/// Say what an owner may have
///
/// Replaces all that was said about it. It holds at once, on every server.
#[utoipa::path(
    put, path = "/v1/admin/owners/{owner}/limits", tag = "Administration",
    operation_id = "put_owner_limits",
    params(("owner" = String, Path, description = "`usr_…`")),
    request_body(content = LimitsBody),
    responses(
        (status = 200, description = "As it is now", body = LimitsBody),
        (status = 400, description = "Not a plan"),
        (status = 403, description = "Not the operator's key"),
        (status = 404, description = "No such owner"),
    )
)]
pub(crate) async fn put_owner(
    State(app): State<App>,
    _operator: Operator,
    OwnerTarget(owner): OwnerTarget,
    _none: NoQuery,
    Json { value, .. }: Json<LimitsBody>,
) -> Result<Answer<LimitsBody>, Refusal> {
    put(&app, Limited::Owner(owner), value).await
}

/// Say what each member of an organisation may have
///
/// Replaces all that was said about it. What is said about a member itself wins.
#[utoipa::path(
    put, path = "/v1/admin/organisations/{organisation}/limits", tag = "Administration",
    operation_id = "put_organisation_limits",
    params(("organisation" = String, Path, description = "`org_…`")),
    request_body(content = LimitsBody),
    responses(
        (status = 200, description = "As it is now", body = LimitsBody),
        (status = 400, description = "Not a plan"),
        (status = 403, description = "Not the operator's key"),
        (status = 404, description = "No such organisation"),
    )
)]
pub(crate) async fn put_organisation(
    State(app): State<App>,
    _operator: Operator,
    OrganisationTarget(id): OrganisationTarget,
    _none: NoQuery,
    Json { value, .. }: Json<LimitsBody>,
) -> Result<Answer<LimitsBody>, Refusal> {
    put(&app, Limited::Organisation(id), value).await
}

/// Read the audit log
///
/// Each entry's digest covers the one before: `bastide audit verify` checks that.
#[utoipa::path(
    get, path = "/v1/admin/audit", tag = "Administration", operation_id = "audit_log",
    params(
        ("after" = Option<i64>, Query, description = "The last number that is known; default 0"),
        ("limit" = Option<u32>, Query, description = "At most 1000, the default"),
    ),
    responses(
        (status = 200, description = "Oldest first", body = AuditLog),
        (status = 400, description = "Not a number"),
        (status = 403, description = "Not the operator's key"),
    )
)]
pub(crate) async fn audit(
    State(app): State<App>,
    _operator: Operator,
    RawQuery(query): RawQuery,
) -> Result<Answer<AuditLog>, Refusal> {
    let mut query = Query::parse(query.as_deref(), &["after", "limit"])?;
    let wrong = |field: &'static str| move |_| Error::invalid(field, "must be a number");
    let after = query.take("after").map_or(Ok(0), |text| text.parse());
    let after = after.map_err(wrong("after"))?;
    let limit = query.take("limit").map_or(Ok(PAGE_MAX), |text| text.parse());
    let limit = limit.map_err(wrong("limit"))?.min(PAGE_MAX);
    let ((number, digest), entries) = app.store.audit_page(after, limit).await?;
    let begins = AuditBegins { number, digest: hex(&digest) };
    Ok(Answer(AuditLog { begins, entries: entries.into_iter().map(line).collect() }))
}

async fn put(app: &App, of: Limited, body: LimitsBody) -> Result<Answer<LimitsBody>, Refusal> {
    let row = LimitRow { plan: body.plan()?, quota: body.quota() };
    app.store.put_limits(&of, row).await?;
    Ok(Answer(body))
}

fn line(record: AuditRecord) -> AuditLine {
    let AuditRecord { number, entry, digest } = record;
    AuditLine {
        number,
        at: entry.at,
        actor: entry.actor,
        action: entry.action,
        target: entry.target,
        outcome: entry.outcome,
        address: entry.address,
        digest: hex(&digest),
    }
}

fn hex(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
