//! Credit (000 *Billing*): the balance, how it changes, and how it is filled up.

use api::billing::{
    AutoTopup, Balance, Checkout, CheckoutStarted, Grant, Granted, Transaction, Transactions,
    Updated,
};
use axum::Json as Answer;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use jiff::Timestamp;
use model::{Error, OwnerId};
use store::Credit;

use crate::app::App;
use crate::auth::Holder;
use crate::body::{self, Json};
use crate::page::Page;
use crate::refusal::Refusal;
use crate::target::NoQuery;

const OPERATOR_ONLY: &str = "only the operator's key gives credit";

/// Show your balance
#[utoipa::path(
    get, path = "/v1/billing/balance", tag = "Billing", operation_id = "get_balance",
    security(("account_token" = [])),
    responses((status = 200, description = "In cents", body = Balance))
)]
pub(crate) async fn balance(
    State(app): State<App>,
    who: Holder,
    _none: NoQuery,
) -> Result<Answer<Balance>, Refusal> {
    let credit_balance = app.store.balance_cents(&who.0.owner).await?;
    Ok(Answer(Balance { credit_balance }))
}

/// Add credit
///
/// Answers with a page of the payment service; the credit is there when it says that it was paid.
#[utoipa::path(
    post, path = "/v1/billing/checkout", tag = "Billing", operation_id = "checkout",
    security(("account_token" = [])),
    request_body(content = Checkout),
    responses(
        (status = 200, description = "Where to pay", body = CheckoutStarted),
        (status = 400, description = "Below the smallest payment, or too large"),
        (status = 501, description = "This deployment has no payment service: ask its operator"),
        (status = 503, description = "The payment service does not answer"),
    )
)]
pub(crate) async fn checkout(
    State(app): State<App>,
    who: Holder,
    _none: NoQuery,
    Json { value, .. }: Json<Checkout>,
) -> Result<Answer<CheckoutStarted>, Refusal> {
    let amount = value.check(app.billing.topup_min_cents)?;
    let stripe = app.billing.stripe.as_ref().ok_or_else(not_available)?;
    let url = stripe.checkout(&who.0.owner, amount, &app.address.url).await?;
    Ok(Answer(CheckoutStarted { url }))
}

/// List how your balance changed
#[utoipa::path(
    get, path = "/v1/billing/transactions", tag = "Billing", operation_id = "list_transactions",
    security(("account_token" = [])),
    params(
        ("limit" = Option<u32>, Query, description = "On a page: 1 to 1000, 20 if absent"),
        ("offset" = Option<u64>, Query, description = "How many to skip"),
    ),
    responses(
        (status = 200, description = "A page", body = Transactions),
        (status = 400, description = "Not a page"),
    )
)]
pub(crate) async fn transactions(
    State(app): State<App>,
    who: Holder,
    page: Page,
) -> Result<Answer<Transactions>, Refusal> {
    let (entries, total) = app.store.entries(&who.0.owner, page.limit, page.offset).await?;
    let shown = |entry: store::Entry| Transaction {
        id: entry.id,
        amount: entry.amount_cents,
        balance: entry.balance_cents,
        description: entry.description,
        timestamp: entry.at,
    };
    Ok(Answer(Transactions { transactions: entries.into_iter().map(shown).collect(), total }))
}

/// Show whether your balance is filled up by itself
#[utoipa::path(
    get, path = "/v1/billing/auto-topup", tag = "Billing", operation_id = "get_auto_topup",
    security(("account_token" = [])),
    responses((status = 200, description = "As it is set", body = AutoTopup))
)]
pub(crate) async fn auto_topup(
    State(app): State<App>,
    who: Holder,
    _none: NoQuery,
) -> Result<Answer<AutoTopup>, Refusal> {
    let topup = app.store.auto_topup(&who.0.owner).await?;
    Ok(Answer(AutoTopup {
        enabled: topup.enabled,
        threshold_amount: topup.threshold_cents,
        topup_amount: topup.amount_cents,
    }))
}

/// Have your balance filled up by itself, or not
///
/// With the means that were last paid with.
#[utoipa::path(
    post, path = "/v1/billing/auto-topup", tag = "Billing", operation_id = "set_auto_topup",
    security(("account_token" = [])),
    request_body(content = AutoTopup),
    responses(
        (status = 200, description = "Set", body = Updated),
        (status = 400, description = "An amount below the smallest payment, or too large"),
    )
)]
pub(crate) async fn set_auto_topup(
    State(app): State<App>,
    who: Holder,
    _none: NoQuery,
    Json { value, .. }: Json<AutoTopup>,
) -> Result<Answer<Updated>, Refusal> {
    let asked = value.check(app.billing.topup_min_cents)?;
    let topup = store::AutoTopup {
        enabled: asked.enabled,
        threshold_cents: asked.threshold_amount,
        amount_cents: asked.topup_amount,
    };
    app.store.set_auto_topup(&who.0.owner, topup).await?;
    Ok(Answer(Updated { status: "updated".into() }))
}

/// What Stripe tells
///
/// For Stripe alone: signed with a secret that it shares with this server.
#[utoipa::path(
    post, path = "/v1/billing/webhook", tag = "Billing", operation_id = "billing_webhook", security(()),
    request_body(content = serde_json::Value, description = "An event, as Stripe signs it"),
    responses(
        (status = 200, description = "Understood; what it told is entered, once", body = Updated),
        (status = 400, description = "Not signed, or not what it should be"),
        (status = 501, description = "This deployment has no payment service"),
    )
)]
pub(crate) async fn webhook(
    State(app): State<App>,
    _none: NoQuery,
    headers: HeaderMap,
    request: Request,
) -> Result<Answer<Updated>, Refusal> {
    let stripe = app.billing.stripe.as_ref().ok_or_else(not_available)?;
    let body = body::read(request, &app).await?;
    let signature = headers.get("stripe-signature").and_then(|value| value.to_str().ok());
    stripe.told(signature.unwrap_or_default(), &body, &app.store, Timestamp::now()).await?;
    Ok(Answer(Updated { status: "updated".into() }))
}

/// Give credit
///
/// For the operator. The same `reference` again changes nothing, so that a call may be repeated.
#[utoipa::path(
    post, path = "/v1/billing/grants", tag = "Billing", operation_id = "grant_credit",
    security(("api_key" = [])),
    request_body(content = Grant),
    responses(
        (status = 200, description = "The owner's balance now", body = Granted),
        (status = 400, description = "Not an owner's id, or a wrong amount or reference"),
        (status = 403, description = "Not the operator's key"),
    )
)]
pub(crate) async fn grant(
    State(app): State<App>,
    who: Holder,
    _none: NoQuery,
    Json { value, .. }: Json<Grant>,
) -> Result<Answer<Granted>, Refusal> {
    if !who.is_operator() {
        return Err(Refusal::Forbidden(OPERATOR_ONLY));
    }
    value.check()?;
    let owner: OwnerId = value.owner.parse()?;
    let credit = Credit {
        amount_cents: value.amount,
        description: value.description.unwrap_or_else(|| "Credit".into()),
        reference: format!("operator:{}", value.reference),
    };
    let entered = app.store.credit(&owner, credit, Timestamp::now()).await?.is_some();
    let credit_balance = app.store.balance_cents(&owner).await?;
    Ok(Answer(Granted { credit_balance, entered }))
}

fn not_available() -> Error {
    let detail = "no payment service is configured here: the operator gives credit".into();
    Error::NotImplemented { code: "billing_not_available", detail }
}
