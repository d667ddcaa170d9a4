//! API keys (000 *API Keys*), for whoever has signed in. The operator can make them for anybody.

use api::query::Query;
use api::{ApiKey, ApiKeys, CreateKey, CreatedKey, Revoked};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use model::{OwnerId, Plan};
use store::{KeyFormat, KeyRecord};

use crate::app::App;
use crate::auth::Holder;
use crate::body::OptionalJson;
use crate::refusal::Refusal;
use crate::target::{KeyTarget, NoQuery, RawQuery};

const OTHERS: &str = "only the operator's key manages the keys of other owners";
const PLANS: &str = "only the operator's key says what plan a key has";

/// Make an API key
///
/// For yourself; the operator may name any `owner`, which is made if need be, and its `plan`. The
/// secret is in this answer and nowhere else. The body may be left out.
#[utoipa::path(
    post, path = "/v1/api-keys", tag = "API keys", security(("account_token" = [])),
    operation_id = "create_key",
    request_body(content = Option<CreateKey>),
    responses(
        (status = 201, description = "Made", body = CreatedKey),
        (status = 400, description = "Not an owner's id, or not a plan"),
        (status = 403, description = "Another owner or plan, and not the operator's key"),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    who: Holder,
    _none: NoQuery,
    OptionalJson(request): OptionalJson<CreateKey>,
) -> Result<(StatusCode, Answer<CreatedKey>), Refusal> {
    let plan = request.plan()?;
    let owner = request.owner()?.unwrap_or_else(|| who.0.owner.clone());
    if !who.is_operator() && owner != who.0.owner {
        return Err(Refusal::Forbidden(OTHERS));
    }
    if !who.is_operator() && plan.is_some_and(|plan| plan != who.0.plan) {
        return Err(Refusal::Forbidden(PLANS));
    }
    let own = owner == who.0.owner;
    let plan = plan.unwrap_or(if own { who.0.plan } else { Plan::Free });
    let made = app.store.create_key(&owner, plan, KeyFormat::Live, "api").await?;
    let created = CreatedKey {
        key_id: made.record.id,
        key: made.secret,
        prefix: made.record.prefix,
        owner: made.record.owner.to_string(),
        plan_tier: made.record.plan.as_str().into(),
        created_at: made.record.created_at,
    };
    Ok((StatusCode::CREATED, Answer(created)))
}

/// List API keys
///
/// Yours, revoked ones too, never their secrets. The operator may ask for any `owner`'s.
#[utoipa::path(
    get, path = "/v1/api-keys", tag = "API keys", security(("account_token" = [])),
    operation_id = "list_keys",
    params(("owner" = Option<String>, Query, description = "For the operator: whose keys")),
    responses(
        (status = 200, description = "Newest first", body = ApiKeys),
        (status = 400, description = "Not an owner's id"),
        (status = 403, description = "Another owner, and not the operator's key"),
    )
)]
pub(crate) async fn list(
    State(app): State<App>,
    who: Holder,
    RawQuery(query): RawQuery,
) -> Result<Answer<ApiKeys>, Refusal> {
    let owner = owner(&who, query.as_deref())?;
    let keys = app.store.list_keys(&owner).await?;
    Ok(Answer(ApiKeys { api_keys: keys.into_iter().map(shown).collect() }))
}

/// Revoke an API key
///
/// It stops working at once, for good.
#[utoipa::path(
    delete, path = "/v1/api-keys/{key_id}", tag = "API keys", security(("account_token" = [])),
    operation_id = "revoke_key",
    params(
        ("key_id" = String, Path, description = "Its id, `key_…`; not the secret"),
        ("owner" = Option<String>, Query, description = "For the operator: whose key it is"),
    ),
    responses(
        (status = 200, description = "Revoked", body = Revoked),
        (status = 403, description = "Another owner, and not the operator's key"),
        (status = 404, description = "No such key of this owner"),
    )
)]
pub(crate) async fn revoke(
    State(app): State<App>,
    who: Holder,
    KeyTarget(key): KeyTarget,
    RawQuery(query): RawQuery,
) -> Result<Answer<Revoked>, Refusal> {
    let owner = owner(&who, query.as_deref())?;
    app.store.revoke_key(&owner, &key).await?;
    Ok(Answer(Revoked { status: "revoked".into() }))
}

/// A key as lists show it.
pub(super) fn shown(key: KeyRecord) -> ApiKey {
    ApiKey {
        key_id: key.id,
        prefix: key.prefix,
        revoked: key.revoked_at.is_some(),
        created_at: key.created_at,
        plan_tier: key.plan.as_str().into(),
    }
}

fn owner(who: &Holder, query: Option<&str>) -> Result<OwnerId, Refusal> {
    let Some(asked) = Query::parse(query, &["owner"])?.take("owner") else {
        return Ok(who.0.owner.clone());
    };
    let asked: OwnerId = asked.parse()?;
    if !who.is_operator() && asked != who.0.owner {
        return Err(Refusal::Forbidden(OTHERS));
    }
    Ok(asked)
}
