//! `Idempotency-Key` on create (ruling 20).

use axum::body::Body;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::harness::{Setup, TestServer};

async fn create(client: &Client, key: &str, body: &Value) -> Answer {
    let request = client.request("POST", "/v1/sandboxes").header("idempotency-key", key);
    client.send(request.body(Body::from(body.to_string())).unwrap()).await
}

#[tokio::test]
async fn the_same_request_gives_the_same_sandbox() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let body = json!({ "template": "standard", "metadata": { "a": 1, "b": 2 } });
    let first = create(operator, "k 1", &body).await;
    assert_eq!(first.header("idempotent-replayed"), "");
    let first = first.json(201);
    let again = create(operator, "k 1", &body).await;
    assert_eq!(again.header("idempotent-replayed"), "true");
    assert_eq!(again.json(201)["id"], first["id"]);
    // Spelled another way it is still the same.
    let request = operator.request("POST", "/v1/sandboxes").header("idempotency-key", "k 1");
    let spelled = r#"{ "metadata": {"b":2, "a":1},   "template":"standard" }"#;
    let third = operator.send(request.body(Body::from(spelled)).unwrap()).await;
    assert_eq!(third.json(201)["id"], first["id"]);
    assert_ne!(create(operator, "k 2", &body).await.json(201)["id"], first["id"]);
    assert_eq!(server.driver.count(), 2);
    server.stop().await;
}

#[tokio::test]
async fn another_request_with_the_same_key_is_refused() {
    let server = TestServer::start().await;
    let body = json!({ "template": "standard" });
    create(&server.operator, "k", &body).await.json(201);
    let other = json!({ "template": "standard", "disk_gb": 6 });
    create(&server.operator, "k", &other).await.problem(422, "idempotency_mismatch");
    let ann = server.tenant("ann").await;
    create(&ann, "k", &other).await.json(201);
    server.stop().await;
}

#[tokio::test]
async fn a_race_makes_one_sandbox() {
    let server = TestServer::start().await;
    let body = json!({ "template": "standard" });
    let all = (0..8).map(|_| create(&server.operator, "race", &body));
    let answers = futures_util::future::join_all(all).await;
    let first = answers[0].json(201)["id"].clone();
    assert!(answers.iter().all(|answer| answer.json(201)["id"] == first));
    assert_eq!(server.driver.count(), 1);
    server.stop().await;
}

#[tokio::test]
async fn the_answer_outlives_the_sandbox_and_the_server() {
    let server = TestServer::start().await;
    let body = json!({ "template": "standard" });
    let first = create(&server.operator, "k", &body).await.json(201);
    let path = format!("/v1/sandboxes/{}", first["id"].as_str().unwrap());
    server.operator.delete(&path).await.json(200);
    let again = create(&server.operator, "k", &body).await.json(201);
    assert_eq!(again["id"], first["id"]);
    let (dir, driver) = (server.dir.clone(), server.driver.clone());
    server.stop().await;
    let server = Setup { dir, pools: vec![(driver, None)], ..Setup::new() }.start().await;
    let after = create(&server.operator, "k", &body).await.json(201);
    assert_eq!(after["id"], first["id"]);
    assert_eq!(server.driver.count(), 0);
    server.stop().await;
}

#[tokio::test]
async fn a_refused_request_claims_nothing() {
    let server = TestServer::start().await;
    let bad = json!({ "template": "standard", "disk_gb": 999 });
    create(&server.operator, "k", &bad).await.refuses("disk_gb");
    create(&server.operator, "k", &json!({ "template": "standard" })).await.json(201);
    server.stop().await;
}

#[tokio::test]
async fn bad_keys_are_refused() {
    let server = TestServer::start().await;
    let body = json!({ "template": "standard" });
    for key in ["", "tab\there", &"x".repeat(256), "ü"] {
        create(&server.operator, key, &body).await.refuses("Idempotency-Key");
    }
    create(&server.operator, &"x".repeat(255), &body).await.json(201);
    server.stop().await;
}
