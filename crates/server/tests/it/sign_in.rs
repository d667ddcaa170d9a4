//! Signing up and in: codes, their limits, tokens, and what an attacker learns (nothing).

use axum::body::Body;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::harness::{Setup, TestServer};

async fn ask(client: &Client, path: &str, email: &str) -> Answer {
    client.post(path, &json!({ "email": email })).await
}

async fn verify(client: &Client, path: &str, email: &str, code: &Value) -> Answer {
    client.post(path, &json!({ "email": email, "code": code })).await
}

/// A code that is not this one.
fn wrong(code: &Value) -> Value {
    json!(format!("{:06}", (code.as_str().unwrap().parse::<u32>().unwrap() + 1) % 1_000_000))
}

#[tokio::test]
async fn a_tenant_signs_up_and_gets_a_key_and_a_token_that_work() {
    let server = TestServer::start().await;
    let nobody = server.nobody();
    let sent = ask(&nobody, "/v1/tenants", "Ann@E2A-QA.test").await.json(200);
    assert_eq!(sent["message"], "OTP sent");
    let email = "ann@e2a-qa.test";
    let made = verify(&nobody, "/v1/tenants/verify", email, &sent["verify_code"]).await.json(200);
    let key = made["api_key"].as_str().unwrap();
    let hex = key.strip_prefix("e2a_").unwrap();
    assert!(hex.len() == 64 && hex.bytes().all(|c| c.is_ascii_hexdigit()), "{key}");
    assert!(key.starts_with(made["prefix"].as_str().unwrap()));
    assert_eq!(made["prefix"].as_str().unwrap().len(), 8);
    assert!(made["tenant_id"].as_str().unwrap().starts_with("usr_"));
    assert!(made["key_id"].as_str().unwrap().starts_with("key_"));
    assert_eq!(made["plan_tier"], "free");
    for secret in [key, made["token"].as_str().unwrap()] {
        let ann = Client { key: Some(secret.into()), ..nobody };
        let me = ann.get("/v1/tenants/me").await.json(200);
        assert_eq!(
            me,
            json!({ "tenant_id": made["tenant_id"], "email": email,
                "created_at": made["created_at"], "plan": "free" })
        );
        ann.get("/v1/sandboxes").await.json(200);
    }
    // Again, the other way: the same account, and another key where a key is given.
    let sent = ask(&nobody, "/v1/auth/register", email).await.json(201);
    let again = verify(&nobody, "/v1/auth/verify-otp", email, &sent["verify_code"]).await;
    let again = again.json(200);
    assert_eq!(again["user_id"], made["tenant_id"]);
    assert_eq!(again["email"], email);
    let sent = ask(&nobody, "/v1/tenants", email).await.json(200);
    let third = verify(&nobody, "/v1/tenants/verify", email, &sent["verify_code"]).await.json(200);
    assert_eq!(third["tenant_id"], made["tenant_id"]);
    assert_ne!(third["key_id"], made["key_id"]);
    let ann = Client { key: Some(again["token"].as_str().unwrap().into()), ..nobody };
    let keys = ann.get("/v1/api-keys").await.json(200);
    assert_eq!(keys["api_keys"].as_array().unwrap().len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn a_code_is_asked_for_three_times_an_hour_by_either_flow() {
    let server = TestServer::start().await;
    let nobody = server.nobody();
    ask(&nobody, "/v1/tenants", "ann@e2a-qa.test").await.json(200);
    ask(&nobody, "/v1/auth/register", "ANN@e2a-qa.test").await.json(201);
    ask(&nobody, "/v1/auth/login", "ann@e2a-qa.test").await.json(201);
    for path in ["/v1/tenants", "/v1/auth/register", "/v1/auth/login"] {
        let refused = ask(&nobody, path, "ann@e2a-qa.test").await;
        refused.problem(429, "rate_limited");
        let seconds: u64 = refused.header("retry-after").parse().unwrap();
        assert!((3500..=3600).contains(&seconds), "{seconds}");
    }
    ask(&nobody, "/v1/tenants", "bob@e2a-qa.test").await.json(200);
    server.stop().await;
}

#[tokio::test]
async fn one_address_cannot_go_on_and_on_but_others_behind_our_proxy_can() {
    let settings = "trusted_proxies = ['127.0.0.0/8']\n[auth]\nattempts_per_minute = 4";
    let server = Setup::with(settings).start().await;
    let nobody = server.nobody();
    let from = async |address: &str| {
        let request = nobody.request("POST", "/v1/tenants/verify");
        let request = request.header("x-forwarded-for", address);
        let body = json!({ "email": "ann@e2a-qa.test", "code": "000000" }).to_string();
        nobody.send(request.body(Body::from(body)).unwrap()).await
    };
    for _ in 0..4 {
        from("192.0.2.1").await.problem(401, "unauthorized");
    }
    let refused = from("192.0.2.1").await;
    refused.problem(429, "rate_limited");
    assert!((1..=60).contains(&refused.header("retry-after").parse::<u64>().unwrap()));
    // What the client itself claims is not believed.
    from("192.0.2.77, 192.0.2.1").await.problem(429, "rate_limited");
    from("192.0.2.2").await.problem(401, "unauthorized");
    server.stop().await;
}

#[tokio::test]
async fn a_code_cannot_be_guessed_and_is_good_once() {
    let server = TestServer::start().await;
    let nobody = server.nobody();
    let email = "ann@e2a-qa.test";
    let code = ask(&nobody, "/v1/tenants", email).await.json(200)["verify_code"].clone();
    for _ in 0..5 {
        let path = "/v1/auth/verify-otp";
        verify(&nobody, path, email, &wrong(&code)).await.problem(401, "unauthorized");
    }
    verify(&nobody, "/v1/tenants/verify", email, &code).await.problem(401, "unauthorized");
    let code = ask(&nobody, "/v1/tenants", email).await.json(200)["verify_code"].clone();
    verify(&nobody, "/v1/tenants/verify", email, &code).await.json(200);
    verify(&nobody, "/v1/tenants/verify", email, &code).await.problem(401, "unauthorized");
    server.stop().await;
}

#[tokio::test]
async fn of_twenty_guesses_at_once_five_are_looked_at() {
    let server = TestServer::start().await;
    let nobody = server.nobody();
    let email = "ann@e2a-qa.test";
    let code = ask(&nobody, "/v1/tenants", email).await.json(200)["verify_code"].clone();
    let bad = wrong(&code);
    let guesses = (0..20).map(|_| verify(&nobody, "/v1/tenants/verify", email, &bad));
    for answer in futures_util::future::join_all(guesses).await {
        answer.problem(401, "unauthorized");
    }
    verify(&nobody, "/v1/tenants/verify", email, &code).await.problem(401, "unauthorized");
    server.stop().await;
}

#[tokio::test]
async fn an_unknown_email_is_answered_as_a_known_one() {
    let server = TestServer::start().await;
    let nobody = server.nobody();
    server.account("ann").await;
    let known = ask(&nobody, "/v1/auth/login", "ann@e2a-qa.test").await;
    let unknown = ask(&nobody, "/v1/auth/login", "zoe@e2a-qa.test").await;
    assert_eq!((known.status, &known.bytes), (unknown.status, &unknown.bytes));
    assert_eq!(known.json(201), json!({ "message": "OTP sent" }));
    let path = "/v1/auth/verify-otp";
    let known = verify(&nobody, path, "ann@e2a-qa.test", &json!("123456")).await;
    let unknown = verify(&nobody, path, "never@e2a-qa.test", &json!("123456")).await;
    assert_eq!(known.problem(401, "unauthorized"), unknown.problem(401, "unauthorized"));
    server.stop().await;
}

#[tokio::test]
async fn codes_are_in_answers_in_test_mode_for_its_domain_alone() {
    let server = TestServer::start().await;
    let sent = ask(&server.nobody(), "/v1/tenants", "ann@example.com").await.json(200);
    assert_eq!(sent, json!({ "message": "OTP sent" }));
    server.stop().await;
    let server = Setup::with("test_mode = false").start().await;
    for email in ["ann@e2a-qa.test", "ann@e2a-qa.test.example.com"] {
        let sent = ask(&server.nobody(), "/v1/tenants", email).await.json(200);
        assert_eq!(sent, json!({ "message": "OTP sent" }));
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_named_and_nothing_else_comes_of_it() {
    let server = TestServer::start().await;
    let nobody = server.nobody();
    for path in ["/v1/tenants", "/v1/auth/register", "/v1/auth/login"] {
        nobody.post(path, &json!({})).await.refuses("email");
        nobody.post(path, &json!({ "email": 7 })).await.refuses("email");
        nobody.post(path, &json!({ "email": "a@e2a-qa.test", "x": 1 })).await.refuses("x");
        nobody.post_text(path, "{").await.problem(400, "invalid_request");
        for email in ["", "ann", "a@b", "a@e2a-qa.test\r\nBcc: b@e2a-qa.test", "a\0@e2a-qa.test"] {
            ask(&nobody, path, email).await.refuses("email");
        }
    }
    for path in ["/v1/tenants/verify", "/v1/auth/verify-otp"] {
        verify(&nobody, path, "nobody", &json!("123456")).await.refuses("email");
        verify(&nobody, path, "a@e2a-qa.test", &json!(123_456)).await.refuses("code");
        for code in ["", "12345", "' OR 1=1 --", "\0", &"9".repeat(10_000)] {
            let answer = verify(&nobody, path, "a@e2a-qa.test", &json!(code)).await;
            answer.problem(401, "unauthorized");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_token_that_was_changed_is_nobodys() {
    let server = TestServer::start().await;
    let ann = server.account("ann").await;
    let token = ann.key.clone().unwrap();
    let [head, body, tag] = token.split('.').collect::<Vec<_>>()[..] else { panic!("{token}") };
    for bad in [
        format!("{head}.{body}."),
        format!("{head}.{body}.{}", tag.chars().rev().collect::<String>()),
        format!("eyJhbGciOiJub25lIn0.{body}."),
        token.to_ascii_uppercase(),
    ] {
        let forger = Client { key: Some(bad), ..ann.clone() };
        forger.get("/v1/tenants/me").await.problem(401, "unauthorized");
        forger.get("/v1/api-keys").await.problem(401, "unauthorized");
    }
    server.stop().await;
}
