//! Use and money over HTTP, with a double of Stripe that checks what it is sent.

use std::time::Duration;

use engine::Clock;
use jiff::Timestamp;
use ring::hmac;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::client::{Answer, Client, PATIENCE};
use crate::harness::{Setup, TestServer};

const WEBHOOK_SECRET: &str = "whsec_test";

async fn grant(server: &TestServer, owner: &str, amount: i64, reference: &str) -> Value {
    let asked = json!({ "owner": owner, "amount": amount, "reference": reference });
    server.operator.post("/v1/billing/grants", &asked).await.json(200)
}

async fn owner_of(client: &Client) -> String {
    let me = client.get("/v1/tenants/me").await.json(200);
    me["tenant_id"].as_str().unwrap().to_owned()
}

/// Waits until an answer is as wanted; with a clock that the test moves.
async fn becomes(
    client: &Client,
    clock: &Clock,
    path: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    for _ in 0..400 {
        let now = client.get(path).await.json(200);
        if wanted(&now) {
            return now;
        }
        clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{path} never became as wanted");
}

fn with_clock(toml: &str) -> Setup {
    Setup { clock: Clock::manual(Timestamp::now()), ..Setup::with(toml) }
}

#[tokio::test]
async fn what_runs_shows_in_the_usage_and_in_the_dashboard() {
    let server = with_clock("[billing]\ncpu_second_micro_cents = 1000000").start().await;
    let ann = server.account("ann").await;
    let empty = ann.get("/v1/usage").await.json(200);
    assert_eq!(
        empty["infra_usage"],
        json!({ "cpu_seconds": 0, "sandbox_count": 0, "credits_used_usd": 0.0 })
    );
    assert_eq!(empty["credits"], json!({ "balance_usd": 0.0, "auto_topup_enabled": false }));
    assert_eq!(empty["tenant_id"], owner_of(&ann).await);
    let asked = json!({ "template": "standard", "tier": "persistent", "name": "box" });
    let made = ann.post("/v1/sandboxes", &asked).await.json(201);
    server.driver.set_cpu_usec(150_000_000);
    let used = |now: &Value| now["infra_usage"]["cpu_seconds"] == 150;
    let now = becomes(&ann, &server.clock, "/v1/usage", used).await;
    assert_eq!(now["infra_usage"]["sandbox_count"], 1);
    let charged = |now: &Value| now["credits"]["balance_usd"].as_f64().unwrap() <= -1.5;
    becomes(&ann, &server.clock, "/v1/usage", charged).await;
    let period = now["period"].as_str().unwrap();
    assert!(period.len() == 22 && period.contains("-01.."), "{period}");
    let history = ann.get("/v1/usage/history?to=2999-01-01&from=2998-12-31").await.json(200);
    assert_eq!(history, json!({ "entries": [] }));
    let (from, to) = ("2020-01-01", "2029-01-01");
    let history = ann.get(&format!("/v1/usage/history?from={from}&to={to}")).await.json(200);
    let sum = |name: &str| -> u64 {
        let entries = history["entries"].as_array().unwrap();
        entries.iter().map(|entry| entry["infra_usage"][name].as_u64().unwrap()).sum()
    };
    assert_eq!((sum("cpu_seconds"), sum("sandbox_count")), (150, 1));
    assert_eq!(history["entries"][0]["period_start"], history["entries"][0]["period_end"]);
    assert_eq!(history["entries"][0]["session_count"], 0);
    let overview = ann.get("/v1/dashboard/overview").await.json(200);
    assert_eq!(
        overview,
        json!({ "sandbox_count": 1, "input_tokens": 0, "output_tokens": 0, "cpu_seconds": 150,
            "billable_tool_calls": 0 })
    );
    let daily = ann.get(&format!("/v1/dashboard/usage/daily?from={from}&to={to}")).await.json(200);
    let day = &daily["entries"][0];
    assert_eq!((&day["input_tokens"], &day["output_tokens"]), (&json!(0), &json!(0)));
    ann.post("/v1/sandboxes/box/stop", &json!({})).await.json(200);
    let over = |page: &Value| page["sandboxes"][0]["ended_at"].is_string();
    let page = becomes(&ann, &server.clock, "/v1/dashboard/sandboxes?limit=1", over).await;
    assert_eq!(page["total"], 1);
    assert_eq!(
        (&page["sandboxes"][0]["id"], &page["sandboxes"][0]["name"]),
        (&made["id"], &json!("box"))
    );
    assert_eq!(page["sandboxes"][0]["cpu_seconds"], 150.0);
    let none = ann.get("/v1/dashboard/sandboxes?offset=1").await.json(200);
    assert_eq!(none, json!({ "sandboxes": [], "total": 1 }));
    // Others see their own alone, and what is asked wrongly is named.
    let bob = server.account("bob").await;
    assert_eq!(bob.get("/v1/dashboard/overview").await.json(200)["cpu_seconds"], 0);
    assert_eq!(bob.get("/v1/dashboard/sandboxes").await.json(200)["total"], 0);
    for (path, field) in [
        ("/v1/usage?x=1", "x"),
        ("/v1/usage/history?from=yesterday", "from"),
        ("/v1/usage/history?from=2026-02-30", "from"),
        ("/v1/usage/history?from=2026-02-02&to=2026-02-02", "to"),
        ("/v1/usage/history?from=0001-01-01", "from"),
        ("/v1/dashboard/usage/daily?from=2026-02-02", "to"),
        ("/v1/dashboard/usage/daily?from=2026-02-02&to=2026-02-01", "to"),
        ("/v1/dashboard/sandboxes?limit=0", "limit"),
        ("/v1/dashboard/sandboxes?limit=1001", "limit"),
        ("/v1/dashboard/sandboxes?offset=-1", "offset"),
    ] {
        let refused = bob.get(path).await.problem(400, "invalid_request");
        assert_eq!(refused["field"], field, "{path}");
    }
    let key = server.tenant("carl").await;
    key.get("/v1/usage").await.json(200);
    for path in ["overview", "sandboxes", "usage/daily?from=2026-01-01&to=2026-01-01"] {
        key.get(&format!("/v1/dashboard/{path}")).await.problem(401, "unauthorized");
    }
    server.stop().await;
}

#[tokio::test]
async fn the_operator_gives_credit_once_for_each_reference() {
    let server = TestServer::start().await;
    let ann = server.account("ann").await;
    let owner = owner_of(&ann).await;
    assert_eq!(ann.get("/v1/billing/balance").await.json(200), json!({ "credit_balance": 0 }));
    assert_eq!(
        grant(&server, &owner, 500, "a").await,
        json!({ "credit_balance": 500, "entered": true })
    );
    assert_eq!(
        grant(&server, &owner, 500, "a").await,
        json!({ "credit_balance": 500, "entered": false })
    );
    assert_eq!(grant(&server, &owner, -200, "b").await["credit_balance"], 300);
    let page = ann.get("/v1/billing/transactions?limit=1&offset=1").await.json(200);
    assert_eq!((&page["total"], &page["transactions"][0]["amount"]), (&json!(2), &json!(500)));
    let newest = ann.get("/v1/billing/transactions").await.json(200)["transactions"][0].clone();
    assert_eq!((&newest["amount"], &newest["balance"]), (&json!(-200), &json!(300)));
    assert!(newest["id"].as_str().unwrap().starts_with("txn_"), "{newest}");
    let asked = json!({ "owner": owner, "amount": 5, "reference": "c" });
    ann.post("/v1/billing/grants", &asked).await.problem(403, "forbidden");
    let bad = [
        (json!({ "owner": "ann", "amount": 5, "reference": "c" }), "owner"),
        (json!({ "owner": owner, "amount": 0, "reference": "c" }), "amount"),
        (json!({ "owner": owner, "amount": 5, "reference": "" }), "reference"),
        (json!({ "owner": owner, "amount": 5, "reference": "a\u{1}" }), "reference"),
        (json!({ "owner": owner, "amount": 1.5, "reference": "c" }), "amount"),
        (json!({ "owner": owner, "amount": i64::MIN, "reference": "c" }), "amount"),
    ];
    for (asked, field) in bad {
        let refused = server.operator.post("/v1/billing/grants", &asked).await;
        assert_eq!(refused.problem(400, "invalid_request")["field"], field, "{asked}");
    }
    ann.post("/v1/billing/checkout", &json!({ "credit_amount": 499 }))
        .await
        .problem(400, "invalid_request");
    let asked = json!({ "credit_amount": 500 });
    ann.post("/v1/billing/checkout", &asked).await.problem(501, "billing_not_available");
    ann.post("/v1/billing/webhook", &json!({})).await.problem(501, "billing_not_available");
    let off = json!({ "enabled": false, "threshold_amount": 0, "topup_amount": 0 });
    assert_eq!(ann.get("/v1/billing/auto-topup").await.json(200), off);
    let on = json!({ "enabled": true, "threshold_amount": 100, "topup_amount": 500 });
    assert_eq!(
        ann.post("/v1/billing/auto-topup", &on).await.json(200),
        json!({ "status": "updated" })
    );
    assert_eq!(ann.get("/v1/billing/auto-topup").await.json(200), on);
    assert_eq!(
        ann.get("/v1/usage").await.json(200)["credits"],
        json!({ "balance_usd": 3.0, "auto_topup_enabled": true })
    );
    for (threshold, amount) in [(-1, 500), (100, 499), (100, 99_999_999)] {
        let asked =
            json!({ "enabled": true, "threshold_amount": threshold, "topup_amount": amount });
        ann.post("/v1/billing/auto-topup", &asked).await.problem(400, "invalid_request");
    }
    server.stop().await;
}

#[tokio::test]
async fn without_credit_nothing_starts_and_what_runs_ends() {
    let toml =
        "[billing]\nenforce = true\nsignup_credit_cents = 5\ncpu_second_micro_cents = 1000000";
    let server = with_clock(toml).start().await;
    let poor = server.tenant("poor").await;
    let asked = json!({ "template": "standard" });
    poor.post("/v1/sandboxes", &asked).await.problem(402, "credits_exhausted");
    let ann = server.account("ann").await;
    assert_eq!(ann.get("/v1/billing/balance").await.json(200)["credit_balance"], 5);
    let kept = json!({ "template": "standard", "tier": "persistent", "name": "kept" });
    ann.post("/v1/sandboxes", &kept).await.json(201);
    let own = json!({ "template": "standard", "tier": "persistent", "name": "own" });
    server.operator.post("/v1/sandboxes", &own).await.json(201);
    server.driver.set_cpu_usec(60_000_000);
    let ended = |now: &Value| now["state"] == "stopped";
    let now = becomes(&ann, &server.clock, "/v1/sandboxes/kept", ended).await;
    assert_eq!(now["end_reason"], "credits_exhausted");
    ann.post("/v1/sandboxes/kept/start", &json!({})).await.problem(402, "credits_exhausted");
    let running = server.operator.get("/v1/sandboxes/own").await.json(200);
    assert_eq!(running["state"], "running", "the operator has no limits");
    grant(&server, &owner_of(&ann).await, 10_000, "more").await;
    ann.post("/v1/sandboxes/kept/start", &json!({})).await.json(200);
    // Signing in again gives nothing again.
    let before = ann.get("/v1/billing/transactions").await.json(200)["total"].clone();
    let again = server.account("ann").await;
    assert_eq!(again.get("/v1/billing/transactions").await.json(200)["total"], before);
    server.stop().await;
}

/// Answers one request after the other with `answers`; tells each head and body.
async fn stripe(listener: TcpListener, answers: Vec<(u16, Value)>) -> Vec<(String, String)> {
    let mut heard = Vec::new();
    for (status, answer) in answers {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(stream.read_line(&mut head).await.unwrap() > 0);
        }
        let head = head.to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap();
        let mut body = vec![0; length.lines().next().unwrap().parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        let text = answer.to_string();
        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{text}", text.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
        heard.push((head, String::from_utf8(body).unwrap()));
    }
    heard
}

/// As Stripe would send it at `at`.
async fn tell(server: &TestServer, event: &Value, at: i64, secret: &str) -> Answer {
    let body = event.to_string();
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, format!("{at}.{body}").as_bytes());
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let nobody = server.nobody();
    let request = nobody
        .request("POST", "/v1/billing/webhook")
        .header("content-type", "application/json")
        .header("stripe-signature", format!("t={at},v1={hex}"))
        .body(body.into())
        .unwrap();
    nobody.send(request).await
}

