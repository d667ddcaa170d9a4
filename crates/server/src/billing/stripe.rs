//! Stripe by its REST API: pages to pay on, payments without their owner, and what its webhooks tell.
//!
//! Credit comes from one place alone, the webhook `payment_intent.succeeded`; its payment's id is the
//! reference of the entry, so that telling twice enters once.

use anyhow::{Context, Result, bail};
use axum::http::{Request, Uri};
use bytes::Bytes;
use jiff::Timestamp;
use model::{Error, OwnerId};
use serde_json::Value;
use store::{Credit, PayingWith, Store, Topup};
use url::form_urlencoded::Serializer;

use super::signature;
use crate::config::Secret;
use crate::https::Https;

pub(crate) struct Stripe {
    url: String,
    key: Secret,
    webhook: Secret,
    https: Https,
}

impl Stripe {
    pub(super) fn new(url: &str, key: Secret, webhook: Secret) -> Result<Self> {
        let url = url.trim_end_matches('/').to_owned();
        let parsed: Uri = url.parse().context("not a URL")?;
        if parsed.host().is_none() {
            bail!("a URL without a host");
        }
        Ok(Self { url, key, webhook, https: Https::new()? })
    }

    /// The address of a page where the owner can pay.
    pub(crate) async fn checkout(
        &self,
        owner: &OwnerId,
        amount_cents: i64,
        back_to: &str,
    ) -> Result<String, Error> {
        let amount = amount_cents.to_string();
        let fields = [
            ("mode", "payment"),
            ("client_reference_id", owner.as_str()),
            ("customer_creation", "always"),
            ("line_items[0][quantity]", "1"),
            ("line_items[0][price_data][currency]", "usd"),
            ("line_items[0][price_data][unit_amount]", &amount),
            ("line_items[0][price_data][product_data][name]", "Credit"),
            ("payment_intent_data[metadata][owner]", owner.as_str()),
            ("payment_intent_data[setup_future_usage]", "off_session"),
            ("success_url", back_to),
            ("cancel_url", back_to),
        ];
        let once = uuid::Uuid::now_v7().to_string();
        let answer = self.post("/v1/checkout/sessions", &fields, &once).await.map_err(|error| {
            tracing::error!(error = format!("{error:#}"), "could not begin a payment");
            Error::unavailable("the payment service does not answer as it should; try again later")
        })?;
        let url = answer["url"].as_str().context("a payment page without an address")?;
        Ok(url.to_owned())
    }

    /// Pays with what was paid with before, without the owner.
    pub(super) async fn pay(&self, topup: &Topup) -> Result<()> {
        let amount = topup.amount_cents.to_string();
        let fields = [
            ("amount", amount.as_str()),
            ("currency", "usd"),
            ("customer", &topup.with.customer),
            ("payment_method", &topup.with.payment_method),
            ("off_session", "true"),
            ("confirm", "true"),
            ("metadata[owner]", topup.owner.as_str()),
        ];
        let once = format!("topup:{}:{}", topup.owner, topup.asked_at.as_microsecond());
        self.post("/v1/payment_intents", &fields, &once).await.map(drop)
    }

    /// What a webhook told, if it was Stripe that told it. What does not concern us is nothing.
    pub(crate) async fn told(
        &self,
        signature: &str,
        body: &[u8],
        store: &Store,
        now: Timestamp,
    ) -> Result<(), Error> {
        if !signature::holds(signature, body, self.webhook.reveal(), now) {
            return Err(Error::invalid("Stripe-Signature", "does not fit the body, or is too old"));
        }
        let event: Value = serde_json::from_slice(body)
            .map_err(|error| Error::invalid("body", format!("not JSON: {error}")))?;
        let object = &event["data"]["object"];
        match event["type"].as_str() {
            Some("payment_intent.succeeded") => paid(object, store, now).await,
            Some("refund.created") => refunded(object, store, now).await,
            _ => Ok(()),
        }
    }

    async fn post(&self, path: &str, fields: &[(&str, &str)], once: &str) -> Result<Value> {
        let form = Serializer::new(String::new()).extend_pairs(fields).finish();
        let uri: Uri = format!("{}{path}", self.url).parse().context("an address")?;
        let host = uri.authority().context("an address without a host")?.to_string();
        let request = Request::post(uri)
            .header("host", host)
            .header("authorization", format!("Bearer {}", self.key.reveal()))
            .header("content-type", "application/x-www-form-urlencoded")
            .header("idempotency-key", once)
            .header("content-length", form.len())
            .body(Bytes::from(form))?;
        let answer = self.https.send(request).await.context("ask Stripe")?;
        let status = answer.status();
        let value: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        if !status.is_success() {
            let said = value["error"]["message"].as_str().unwrap_or("no reason given");
            bail!("Stripe answered {status}: {said}");
        }
        Ok(value)
    }
}

/// A payment that arrived. One of somebody we do not know is not for us.
async fn paid(payment: &Value, store: &Store, now: Timestamp) -> Result<(), Error> {
    let text = |name: &str| payment[name].as_str().map(str::to_owned);
    let (Some(id), Some(owner)) = (text("id"), payment["metadata"]["owner"].as_str()) else {
        return Ok(());
    };
    let Some(amount_cents) = payment["amount_received"].as_i64().filter(|amount| *amount > 0)
    else {
        return Err(Error::invalid("amount_received", "must be a number of cents above 0"));
    };
    if payment["currency"] != "usd" {
        return Err(Error::invalid("currency", "must be usd"));
    }
    let owner: OwnerId = owner.parse()?;
    let description = "Payment".to_owned();
    let credit = Credit { amount_cents, description, reference: format!("stripe:{id}") };
    store.credit(&owner, credit, now).await?;
    if let (Some(customer), Some(payment_method)) = (text("customer"), text("payment_method")) {
        store.set_paying_with(&owner, PayingWith { customer, payment_method }).await?;
    }
    Ok(())
}

/// Money that went back takes its credit with it.
async fn refunded(refund: &Value, store: &Store, now: Timestamp) -> Result<(), Error> {
    let (Some(id), Some(payment)) = (refund["id"].as_str(), refund["payment_intent"].as_str())
    else {
        return Ok(());
    };
    let Some(amount) = refund["amount"].as_i64().filter(|amount| *amount > 0) else {
        return Err(Error::invalid("amount", "must be a number of cents above 0"));
    };
    let Some(owner) = store.owner_of_payment(&format!("stripe:{payment}")).await? else {
        return Ok(());
    };
    let description = "Refund".to_owned();
    let credit = Credit { amount_cents: -amount, description, reference: format!("stripe:{id}") };
    store.credit(&owner, credit, now).await.map(drop)
}
