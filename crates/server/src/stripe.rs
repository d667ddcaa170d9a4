//! Stripe, by its REST API: pages to pay on, payments without the payer, and what it tells us. Every call that
//! moves money has an idempotency key, so that trying again pays once.

use std::time::Duration;

use anyhow::{Context, Result as Outcome};
use axum::http::HeaderMap;
use jiff::{SignedDuration, Timestamp};
use model::{Error, OwnerId, Result};
use ring::hmac;
use serde_json::Value;
use store::Topup;
use url::Url;

use crate::config::StripeSettings;
use crate::money::notice;

const CALL_MAX: Duration = Duration::from_secs(20);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Of an answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Between what a notice says about its time and ours.
const NOTICE_AGE_MAX_SECONDS: i64 = 300;
const SIGNATURE: &str = "stripe-signature";
/// Stripe remembers keys for a day.
const KEY_IS_GOOD_FOR: SignedDuration = SignedDuration::from_hours(20);
const CLOCKS_DIFFER_SECONDS: i64 = 3600;

pub(crate) struct Stripe {
    client: reqwest::Client,
    url: Url,
    secret_key: String,
    webhook_key: hmac::Key,
    currency: String,
    return_url: String,
}

/// What became of a payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charged {
    Paid,
    Refused,
    /// It is asked again, under the same key.
    Unknown,
}

impl Stripe {
    pub(crate) fn new(
        settings: StripeSettings,
        currency: &str,
        return_url: String,
    ) -> Outcome<Self> {
        // The client takes the process's own. A second one changes nothing.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_MAX)
            .timeout(CALL_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .context("make a client for Stripe")?;
        let webhook_key = hmac::Key::new(hmac::HMAC_SHA256, settings.webhook_secret.as_bytes());
        Ok(Self {
            client,
            url: settings.url,
            secret_key: settings.secret_key,
            webhook_key,
            currency: currency.to_owned(),
            return_url,
        })
    }

    /// A page on which an owner pays. Their card is kept there for automatic payments.
    pub(crate) async fn checkout(
        &self,
        owner: &OwnerId,
        cents: i64,
        customer: Option<&str>,
    ) -> Result<String> {
        let cents = cents.to_string();
        let item = "line_items[0]";
        let mut form = vec![
            ("mode".to_owned(), "payment"),
            ("client_reference_id".to_owned(), owner.as_str()),
            ("metadata[owner]".to_owned(), owner.as_str()),
            ("payment_intent_data[metadata][owner]".to_owned(), owner.as_str()),
            ("payment_intent_data[setup_future_usage]".to_owned(), "off_session"),
            (format!("{item}[quantity]"), "1"),
            (format!("{item}[price_data][currency]"), self.currency.as_str()),
            (format!("{item}[price_data][unit_amount]"), cents.as_str()),
            (format!("{item}[price_data][product_data][name]"), "Credits"),
            ("success_url".to_owned(), self.return_url.as_str()),
            ("cancel_url".to_owned(), self.return_url.as_str()),
        ];
        form.push(match customer {
            Some(customer) => ("customer".to_owned(), customer),
            None => ("customer_creation".to_owned(), "always"),
        });
        let key = format!("checkout-{}", uuid::Uuid::now_v7().simple());
        let (status, body) = self.post("v1/checkout/sessions", &form, &key).await?;
        match body["url"].as_str() {
            Some(url) if status == 200 => Ok(url.to_owned()),
            Some(_) | None => Err(refused(status, &body)),
        }
    }

    /// From the card that the payer left. One that was begun so long ago that Stripe may have forgotten its
    /// key is looked for, and never made anew.
    pub(crate) async fn charge(&self, topup: &Topup, now: Timestamp) -> Charged {
        let charged = match now.duration_since(topup.at) < KEY_IS_GOOD_FOR {
            true => self.try_charge(topup).await,
            false => self.find_charge(topup).await,
        };
        match charged {
            Ok(charged) => charged,
            Err(failure) => {
                let error = failure.to_string();
                tracing::warn!(error, topup = topup.id, "an automatic payment is not at its end");
                Charged::Unknown
            }
        }
    }

    async fn try_charge(&self, topup: &Topup) -> Result<Charged> {
        let path = format!("v1/customers/{}/payment_methods?limit=1", topup.customer);
        let (status, body) = self.get(&path).await?;
        if status != 200 {
            return Err(refused(status, &body));
        }
        let Some(card) = body["data"][0]["id"].as_str() else { return Ok(Charged::Refused) };
        let cents = topup.cents.to_string();
        let form = [
            ("amount", cents.as_str()),
            ("currency", self.currency.as_str()),
            ("customer", topup.customer.as_str()),
            ("payment_method", card),
            ("off_session", "true"),
            ("confirm", "true"),
            ("metadata[topup]", topup.id.as_str()),
            ("metadata[owner]", topup.owner.as_str()),
        ];
        let form = form.map(|(name, value)| (name.to_owned(), value));
        let (status, body) = self.post("v1/payment_intents", &form, &topup.id).await?;
        match (status, body["status"].as_str()) {
            (200, Some("succeeded")) => Ok(Charged::Paid),
            (200, Some("processing")) | (409, _) => Ok(Charged::Unknown),
            // It wants the payer, or the card was refused.
            (200 | 402, _) => Ok(Charged::Refused),
            // The payer has another card by now, and the key is of a payment with the one before.
            (400, _) if body["error"]["type"] == "idempotency_error" => {
                self.find_charge(topup).await
            }
            (status, _) => Err(refused(status, &body)),
        }
    }

    async fn find_charge(&self, topup: &Topup) -> Result<Charged> {
        let since = topup.at.as_second() - CLOCKS_DIFFER_SECONDS;
        let customer = &topup.customer;
        let path = format!("v1/payment_intents?customer={customer}&created[gte]={since}&limit=100");
        let (status, body) = self.get(&path).await?;
        if status != 200 {
            return Err(refused(status, &body));
        }
        let mut all = body["data"].as_array().into_iter().flatten();
        let found = all.find(|one| one["metadata"]["topup"] == topup.id.as_str());
        Ok(match found.map(|one| one["status"].as_str().unwrap_or_default()) {
            Some("succeeded") => Charged::Paid,
            Some("processing") => Charged::Unknown,
            Some(_) => Charged::Refused,
            // It may be among those that were not listed.
            None if body["has_more"] == true => Charged::Unknown,
            None => Charged::Refused,
        })
    }

    /// Whose payment a charge was; `None` for what was not begun by us.
    pub(crate) async fn charged(&self, charge: &str) -> Result<Option<OwnerId>> {
        if !charge.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_') {
            return Err(Error::invalid("charge", "not an id"));
        }
        match self.get(&format!("v1/charges/{charge}")).await? {
            (200, body) => Ok(notice::owner(&body)),
            (404, _) => Ok(None),
            (status, body) => Err(refused(status, &body)),
        }
    }

