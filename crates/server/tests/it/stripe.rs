//! A double of Stripe: it looks at the key, the idempotency key and the form of every call, answers the same
//! key with the same thing, and signs what it tells.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use ring::hmac;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::client::{Answer, Client};

pub(crate) const SECRET_KEY: &str = "sk_test_hush";
const WEBHOOK_SECRET: &str = "whsec_hush";

#[derive(Default)]
pub(crate) struct Seen {
    /// By idempotency key: what was asked, and how often.
    pub(crate) calls: BTreeMap<String, (String, BTreeMap<String, String>, u32)>,
    /// How many calls of that kind are answered with 500 first.
    pub(crate) failures: u32,
    /// What becomes of payments.
    pub(crate) status: String,
    /// Payments that were made before.
    pub(crate) made: Vec<Value>,
    /// Whose charges are, by their ids.
    pub(crate) charges: BTreeMap<String, String>,
}

type Shared = Arc<Mutex<Seen>>;

pub(crate) struct Stripe {
    pub(crate) seen: Shared,
    address: String,
    dir: tempfile::TempDir,
    _serving: AbortOnDropHandle<()>,
}

impl Stripe {
    pub(crate) async fn start() -> Self {
        let seen: Shared =
            Arc::new(Mutex::new(Seen { status: "succeeded".into(), ..Seen::default() }));
        let routes = Router::new()
            .route("/v1/checkout/sessions", post(checkout))
            .route("/v1/payment_intents", post(pay).get(payments))
            .route("/v1/charges/{charge}", get(charge))
            .route("/v1/customers/{customer}/payment_methods", get(cards))
            .with_state(Arc::clone(&seen));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let serving: JoinHandle<()> = TaskTracker::new().spawn(async move {
            axum::serve(listener, routes).await.unwrap();
        });
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("key"), format!("{SECRET_KEY}\n")).unwrap();
        std::fs::write(dir.path().join("webhook"), WEBHOOK_SECRET).unwrap();
        Self { seen, address, dir, _serving: AbortOnDropHandle::new(serving) }
    }

    /// The settings of a server that is paid by it.
    pub(crate) fn settings(&self) -> String {
        let dir = self.dir.path().display();
        format!(
            "[billing]\nstripe_url = '{}'\nstripe_key_file = '{dir}/key'\n\
             stripe_webhook_secret_file = '{dir}/webhook'\n",
            self.address
        )
    }
}

fn known(seen: &Shared, headers: &HeaderMap, what: &str, body: &str) -> Result<(), StatusCode> {
    assert_eq!(headers["authorization"], format!("Bearer {SECRET_KEY}"));
    assert_eq!(headers["content-type"], "application/x-www-form-urlencoded");
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    let form: BTreeMap<_, _> = url::form_urlencoded::parse(body.as_bytes()).into_owned().collect();
    let mut seen = seen.lock().unwrap();
    let call = seen.calls.entry(key).or_insert_with(|| (what.into(), form.clone(), 0));
    assert_eq!((&call.0, &call.1), (&what.to_owned(), &form), "one key, one request");
    call.2 += 1;
    if seen.failures > 0 {
        seen.failures -= 1;
        return Err(StatusCode::INTERNAL_SERVER_ERROR);
    }
    Ok(())
}

async fn checkout(
    State(seen): State<Shared>,
    headers: HeaderMap,
    body: String,
) -> Result<Json<Value>, StatusCode> {
    known(&seen, &headers, "checkout", &body)?;
    Ok(Json(json!({ "id": "cs_1", "url": "https://checkout.stripe.test/cs_1" })))
}

async fn pay(
    State(seen): State<Shared>,
    headers: HeaderMap,
    body: String,
) -> Result<(StatusCode, Json<Value>), StatusCode> {
    known(&seen, &headers, "pay", &body)?;
    let status = seen.lock().unwrap().status.clone();
    if status == "declined" {
        let error = json!({ "error": { "message": "Your card was declined." } });
        return Ok((StatusCode::PAYMENT_REQUIRED, Json(error)));
    }
    Ok((StatusCode::OK, Json(json!({ "id": "pi_1", "status": status }))))
}

async fn cards(Path(customer): Path<String>, headers: HeaderMap) -> Json<Value> {
    assert_eq!(headers["authorization"], format!("Bearer {SECRET_KEY}"));
    assert_eq!(customer, "cus_1");
    Json(json!({ "data": [{ "id": "pm_1" }] }))
}

async fn payments(
    State(seen): State<Shared>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Json<Value> {
    assert_eq!(headers["authorization"], format!("Bearer {SECRET_KEY}"));
    assert_eq!(query["customer"], "cus_1");
    assert!(query["created[gte]"].parse::<i64>().unwrap() > 0);
    Json(json!({ "data": seen.lock().unwrap().made, "has_more": false }))
}

async fn charge(
    State(seen): State<Shared>,
    Path(charge): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, StatusCode> {
    assert_eq!(headers["authorization"], format!("Bearer {SECRET_KEY}"));
    let owner = seen.lock().unwrap().charges.get(&charge).cloned();
    let owner = owner.ok_or(StatusCode::NOT_FOUND)?;
    let metadata = if owner.is_empty() { json!({}) } else { json!({ "owner": owner }) };
    Ok(Json(json!({ "id": charge, "metadata": metadata })))
}

pub(crate) fn signature(body: &str, seconds: i64, secret: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, format!("{seconds}.{body}").as_bytes());
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={seconds},v1={hex},v0=ff")
}

/// As Stripe would, now.
pub(crate) async fn tell(client: &Client, event: &Value) -> Answer {
    let body = event.to_string();
    let signed = signature(&body, Timestamp::now().as_second(), WEBHOOK_SECRET);
    tell_signed(client, &body, &signed).await
}

pub(crate) async fn tell_signed(client: &Client, body: &str, signed: &str) -> Answer {
    let request = client.request("POST", "/v1/billing/webhook").header("stripe-signature", signed);
    client.send(request.body(Body::from(body.to_owned())).unwrap()).await
}

pub(crate) fn paid(owner: &str, session: &str, cents: i64) -> Value {
    json!({ "id": "evt_1", "type": "checkout.session.completed", "data": { "object": {
        "id": session, "payment_status": "paid", "amount_total": cents, "currency": "usd",
        "customer": "cus_1", "metadata": { "owner": owner }
    } } })
}
