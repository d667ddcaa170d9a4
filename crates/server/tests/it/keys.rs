//! `/v1/api-keys`.

use serde_json::json;

use crate::client::Client;
use crate::harness::TestServer;

#[tokio::test]
async fn a_key_is_shown_once_works_and_can_be_revoked() {
    let server = TestServer::start().await;
    let ann = server.tenant("ann").await;
    let made = ann.post_nothing("/v1/api-keys").await.json(201);
    let secret = made["key"].as_str().unwrap();
    let (lead, hex) = secret.split_at(9);
    assert_eq!(lead, "e2a_live_");
    assert!(hex.len() == 64 && hex.bytes().all(|c| c.is_ascii_hexdigit()), "{secret}");
    assert!(secret.starts_with(made["prefix"].as_str().unwrap()));
    assert_eq!(made["plan_tier"], "free");
    assert_eq!(made["owner"], "usr_ann");

    let second = Client { key: Some(secret.into()), ..ann };
    let list = second.get("/v1/api-keys").await;
    assert!(!String::from_utf8_lossy(&list.bytes).contains(hex));
    let list = list.json(200);
    let keys = list["api_keys"].as_array().unwrap();
    assert_eq!(keys.len(), 2);
    let row = keys.iter().find(|key| key["key_id"] == made["key_id"]).unwrap();
    assert_eq!(row["revoked"], false);
    assert_eq!(row["prefix"], made["prefix"]);
    assert_eq!(row["plan_tier"], "free");
    assert!(row["created_at"].as_str().unwrap().ends_with('Z'));

    let path = format!("/v1/api-keys/{}", made["key_id"].as_str().unwrap());
    assert_eq!(ann.delete(&path).await.json(200), json!({ "status": "revoked" }));
    second.get("/v1/sandboxes").await.problem(401, "unauthorized");
    let list = ann.get("/v1/api-keys").await.json(200);
    let row = list["api_keys"].as_array().unwrap().iter().find(|key| key["revoked"] == true);
    assert_eq!(row.unwrap()["key_id"], made["key_id"]);
    server.stop().await;
}

#[tokio::test]
async fn only_the_operator_manages_others() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.tenant("ann").await, server.tenant("bob").await);
    ann.post("/v1/api-keys", &json!({ "owner": "usr_bob" })).await.problem(403, "forbidden");
    ann.post("/v1/api-keys", &json!({ "plan": "operator" })).await.problem(403, "forbidden");
    ann.get("/v1/api-keys?owner=usr_bob").await.problem(403, "forbidden");
    ann.post("/v1/api-keys", &json!({ "owner": "usr_ann", "plan": "free" })).await.json(201);

    let bobs = bob.get("/v1/api-keys").await.json(200);
    let id = bobs["api_keys"][0]["key_id"].as_str().unwrap();
    let theirs = ann.delete(&format!("/v1/api-keys/{id}")).await.problem(404, "not_found");
    let unknown = ann.delete("/v1/api-keys/key_0").await.problem(404, "not_found");
    let forget = |body: &serde_json::Value, id| body.to_string().replace(id, "ID");
    assert_eq!(forget(&theirs, id), forget(&unknown, "key_0"));
    bob.get("/v1/sandboxes").await.json(200);

    let seen = server.operator.get("/v1/api-keys?owner=usr_bob").await.json(200);
    assert_eq!(seen, bobs);
    let path = format!("/v1/api-keys/{id}?owner=usr_bob");
    server.operator.delete(&path).await.json(200);
    bob.get("/v1/sandboxes").await.problem(401, "unauthorized");
    server.stop().await;
}

#[tokio::test]
async fn bad_requests_are_named() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    operator.post("/v1/api-keys", &json!({ "owner": "bob" })).await.refuses("owner");
    operator.post("/v1/api-keys", &json!({ "owner": 7 })).await.refuses("owner");
    operator.post("/v1/api-keys", &json!({ "plan": "gold" })).await.refuses("plan");
    operator.post("/v1/api-keys", &json!({ "name": "x" })).await.refuses("name");
    operator.get("/v1/api-keys?owner=bob").await.refuses("owner");
    operator.get("/v1/api-keys?whose=bob").await.refuses("whose");
    server.stop().await;
}