    /// Whether these bytes are from Stripe, and not from long ago.
    pub(crate) fn is_genuine(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> bool {
        let Some(header) = headers.get(SIGNATURE).and_then(|value| value.to_str().ok()) else {
            return false;
        };
        let parts = || header.split(',').filter_map(|part| part.trim().split_once('='));
        let time = parts().find(|(name, _)| *name == "t").map(|(_, value)| value);
        let Some(seconds) = time.and_then(|time| time.parse::<i64>().ok()) else { return false };
        if now.as_second().abs_diff(seconds) > NOTICE_AGE_MAX_SECONDS.unsigned_abs() {
            return false;
        }
        let signed = [seconds.to_string().as_bytes(), b".", body].concat();
        let mut tags = parts().filter(|(name, _)| *name == "v1").take(5);
        tags.any(|(_, tag)| {
            unhex(tag).is_some_and(|tag| hmac::verify(&self.webhook_key, &signed, &tag).is_ok())
        })
    }

    async fn post(&self, path: &str, form: &[(String, &str)], key: &str) -> Result<(u16, Value)> {
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        let request = self.client.post(self.at(path)?).body(body);
        let kind = "application/x-www-form-urlencoded";
        self.send(request.header("content-type", kind).header("idempotency-key", key)).await
    }

    async fn get(&self, path: &str) -> Result<(u16, Value)> {
        self.send(self.client.get(self.at(path)?)).await
    }

    fn at(&self, path: &str) -> Result<Url> {
        Ok(self.url.join(path).context("make an address at Stripe")?)
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<(u16, Value)> {
        let silent = || Error::unavailable("Stripe does not answer as it should; try again");
        let sent = request.bearer_auth(&self.secret_key).send().await;
        let mut answer = sent.map_err(|error| {
            tracing::warn!(error = %error.without_url(), "could not reach Stripe");
            silent()
        })?;
        let status = answer.status().as_u16();
        let mut body = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(|_| silent())? {
            if body.len() + piece.len() > ANSWER_BYTES_MAX {
                return Err(silent());
            }
            body.extend_from_slice(&piece);
        }
        if status >= 500 {
            return Err(silent());
        }
        Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }
}

/// The operator is told why; the caller, that it does not work.
fn refused(status: u16, body: &Value) -> Error {
    let why = body["error"]["message"].as_str().unwrap_or("no reason given");
    tracing::warn!(status, why, "Stripe refused a call");
    Error::unavailable("Stripe refused the payment page; the operator's log says why")
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || text.len() > 128 || !text.is_ascii() {
        return None;
    }
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
