//! Money (000 *Billing*): the balance, what moved it, and how more comes in.

use api::billing::{
    AutoTopup, Balance, Checkout, CheckoutRequest, Done, GrantCredit, Page, Transaction,
    Transactions,
};
use axum::Json as Answer;
use axum::extract::{Request, State};
use jiff::Timestamp;
use model::Error;
use serde_json::Value;
use store::Movement;

use crate::accounts::proxies::attempter;
use crate::app::App;
use crate::auth::{Holder, Operator};
use crate::body::{self, Json};
use crate::listen::PeerAddress;
use crate::money::notice;
use crate::refusal::Refusal;
use crate::stripe::Stripe;
use crate::target::{NoQuery, RawQuery};

const NOT_CONFIGURED: &str = "this deployment takes no payments; its operator grants credit";

/// Your balance in cents
#[utoipa::path(
    get, path = "/v1/billing/balance", tag = "Billing", operation_id = "get_balance",
    responses((status = 200, description = "What is left; below 0 is owed", body = Balance))
)]
pub(crate) async fn balance(
    State(app): State<App>,
    Holder(caller): Holder,
    _none: NoQuery,
) -> Result<Answer<Balance>, Refusal> {
    let balance = app.store.balance(&caller.owner).await?;
    Ok(Answer(Balance { credit_balance: balance.cents }))
}

/// Buy credit
///
/// Answers with a page on which to pay; the credit is there once that was done.
#[utoipa::path(
    post, path = "/v1/billing/checkout", tag = "Billing", operation_id = "create_checkout",
    request_body(content = CheckoutRequest),
    responses(
        (status = 200, description = "Where to pay", body = Checkout),
        (status = 400, description = "Below the least, or not an amount"),
        (status = 501, description = "This deployment takes no payments"),
    )
)]
pub(crate) async fn checkout(
    State(app): State<App>,
    Holder(caller): Holder,
    _none: NoQuery,
    body: Json<CheckoutRequest>,
) -> Result<Answer<Checkout>, Refusal> {
    let cents = body.value.check(app.billing.cents_min)?;
    let stripe = stripe(&app)?;
    let payer = app.store.payer(&caller.owner).await?;
    let url = stripe.checkout(&caller.owner, cents, payer.as_deref()).await?;
    Ok(Answer(Checkout { url }))
}

/// What moved your balance
#[utoipa::path(
    get, path = "/v1/billing/transactions", tag = "Billing", operation_id = "list_transactions",
    params(
        ("limit" = Option<u64>, Query, description = "At most 100; default 20"),
        ("offset" = Option<u64>, Query, description = "Skip so many; default 0"),
    ),
    responses(
        (status = 200, description = "Newest first", body = Transactions),
        (status = 400, description = "Not a whole number"),
    )
)]
pub(crate) async fn transactions(
    State(app): State<App>,
    Holder(caller): Holder,
    RawQuery(query): RawQuery,
) -> Result<Answer<Transactions>, Refusal> {
    let page = Page::parse(query.as_deref())?;
    let all = app.store.transactions(&caller.owner, page.limit, page.offset).await?;
    let shown = all.into_iter().map(|one| Transaction {
        id: one.id,
        amount: one.cents,
        description: one.description,
        timestamp: one.at,
    });
    Ok(Answer(Transactions { transactions: shown.collect() }))
}

/// When credit is bought by itself
#[utoipa::path(
    get, path = "/v1/billing/auto-topup", tag = "Billing", operation_id = "get_auto_topup",
    responses((status = 200, description = "As it is set", body = AutoTopup))
)]
pub(crate) async fn auto_topup(
    State(app): State<App>,
    Holder(caller): Holder,
    _none: NoQuery,
) -> Result<Answer<AutoTopup>, Refusal> {
    let set = app.store.auto_topup(&caller.owner).await?;
    Ok(Answer(AutoTopup {
        enabled: set.enabled,
        threshold_amount: set.threshold_cents,
        topup_amount: set.topup_cents,
    }))
}

