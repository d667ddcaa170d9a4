//! Organisations and their members. The operator makes them and puts owners into them; a member whose role
//! is `owner` changes roles and removes members; others see their own organisation.

use api::admin::{
    LimitsBody, Member, NewOrganisation, Organisation, OrganisationDetail, Organisations, PutMember,
};
use api::query::Query;
use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use model::{Error, OrganisationId, Role};
use store::Limited;

use crate::app::App;
use crate::auth::{Holder, Operator};
use crate::body::Json;
use crate::refusal::Refusal;
use crate::target::{MemberTarget, NoQuery, OrganisationTarget, RawQuery};

const PAGE: u32 = 100;

/// Make an organisation
#[utoipa::path(
    post, path = "/v1/admin/organisations", tag = "Administration",
    operation_id = "create_organisation", request_body(content = NewOrganisation),
    responses(
        (status = 201, description = "Made, without members", body = Organisation),
        (status = 400, description = "Not a name"),
        (status = 403, description = "Not the operator's key"),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    _operator: Operator,
    _none: NoQuery,
    Json { value, .. }: Json<NewOrganisation>,
) -> Result<(StatusCode, Answer<Organisation>), Refusal> {
    let made = app.store.create_organisation(&value.name, Timestamp::now()).await?;
    Ok((StatusCode::CREATED, Answer(shown(made))))
}

/// List organisations
#[utoipa::path(
    get, path = "/v1/admin/organisations", tag = "Administration",
    operation_id = "list_organisations",
    params(("offset" = Option<u32>, Query, description = "How many to pass over")),
    responses(
        (status = 200, description = "A hundred at most, newest first", body = Organisations),
        (status = 400, description = "Not a number"),
        (status = 403, description = "Not the operator's key"),
    )
)]
pub(crate) async fn list(
    State(app): State<App>,
    _operator: Operator,
    RawQuery(query): RawQuery,
) -> Result<Answer<Organisations>, Refusal> {
    let offset = Query::parse(query.as_deref(), &["offset"])?.take("offset");
    let offset = offset.map_or(Ok(0), |text| text.parse());
    let offset = offset.map_err(|_| Error::invalid("offset", "must be a number"))?;
    let all = app.store.organisations(PAGE, offset).await?;
    Ok(Answer(Organisations { organisations: all.into_iter().map(shown).collect() }))
}

/// Show an organisation
#[utoipa::path(
    get, path = "/v1/admin/organisations/{organisation}", tag = "Administration",
    operation_id = "get_organisation", security(("account_token" = [])),
    params(("organisation" = String, Path, description = "`org_…`")),
    responses(
        (status = 200, description = "With its members and limits", body = OrganisationDetail),
        (status = 404, description = "No such organisation, or not one of yours"),
    )
)]
pub(crate) async fn get(
    State(app): State<App>,
    holder: Holder,
    OrganisationTarget(id): OrganisationTarget,
    _none: NoQuery,
) -> Result<Answer<OrganisationDetail>, Refusal> {
    may(&app, &holder, &id, false).await?;
    let (found, members) = app.store.organisation(&id).await?.ok_or_else(|| unknown(&id))?;
    let limits = app.store.limits_of(&Limited::Organisation(id)).await?;
    Ok(Answer(OrganisationDetail {
        id: found.id.to_string(),
        name: found.name,
        created_at: found.created_at,
        members: members.iter().map(member).collect(),
        limits: LimitsBody::new(limits.plan, limits.quota),
    }))
}

/// Put an owner into an organisation, or change its role
///
/// Only the operator puts somebody in who is not a member yet.
#[utoipa::path(
    put, path = "/v1/admin/organisations/{organisation}/members/{owner}", tag = "Administration",
    operation_id = "put_member", security(("account_token" = [])),
    params(
        ("organisation" = String, Path, description = "`org_…`"),
        ("owner" = String, Path, description = "`usr_…`"),
    ),
    request_body(content = PutMember),
    responses(
        (status = 204, description = "It has that role now"),
        (status = 400, description = "Not a role"),
        (status = 403, description = "Your role does not allow it"),
        (status = 404, description = "No such organisation, or no such owner or member"),
        (status = 409, description = "A member of another organisation"),
    )
)]
pub(crate) async fn put_member(
    State(app): State<App>,
    holder: Holder,
    MemberTarget(id, owner): MemberTarget,
    _none: NoQuery,
    Json { value, .. }: Json<PutMember>,
) -> Result<StatusCode, Refusal> {
    may(&app, &holder, &id, true).await?;
    if !holder.is_operator() && app.store.role_in(&id, &owner).await?.is_none() {
        return Err(Error::NotFound { what: "member", id: owner.to_string() }.into());
    }
    app.store.put_member(&id, &owner, value.role()?, Timestamp::now()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Remove a member
#[utoipa::path(
    delete, path = "/v1/admin/organisations/{organisation}/members/{owner}",
    tag = "Administration", operation_id = "remove_member", security(("account_token" = [])),
    params(
        ("organisation" = String, Path, description = "`org_…`"),
        ("owner" = String, Path, description = "`usr_…`"),
    ),
    responses(
        (status = 204, description = "Not a member any more"),
        (status = 403, description = "Your role does not allow it"),
        (status = 404, description = "No such organisation or member"),
    )
)]
pub(crate) async fn remove_member(
    State(app): State<App>,
    holder: Holder,
    MemberTarget(id, owner): MemberTarget,
    _none: NoQuery,
) -> Result<StatusCode, Refusal> {
    may(&app, &holder, &id, true).await?;
    app.store.remove_member(&id, &owner).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Whoever is not in it is told that there is none.
async fn may(
    app: &App,
    holder: &Holder,
    id: &OrganisationId,
    changes: bool,
) -> Result<(), Refusal> {
    if holder.is_operator() {
        return Ok(());
    }
    match app.store.role_in(id, &holder.0.owner).await? {
        Some(Role::Owner) => Ok(()),
        Some(Role::Member | Role::Billing) if !changes => Ok(()),
        Some(Role::Member | Role::Billing) => {
            Err(Refusal::Forbidden("only its owners change an organisation"))
        }
        None => Err(unknown(id).into()),
    }
}

fn unknown(id: &OrganisationId) -> Error {
    Error::NotFound { what: "organisation", id: id.to_string() }
}

fn shown(one: store::Organisation) -> Organisation {
    Organisation { id: one.id.to_string(), name: one.name, created_at: one.created_at }
}

fn member(one: &store::Member) -> Member {
    Member { owner: one.owner.to_string(), role: one.role.as_str().into(), since: one.since }
}
