//! `/v1/billing`, with Stripe's double and without.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Setup, TestServer};
use crate::stripe::{Stripe, paid, signature, tell, tell_signed};

async fn balance(client: &Client) -> i64 {
    client.get("/v1/billing/balance").await.json(200)["credit_balance"].as_i64().unwrap()
}

pub(crate) async fn owner(client: &Client) -> String {
    client.get("/v1/usage").await.json(200)["tenant_id"].as_str().unwrap().to_owned()
}

pub(crate) async fn grant(server: &TestServer, owner: &str, cents: i64) -> Value {
    let body = json!({ "owner": owner, "amount": cents, "description": "Pilot" });
    server.operator.post("/v1/admin/credits", &body).await.json(200)
}

#[tokio::test]
async fn without_stripe_the_operator_grants_credit_and_nobody_pays() {
    let server = Setup::with("[billing]\nsignup_credit_cents = 250\n").start().await;
    let ann = server.account("ann").await;
    let id = owner(&ann).await;
    assert_eq!(balance(&ann).await, 250);
    assert_eq!(grant(&server, &id, 1000).await, json!({ "credit_balance": 1250 }));
    let once = json!({ "owner": id, "amount": 7, "reference": "invoice-7" });
    for _ in 0..2 {
        server.operator.post("/v1/admin/credits", &once).await.json(200);
    }
    grant(&server, &id, -57).await;
    assert_eq!(balance(&ann).await, 1200);
    let list = ann.get("/v1/billing/transactions").await.json(200);
    let amounts: Vec<_> = list["transactions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["amount"].as_i64().unwrap())
        .collect();
    assert_eq!(amounts, [-57, 7, 1000, 250]);
    assert!(list["transactions"][0]["id"].as_str().unwrap().starts_with("txn_"));
    let page = ann.get("/v1/billing/transactions?limit=1&offset=2").await.json(200);
    assert_eq!(page["transactions"][0]["amount"], 1000);
    assert_eq!(page["transactions"][0]["description"], "Pilot");

    ann.post("/v1/admin/credits", &once).await.problem(403, "forbidden");
    let asked = json!({ "credit_amount": 1000 });
    ann.post("/v1/billing/checkout", &asked).await.problem(501, "not_implemented");
    let topup = json!({ "enabled": true, "threshold_amount": 1, "topup_amount": 100 });
    ann.post("/v1/billing/auto-topup", &topup).await.problem(501, "not_implemented");
    server.nobody().post("/v1/billing/webhook", &json!({})).await.problem(501, "not_implemented");
    server.tenant("bob").await.get("/v1/billing/balance").await.problem(401, "unauthorized");
    server.stop().await;
}

#[tokio::test]
async fn wrong_amounts_are_named() {
    let stripe = Stripe::start().await;
    let server = Setup::with(&stripe.settings()).start().await;
    let ann = server.account("ann").await;
    for cents in [json!(99), json!(0), json!(-5), json!(100_000_001), json!(1.5), json!("100")] {
        let body = json!({ "credit_amount": cents });
        ann.post("/v1/billing/checkout", &body).await.refuses("credit_amount");
    }
    let topup = |threshold, amount| json!({ "enabled": true, "threshold_amount": threshold, "topup_amount": amount });
    let path = "/v1/billing/auto-topup";
    ann.post(path, &topup(-1, 500)).await.refuses("threshold_amount");
    ann.post(path, &topup(100, 99)).await.refuses("topup_amount");
    ann.get("/v1/billing/transactions?limit=x").await.refuses("limit");
    let grant = |owner: &str, cents: i64| json!({ "owner": owner, "amount": cents });
    let operator = &server.operator;
    operator.post("/v1/admin/credits", &grant("ann", 5)).await.refuses("owner");
    operator.post("/v1/admin/credits", &grant("usr_ann", 0)).await.refuses("amount");
    server.stop().await;
}

#[tokio::test]
async fn what_is_paid_on_stripes_page_is_credited_once() {
    let stripe = Stripe::start().await;
    let server = Setup::with(&stripe.settings()).start().await;
    let ann = server.account("ann").await;
    let id = owner(&ann).await;
    let page = ann.post("/v1/billing/checkout", &json!({ "credit_amount": 1000 })).await.json(200);
    assert_eq!(page, json!({ "url": "https://checkout.stripe.test/cs_1" }));
    {
        let seen = stripe.seen.lock().unwrap();
        let (key, (what, form, times)) = seen.calls.iter().next().unwrap();
        assert!(key.starts_with("checkout-") && what == "checkout" && *times == 1);
        assert_eq!(form["line_items[0][price_data][unit_amount]"], "1000");
        assert_eq!(form["metadata[owner]"], id);
        assert_eq!(form["mode"], "payment");
    }
    let nobody = server.nobody();
    for _ in 0..3 {
        tell(&nobody, &paid(&id, "cs_1", 1000)).await.json(200);
    }
    assert_eq!(balance(&ann).await, 1000);
    let mut unpaid = paid(&id, "cs_2", 1000);
    unpaid["data"]["object"]["payment_status"] = "unpaid".into();
    tell(&nobody, &unpaid).await.json(200);
    let mut foreign = paid(&id, "cs_3", 1000);
    foreign["data"]["object"]["currency"] = "jpy".into();
    tell(&nobody, &foreign).await.refuses("currency");
    tell(&nobody, &json!({ "type": "customer.created", "data": {} })).await.json(200);
    let refund = json!({ "type": "charge.refunded", "data": { "object": { "id": "ch_1",
        "currency": "usd", "amount_refunded": 300, "metadata": { "owner": id } } } });
    for _ in 0..2 {
        tell(&nobody, &refund).await.json(200);
    }
    assert_eq!(balance(&ann).await, 700);
    server.stop().await;
}

#[tokio::test]
async fn a_notice_that_is_forged_old_or_changed_moves_nothing() {
    let stripe = Stripe::start().await;
    let server = Setup::with(&stripe.settings()).start().await;
    let (ann, nobody) = (server.account("ann").await, server.nobody());
    let body = paid(&owner(&ann).await, "cs_1", 1000).to_string();
    let now = Timestamp::now().as_second();
    let good = signature(&body, now, "whsec_hush");
    let more = body.replace("1000", "9000");
    let cases = [
        (&body, signature(&body, now, "whsec_other")),
        (&body, signature(&body, now - 600, "whsec_hush")),
        (&body, signature(&body, now + 600, "whsec_hush")),
        (&body, good.replace(&format!("t={now}"), &format!("t={}", now + 1))),
        (&body, good.replace("v1=", "v0=")),
        (&body, String::new()),
        (&body, "t=,v1=".into()),
        (&more, good.clone()),
    ];
    for (body, signed) in cases {
        let answer = tell_signed(&nobody, body, &signed).await;
        answer.refuses("stripe-signature");
    }
    assert_eq!(balance(&ann).await, 0);
    tell_signed(&nobody, &body, &good).await.json(200);
    assert_eq!(balance(&ann).await, 1000);
    tell_signed(&nobody, &body, &good).await.json(200);
    assert_eq!(balance(&ann).await, 1000, "a replay counts once");
    server.stop().await;
}

#[tokio::test]
async fn credit_is_bought_by_itself_and_never_twice() {
    let stripe = Stripe::start().await;
    stripe.seen.lock().unwrap().failures = 1;
    let dir = {
        let setup = Setup::with(&stripe.settings());
        let dir = std::sync::Arc::clone(&setup.dir);
        let server = setup.start().await;
        let ann = server.account("ann").await;
        let id = owner(&ann).await;
        let wanted = json!({ "enabled": true, "threshold_amount": 100, "topup_amount": 500 });
        let path = "/v1/billing/auto-topup";
        assert_eq!(ann.get(path).await.json(200)["enabled"], false);
        assert_eq!(ann.post(path, &wanted).await.json(200), json!({ "status": "updated" }));
        assert_eq!(ann.get(path).await.json(200), wanted);
        tell(&server.nobody(), &paid(&id, "cs_1", 100)).await.json(200);
        server.stop().await;
        dir
    };
    // Every start looks at once: the first try fails on the way, the second is the same payment.
    for start in 0..2 {
        let setup = Setup { dir: std::sync::Arc::clone(&dir), ..Setup::with(&stripe.settings()) };
        let server = setup.start().await;
        let ann = server.account("ann").await;
        let wanted = if start == 0 { 100 } else { 600 };
        for _ in 0..500 {
            let tried = stripe.seen.lock().unwrap().calls.values().map(|call| call.2).sum::<u32>();
            if tried > start && balance(&ann).await == wanted {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert_eq!(balance(&ann).await, wanted);
        server.stop().await;
    }
    let seen = stripe.seen.lock().unwrap();
    assert_eq!(seen.calls.len(), 1, "one idempotency key");
    let (key, (_, form, times)) = seen.calls.iter().next().unwrap();
    assert!(key.starts_with("top_"));
    assert_eq!((form["amount"].as_str(), form["payment_method"].as_str()), ("500", "pm_1"));
    assert_eq!(form["metadata[topup]"], *key);
    assert_eq!(*times, 2);
}

/// As Stripe tells of a payer's bank that wants the money back.
fn dispute(what: &str, status: &str, charge: &str) -> Value {
    json!({ "type": format!("charge.dispute.{what}"), "data": { "object": { "id": "dp_1",
        "charge": charge, "amount": 400, "currency": "usd", "status": status, "metadata": {} } } })
}

#[tokio::test]
async fn a_dispute_takes_the_money_and_gives_it_back_when_it_is_won() {
    let stripe = Stripe::start().await;
    let server = Setup::with(&stripe.settings()).start().await;
    let (ann, nobody) = (server.account("ann").await, server.nobody());
    let id = owner(&ann).await;
    stripe.seen.lock().unwrap().charges.insert("ch_1".into(), id.clone());
    tell(&nobody, &paid(&id, "cs_1", 1000)).await.json(200);
    // The bank only asks.
    tell(&nobody, &dispute("created", "warning_needs_response", "ch_1")).await.json(200);
    tell(&nobody, &dispute("closed", "warning_closed", "ch_1")).await.json(200);
    assert_eq!(balance(&ann).await, 1000);
    for what in ["created", "funds_withdrawn", "created"] {
        tell(&nobody, &dispute(what, "needs_response", "ch_1")).await.json(200);
    }
    assert_eq!(balance(&ann).await, 600);
    tell(&nobody, &dispute("closed", "lost", "ch_1")).await.json(200);
    assert_eq!(balance(&ann).await, 600);
    for what in ["funds_reinstated", "closed"] {
        tell(&nobody, &dispute(what, "won", "ch_1")).await.json(200);
    }
    assert_eq!(balance(&ann).await, 1000);
    let list = ann.get("/v1/billing/transactions").await.json(200);
    let rows = list["transactions"].as_array().unwrap();
    let about: Vec<_> = rows.iter().map(|row| (&row["amount"], &row["description"])).collect();
    let expected = [(400, "Dispute won"), (-400, "Disputed payment"), (1000, "Top-up")]
        .map(|(a, d)| (json!(a), json!(d)));
    assert_eq!(about, expected.iter().map(|(a, d)| (a, d)).collect::<Vec<_>>());
    server.stop().await;
}

#[tokio::test]
async fn a_dispute_that_is_won_before_it_is_known_is_even() {
    let stripe = Stripe::start().await;
    let server = Setup::with(&stripe.settings()).start().await;
    let (ann, nobody) = (server.account("ann").await, server.nobody());
    let id = owner(&ann).await;
    stripe.seen.lock().unwrap().charges.insert("ch_1".into(), id);
    tell(&nobody, &dispute("closed", "won", "ch_1")).await.json(200);
    assert_eq!(balance(&ann).await, 0);
    tell(&nobody, &dispute("created", "needs_response", "ch_1")).await.json(200);
    assert_eq!(balance(&ann).await, 0);
    server.stop().await;
}

#[tokio::test]
async fn what_another_service_does_at_the_same_stripe_is_heard_and_left_alone() {
    let stripe = Stripe::start().await;
    stripe.seen.lock().unwrap().charges.insert("ch_theirs".into(), String::new());
    let server = Setup::with(&stripe.settings()).start().await;
    let nobody = server.nobody();
    let mut session = paid("usr_x", "cs_theirs", 1000);
    session["data"]["object"]["metadata"] = json!({});
    let refund = json!({ "type": "charge.refunded", "data": { "object": { "id": "ch_theirs",
        "currency": "jpy", "amount_refunded": 300, "metadata": {} } } });
    let intent = json!({ "type": "payment_intent.succeeded", "data": { "object": {
        "id": "pi_theirs", "metadata": { "topup": "top_theirs" } } } });
    let unknown = dispute("created", "needs_response", "ch_unknown");
    for event in [session, refund, intent, dispute("closed", "won", "ch_theirs"), unknown] {
        tell(&nobody, &event).await.json(200);
    }
    server.stop().await;
}

/// Pays for Ann when her balance is low; nothing was begun yet.
async fn with_topup(stripe: &Stripe) -> (std::sync::Arc<tempfile::TempDir>, String) {
    let setup = Setup::with(&stripe.settings());
    let dir = std::sync::Arc::clone(&setup.dir);
    let server = setup.start().await;
    let ann = server.account("ann").await;
    let id = owner(&ann).await;
    let wanted = json!({ "enabled": true, "threshold_amount": 100, "topup_amount": 500 });
    ann.post("/v1/billing/auto-topup", &wanted).await.json(200);
    tell(&server.nobody(), &paid(&id, "cs_1", 100)).await.json(200);
    server.stop().await;
    (dir, id)
}

#[tokio::test]
async fn a_payment_that_was_begun_days_ago_is_looked_for_and_not_made_again() {
    for (status, expected) in [("succeeded", 600), ("requires_payment_method", 100)] {
        let stripe = Stripe::start().await;
        let (dir, id) = with_topup(&stripe).await;
        let topup = {
            let store = crate::harness::store(dir.path());
            let days_ago = Timestamp::now() - jiff::SignedDuration::from_hours(48);
            store.due_topups(days_ago).await.unwrap().pop().unwrap()
        };
        assert_eq!(topup.owner.as_str(), id);
        let made = json!({ "id": "pi_1", "status": status, "metadata": { "topup": topup.id } });
        stripe.seen.lock().unwrap().made =
            vec![json!({ "id": "pi_0", "status": "succeeded", "metadata": {} }), made];
        // Whatever is begun after it fails.
        stripe.seen.lock().unwrap().status = "declined".into();
        let setup = Setup { dir, ..Setup::with(&stripe.settings()) };
        let server = setup.start().await;
        let ann = server.account("ann").await;
        for _ in 0..500 {
            let store = crate::harness::store(server.dir.path());
            let pending = store.due_topups(Timestamp::UNIX_EPOCH).await.unwrap();
            if !pending.iter().any(|one| one.id == topup.id) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert_eq!(balance(&ann).await, expected, "{status}");
        {
            let seen = stripe.seen.lock().unwrap();
            assert!(!seen.calls.contains_key(&topup.id), "it was not made again: {:?}", seen.calls);
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn forged_notices_are_refused_for_coming_often() {
    let stripe = Stripe::start().await;
    let server = Setup::with(&stripe.settings()).start().await;
    let nobody = server.nobody();
    let mut refused = 0;
    for _ in 0..650 {
        let answer = tell_signed(&nobody, "{}", "t=1,v1=00").await;
        if answer.status == 429 {
            answer.problem(429, "rate_limited");
            assert!(answer.header("retry-after").parse::<u32>().unwrap() >= 1);
            refused += 1;
        }
    }
    assert!(refused >= 50, "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn without_credit_nothing_starts_where_that_is_asked_for() {
    let server = Setup::with("[billing]\nenforce = true\n").start().await;
    let ann = server.account("ann").await;
    let wanted = json!({ "template": "standard" });
    ann.post("/v1/sandboxes", &wanted).await.problem(402, "credits_exhausted");
    let id = owner(&ann).await;
    grant(&server, &id, 1).await;
    ann.post("/v1/sandboxes", &wanted).await.json(201);
    server.operator.post("/v1/sandboxes", &wanted).await.json(201);
    server.stop().await;
}
