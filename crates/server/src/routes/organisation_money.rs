//! Money of an organisation, read by who has the role `billing` or `owner` in it, or by the operator. Each member's
//! credit is its own: nothing here moves any.

use api::billing::{
    MemberBalance, MemberTransaction, MemberUsage, OrganisationBalance, OrganisationTransactions,
    OrganisationUsage, Page,
};
use api::metering::Days;
use axum::Json as Answer;
use axum::extract::State;
use jiff::Timestamp;
use model::pricing::MICROCENTS;
use model::{Error, OrganisationId, Role};

use crate::app::App;
use crate::auth::Holder;
use crate::refusal::Refusal;
use crate::target::{NoQuery, OrganisationTarget, RawQuery};

const SECOND_USEC: i64 = 1_000_000;

/// Balances of an organisation
///
/// For the roles `billing` and `owner`.
#[utoipa::path(
    get, path = "/v1/admin/organisations/{organisation}/balance", tag = "Administration",
    operation_id = "get_organisation_balance", security(("account_token" = [])),
    params(("organisation" = String, Path, description = "`org_…`")),
    responses(
        (status = 200, description = "Each member's, and their sum, in cents", body = OrganisationBalance),
        (status = 403, description = "Your role does not allow it"),
        (status = 404, description = "No such organisation, or not one of yours"),
    )
)]
pub(crate) async fn balance(
    State(app): State<App>,
    holder: Holder,
    OrganisationTarget(id): OrganisationTarget,
    _none: NoQuery,
) -> Result<Answer<OrganisationBalance>, Refusal> {
    may(&app, &holder, &id).await?;
    let members = app.store.organisation_balances(&id).await?;
    let credit_balance = members.iter().map(|(_, cents)| cents).sum();
    let members = members
        .into_iter()
        .map(|(owner, credit_balance)| MemberBalance { owner: owner.to_string(), credit_balance });
    Ok(Answer(OrganisationBalance { credit_balance, members: members.collect() }))
}

/// What moved the balances of an organisation
///
/// For the roles `billing` and `owner`.
#[utoipa::path(
    get, path = "/v1/admin/organisations/{organisation}/transactions", tag = "Administration",
    operation_id = "list_organisation_transactions", security(("account_token" = [])),
    params(
        ("organisation" = String, Path, description = "`org_…`"),
        ("limit" = Option<u64>, Query, description = "At most 100; default 20"),
        ("offset" = Option<u64>, Query, description = "Skip so many; default 0"),
    ),
    responses(
        (status = 200, description = "Of all members, newest first", body = OrganisationTransactions),
        (status = 400, description = "Not a whole number"),
        (status = 403, description = "Your role does not allow it"),
        (status = 404, description = "No such organisation, or not one of yours"),
    )
)]
pub(crate) async fn transactions(
    State(app): State<App>,
    holder: Holder,
    OrganisationTarget(id): OrganisationTarget,
    RawQuery(query): RawQuery,
) -> Result<Answer<OrganisationTransactions>, Refusal> {
    let page = Page::parse(query.as_deref())?;
    may(&app, &holder, &id).await?;
    let all = app.store.organisation_transactions(&id, page.limit, page.offset).await?;
    let transactions = all.into_iter().map(|(owner, one)| MemberTransaction {
        owner: owner.to_string(),
        id: one.id,
        amount: one.cents,
        description: one.description,
        timestamp: one.at,
    });
    Ok(Answer(OrganisationTransactions { transactions: transactions.collect() }))
}

/// What an organisation used this month
///
/// For the roles `billing` and `owner`.
#[utoipa::path(
    get, path = "/v1/admin/organisations/{organisation}/usage", tag = "Administration",
    operation_id = "get_organisation_usage", security(("account_token" = [])),
    params(("organisation" = String, Path, description = "`org_…`")),
    responses(
        (status = 200, description = "Of each member, this month (UTC)", body = OrganisationUsage),
        (status = 403, description = "Your role does not allow it"),
        (status = 404, description = "No such organisation, or not one of yours"),
    )
)]
pub(crate) async fn usage(
    State(app): State<App>,
    holder: Holder,
    OrganisationTarget(id): OrganisationTarget,
    _none: NoQuery,
) -> Result<Answer<OrganisationUsage>, Refusal> {
    may(&app, &holder, &id).await?;
    let month = Days::month_of(Timestamp::now());
    let members = app.store.organisation_usage(&id, month.first, month.last).await?;
    let members = members.into_iter().map(|(owner, used)| MemberUsage {
        owner: owner.to_string(),
        cpu_seconds: used.cpu_usec / SECOND_USEC,
        running_seconds: used.running_usec / SECOND_USEC,
        sandbox_count: used.sandboxes,
        cents: used.charged_microcents / MICROCENTS,
    });
    Ok(Answer(OrganisationUsage { members: members.collect() }))
}

/// Whoever is not in it is told that there is none.
async fn may(app: &App, holder: &Holder, id: &OrganisationId) -> Result<(), Refusal> {
    let unknown = || Error::NotFound { what: "organisation", id: id.to_string() };
    if holder.is_operator() {
        app.store.organisation(id).await?.ok_or_else(unknown)?;
        return Ok(());
    }
    match app.store.role_in(id, &holder.0.owner).await? {
        Some(Role::Owner | Role::Billing) => Ok(()),
        Some(Role::Member) => Err(Refusal::Forbidden("this takes the role billing or owner")),
        None => Err(unknown().into()),
    }
}