#[tokio::test]
async fn a_payment_is_credited_when_stripe_says_so_and_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answers = vec![
        (200, json!({ "url": "https://pay.example/session" })),
        (402, json!({ "error": { "message": "declined" } })),
    ];
    let double = tokio_util::task::TaskTracker::new().spawn(stripe(listener, answers));
    let toml = format!(
        "public_url = 'https://town.example'\n[billing]\nstripe_url = 'http://{address}'\n\
         stripe_secret_key = 'sk_test_1'\nstripe_webhook_secret = '{WEBHOOK_SECRET}'"
    );
    let server = Setup::with(&toml).start().await;
    let ann = server.account("ann").await;
    let owner = owner_of(&ann).await;
    let asked = json!({ "credit_amount": 1000 });
    let started = ann.post("/v1/billing/checkout", &asked).await.json(200);
    assert_eq!(started, json!({ "url": "https://pay.example/session" }));
    ann.post("/v1/billing/checkout", &asked).await.problem(503, "unavailable");
    let heard = timeout(PATIENCE, double).await.unwrap().unwrap();
    let (head, body) = &heard[0];
    assert!(head.starts_with("post /v1/checkout/sessions http/1.1\r\n"), "{head}");
    assert!(head.contains("authorization: bearer sk_test_1\r\n"), "{head}");
    let keys: Vec<_> = heard
        .iter()
        .map(|(head, _)| head.split("idempotency-key: ").nth(1).unwrap().lines().next().unwrap())
        .collect();
    assert!(keys[0].len() >= 32 && keys[0] != keys[1], "{keys:?}");
    let form: std::collections::BTreeMap<_, _> =
        url::form_urlencoded::parse(body.as_bytes()).into_owned().collect();
    assert_eq!(form["line_items[0][price_data][unit_amount]"], "1000");
    assert_eq!(form["payment_intent_data[metadata][owner]"], owner);
    let now = Timestamp::now().as_second();
    let paid = json!({ "type": "payment_intent.succeeded", "data": { "object": {
        "id": "pi_1", "amount_received": 1000, "currency": "usd", "customer": "cus_1",
        "payment_method": "pm_1", "metadata": { "owner": owner } } } });
    // Forged, old, from the future, changed: none of it counts.
    tell(&server, &paid, now, "whsec_other").await.problem(400, "invalid_request");
    tell(&server, &paid, now - 301, WEBHOOK_SECRET).await.problem(400, "invalid_request");
    tell(&server, &paid, now + 600, WEBHOOK_SECRET).await.problem(400, "invalid_request");
    ann.post("/v1/billing/webhook", &paid).await.problem(400, "invalid_request");
    assert_eq!(ann.get("/v1/billing/balance").await.json(200)["credit_balance"], 0);
    for _ in 0..3 {
        tell(&server, &paid, now, WEBHOOK_SECRET).await.json(200);
    }
    assert_eq!(ann.get("/v1/billing/balance").await.json(200)["credit_balance"], 1000);
    let refund = json!({ "type": "refund.created", "data": { "object": {
        "id": "re_1", "amount": 400, "payment_intent": "pi_1" } } });
    for _ in 0..2 {
        tell(&server, &refund, now, WEBHOOK_SECRET).await.json(200);
    }
    assert_eq!(ann.get("/v1/billing/balance").await.json(200)["credit_balance"], 600);
    for (kind, object) in [
        ("customer.created", json!({})),
        ("payment_intent.succeeded", json!({ "id": "pi_2", "amount_received": 5 })),
        ("refund.created", json!({ "id": "re_2", "amount": 5, "payment_intent": "pi_unknown" })),
    ] {
        let event = json!({ "type": kind, "data": { "object": object } });
        tell(&server, &event, now, WEBHOOK_SECRET).await.json(200);
    }
    for object in [
        json!({ "id": "pi_3", "amount_received": -5, "currency": "usd", "metadata": { "owner": owner } }),
        json!({ "id": "pi_4", "amount_received": 5, "currency": "eur", "metadata": { "owner": owner } }),
        json!({ "id": "pi_5", "amount_received": 5, "currency": "usd", "metadata": { "owner": "'; --" } }),
    ] {
        let event = json!({ "type": "payment_intent.succeeded", "data": { "object": object } });
        tell(&server, &event, now, WEBHOOK_SECRET).await.problem(400, "invalid_request");
    }
    assert_eq!(ann.get("/v1/billing/balance").await.json(200)["credit_balance"], 600);
    server.stop().await;
}
