//! `/v1/templates`: the catalogue of agents.

use serde_json::json;

use crate::harness::{Setup, TestServer};

#[tokio::test]
async fn the_catalogue_is_as_documented_and_one_entry_has_the_same_shape() {
    let server = TestServer::start().await;
    let ann = server.tenant("ann").await;
    let list = ann.get("/v1/templates").await.json(200);
    let first = &list["templates"][0];
    assert_eq!(first["app_id"], "deictic");
    let tools = json!(["file_read", "file_write", "shell", "search"]);
    let sets = json!([{ "set_id": "default", "name": "Default", "tools": tools }]);
    assert_eq!(first["capability_sets"], sets);
    assert!(first["name"].is_string() && first["description"].is_string());
    assert_eq!(ann.get("/v1/templates/deictic").await.json(200), list);
    for unknown in ["codex", "Deictic", "..%2Fdeictic", &"x".repeat(4000)] {
        let body = ann.get(&format!("/v1/templates/{unknown}")).await.problem(404, "not_found");
        assert!(body["detail"].as_str().unwrap().len() < 300);
    }
    let log = server.operator.get("/v1/admin/audit").await.json(200);
    assert!(log.to_string().contains("template_not_found"), "{log}");
    server.nobody().get("/v1/templates").await.problem(401, "unauthorized");
    server.nobody().get("/v1/templates/codex").await.problem(401, "unauthorized");
    ann.get("/v1/templates?x=1").await.refuses("x");
    server.stop().await;
}

#[tokio::test]
async fn a_tenant_that_asks_too_often_waits_and_others_do_not() {
    let server = Setup::with("[limits]\ncatalogue_per_minute = 5\n").start().await;
    let (ann, bob) = (server.tenant("ann").await, server.tenant("bob").await);
    for _ in 0..5 {
        ann.get("/v1/templates").await.json(200);
    }
    let refused = ann.get("/v1/templates/deictic").await;
    refused.problem(429, "rate_limited");
    let seconds: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&seconds));
    bob.get("/v1/templates").await.json(200);
    server.stop().await;
}
