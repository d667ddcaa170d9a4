//! What Stripe tells, as movements of money. Each has a reference, so that it happens once, however often and in
//! whatever order it is told; what was not begun by us is heard and left alone, because one account at Stripe may
//! serve others too.

use jiff::Timestamp;
use model::{Error, OwnerId};
use serde_json::Value;
use store::Movement;

use crate::app::App;
use crate::stripe::Stripe;

pub(crate) async fn hear(
    app: &App,
    stripe: &Stripe,
    event: &Value,
    now: Timestamp,
) -> Result<(), Error> {
    let of = &event["data"]["object"];
    match event["type"].as_str().unwrap_or_default() {
        "checkout.session.completed" | "checkout.session.async_payment_succeeded"
            if of["payment_status"] == "paid" =>
        {
            paid(app, of, now).await
        }
        "payment_intent.succeeded" => ended(app, of, (true, now)).await,
        "payment_intent.payment_failed" => ended(app, of, (false, now)).await,
        "charge.refunded" => refunded(app, event, now).await,
        "charge.dispute.created" | "charge.dispute.funds_withdrawn" => {
            // An inquiry takes no money; when it becomes more, the withdrawal is told.
            let asks = of["status"].as_str().unwrap_or_default().starts_with("warning_");
            if asks { Ok(()) } else { disputed(app, stripe, of, (false, now)).await }
        }
        "charge.dispute.funds_reinstated" => disputed(app, stripe, of, (true, now)).await,
        "charge.dispute.closed" if of["status"] == "won" => {
            disputed(app, stripe, of, (true, now)).await
        }
        _ => Ok(()),
    }
}

async fn paid(app: &App, session: &Value, now: Timestamp) -> Result<(), Error> {
    let Some(owner) = owner(session) else { return Ok(()) };
    let cents = amount(app, session, "amount_total")?;
    if let Some(customer) = session["customer"].as_str() {
        app.store.set_payer(&owner, customer).await?;
    }
    let reference = format!("stripe:{}", text(session, "id")?);
    moves(app, &owner, (cents, "topup", "Top-up"), (reference, now)).await
}

async fn ended(app: &App, intent: &Value, (paid, now): (bool, Timestamp)) -> Result<(), Error> {
    let Some(topup) = intent["metadata"]["topup"].as_str() else { return Ok(()) };
    app.store.end_topup(topup, paid, now).await.map(drop)
}

async fn refunded(app: &App, event: &Value, now: Timestamp) -> Result<(), Error> {
    let charge = &event["data"]["object"];
    let Some(owner) = owner(charge) else { return Ok(()) };
    let total = amount(app, charge, "amount_refunded")?;
    let before = event["data"]["previous_attributes"]["amount_refunded"].as_i64();
    let cents = before.unwrap_or(0).clamp(0, total) - total;
    if cents == 0 {
        return Ok(());
    }
    let reference = format!("refund:{}:{total}", text(charge, "id")?);
    moves(app, &owner, (cents, "refund", "Refund"), (reference, now)).await
}

/// A payer's bank took the money back, or (`won`) gave it back. What is given back was taken first, also when we
/// are told so in another order.
async fn disputed(
    app: &App,
    stripe: &Stripe,
    dispute: &Value,
    (won, now): (bool, Timestamp),
) -> Result<(), Error> {
    let owner = match owner(dispute) {
        Some(owner) => Some(owner),
        None => stripe.charged(text(dispute, "charge")?).await?,
    };
    let Some(owner) = owner else { return Ok(()) };
    let cents = amount(app, dispute, "amount")?;
    let taken = format!("dispute:{}", text(dispute, "id")?);
    let given = format!("{taken}:won");
    moves(app, &owner, (-cents, "dispute", "Disputed payment"), (taken, now)).await?;
    if won {
        moves(app, &owner, (cents, "dispute", "Dispute won"), (given, now)).await?;
    }
    Ok(())
}

async fn moves(
    app: &App,
    owner: &OwnerId,
    (cents, kind, description): (i64, &'static str, &str),
    (reference, at): (String, Timestamp),
) -> Result<(), Error> {
    let (description, reference) = (description.to_owned(), Some(reference));
    let movement = Movement { cents, kind, description, reference, at };
    app.store.move_money(owner, movement).await.map(drop)
}

/// Whose payment it is; `None` for one that was not begun here.
pub(crate) fn owner(of: &Value) -> Option<OwnerId> {
    of["metadata"]["owner"].as_str()?.parse().ok()
}

fn text<'a>(of: &'a Value, field: &str) -> Result<&'a str, Error> {
    of[field].as_str().ok_or_else(|| Error::invalid(field, "is missing"))
}

/// In our own currency; another one would be another amount.
fn amount(app: &App, of: &Value, field: &str) -> Result<i64, Error> {
    if of["currency"].as_str() != Some(app.billing.currency.as_str()) {
        return Err(Error::invalid("currency", "not the one of this deployment"));
    }
    let cents = of[field].as_i64().filter(|cents| (1..=store::MOVE_CENTS_MAX).contains(cents));
    cents.ok_or_else(|| Error::invalid(field, "not an amount"))
}
