//! `/v1/tenants/me` (000 *Tenants*): what an owner is, and its keys.

use api::{Tenant, TenantKeyCreated, TenantKeys};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use model::Error;
use store::KeyFormat;

use super::keys::shown;
use crate::app::App;
use crate::auth::Who;
use crate::refusal::Refusal;
use crate::target::{KeyTarget, NoQuery};

/// Show yourself
#[utoipa::path(
    get, path = "/v1/tenants/me", tag = "Accounts", operation_id = "get_tenant",
    responses((status = 200, description = "Whose key or token it is", body = Tenant))
)]
pub(crate) async fn me(
    State(app): State<App>,
    who: Who,
    _none: NoQuery,
) -> Result<Answer<Tenant>, Refusal> {
    let owner = who.0.owner;
    let account = app.store.account(&owner).await?;
    let account =
        account.ok_or_else(|| Error::NotFound { what: "tenant", id: owner.to_string() })?;
    Ok(Answer(Tenant {
        tenant_id: owner.to_string(),
        email: account.email.map(|email| email.to_string()),
        created_at: account.created_at,
        plan: who.0.plan.as_str().into(),
    }))
}

/// Make another API key
///
/// The secret is in this answer and nowhere else.
#[utoipa::path(
    post, path = "/v1/tenants/me/api-keys", tag = "Accounts", operation_id = "create_tenant_key",
    responses((status = 200, description = "Made", body = TenantKeyCreated))
)]
pub(crate) async fn create_key(
    State(app): State<App>,
    who: Who,
    _none: NoQuery,
) -> Result<Answer<TenantKeyCreated>, Refusal> {
    let key = app.store.create_key(&who.0.owner, who.0.plan, KeyFormat::Tenant, "api").await?;
    Ok(Answer(TenantKeyCreated {
        key_id: key.record.id,
        prefix: key.record.prefix,
        api_key: key.secret,
        plan_tier: key.record.plan.as_str().into(),
        created_at: key.record.created_at,
    }))
}

/// List your API keys
///
/// Those of both formats, revoked ones too, never their secrets.
#[utoipa::path(
    get, path = "/v1/tenants/me/api-keys", tag = "Accounts", operation_id = "list_tenant_keys",
    responses((status = 200, description = "Newest first", body = TenantKeys))
)]
pub(crate) async fn list_keys(
    State(app): State<App>,
    who: Who,
    _none: NoQuery,
) -> Result<Answer<TenantKeys>, Refusal> {
    let keys = app.store.list_keys(&who.0.owner).await?;
    Ok(Answer(TenantKeys { keys: keys.into_iter().map(shown).collect() }))
}

/// Revoke one of your API keys
///
/// It stops working at once, for good, and stays in the list.
#[utoipa::path(
    delete, path = "/v1/tenants/me/api-keys/{key_id}", tag = "Accounts",
    operation_id = "revoke_tenant_key",
    params(("key_id" = String, Path, description = "Its id, `key_…`; not the secret")),
    responses(
        (status = 204, description = "Revoked"),
        (status = 404, description = "No such key of yours"),
    )
)]
pub(crate) async fn revoke_key(
    State(app): State<App>,
    who: Who,
    KeyTarget(key): KeyTarget,
    _none: NoQuery,
) -> Result<StatusCode, Refusal> {
    app.store.revoke_key(&who.0.owner, &key).await?;
    Ok(StatusCode::NO_CONTENT)
}