/// Have credit bought by itself
///
/// From the card that you paid with last; nothing happens before you did.
#[utoipa::path(
    post, path = "/v1/billing/auto-topup", tag = "Billing", operation_id = "set_auto_topup",
    request_body(content = AutoTopup),
    responses(
        (status = 200, description = "Set", body = Done),
        (status = 400, description = "Below the least, or not an amount"),
        (status = 501, description = "This deployment takes no payments"),
    )
)]
pub(crate) async fn set_auto_topup(
    State(app): State<App>,
    Holder(caller): Holder,
    _none: NoQuery,
    body: Json<AutoTopup>,
) -> Result<Answer<Done>, Refusal> {
    let wanted = body.value;
    if wanted.enabled {
        wanted.check(app.billing.cents_min)?;
        stripe(&app)?;
    }
    let wanted = store::AutoTopup {
        enabled: wanted.enabled,
        threshold_cents: wanted.threshold_amount.max(0),
        topup_cents: wanted.topup_amount.max(0),
    };
    app.store.set_auto_topup(&caller.owner, wanted).await?;
    Ok(Answer(Done { status: "updated".into() }))
}

/// Grant credit
///
/// For the operator: to anybody, also less than nothing. With a `reference` it counts once.
#[utoipa::path(
    post, path = "/v1/admin/credits", tag = "Billing", operation_id = "grant_credit",
    request_body(content = GrantCredit),
    responses(
        (status = 200, description = "The balance after it", body = Balance),
        (status = 400, description = "Not an owner, or not an amount"),
        (status = 403, description = "Not the operator's key"),
    )
)]
pub(crate) async fn grant(
    State(app): State<App>,
    _operator: Operator,
    _none: NoQuery,
    body: Json<GrantCredit>,
) -> Result<Answer<Balance>, Refusal> {
    let (owner, cents, description, reference) = body.value.check()?;
    let reference = reference.map(|text| format!("operator:{text}"));
    let at = Timestamp::now();
    let movement = Movement { cents, kind: "credit", description, reference, at };
    app.store.move_money(&owner, movement).await?;
    let balance = app.store.balance(&owner).await?;
    Ok(Answer(Balance { credit_balance: balance.cents }))
}

/// What Stripe tells
///
/// Signed by Stripe; told twice, it counts once.
#[utoipa::path(
    post, path = "/v1/billing/webhook", tag = "Billing", operation_id = "stripe_webhook",
    security(()),
    request_body(content = Object),
    responses(
        (status = 200, description = "Heard", body = Done),
        (status = 400, description = "Not signed by Stripe, too old, or not understood"),
        (status = 429, description = "Too many from one address; `Retry-After` says when to come back"),
        (status = 501, description = "This deployment takes no payments"),
    )
)]
pub(crate) async fn webhook(
    State(app): State<App>,
    request: Request,
) -> Result<Answer<Done>, Refusal> {
    let stripe = stripe(&app)?;
    if let Some(PeerAddress(peer)) = request.extensions().get::<PeerAddress>() {
        let client = app.accounts.proxies.client(peer.ip(), request.headers());
        app.billing.webhook_rate.count(&attempter(client).to_string())?;
    }
    let headers = request.headers().clone();
    let bytes = body::read(request, &app).await?;
    let now = Timestamp::now();
    if !stripe.is_genuine(&headers, &bytes, now) {
        return Err(Error::invalid("stripe-signature", "not signed by Stripe just now").into());
    }
    let event: Value = serde_json::from_slice(&bytes)
        .map_err(|_| Error::invalid("body", "is signed and is no JSON"))?;
    notice::hear(&app, stripe, &event, now).await?;
    Ok(Answer(Done { status: "received".into() }))
}

fn stripe(app: &App) -> Result<&Stripe, Error> {
    let none = || Error::NotImplemented { code: "not_implemented", detail: NOT_CONFIGURED.into() };
    app.billing.stripe.as_deref().ok_or_else(none)
}
