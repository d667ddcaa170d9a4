//! `/v1/api-keys`.

use serde_json::json;

use crate::client::Client;
use crate::harness::TestServer;

#[tokio::test]
async fn a_key_is_shown_once_works_and_can_be_revoked() {
    let server = TestServer::start().await;
    let ann = server.account("ann").await;
    let made = ann.post_nothing("/v1/api-keys").await.json(201);
    let secret = made["key"].as_str().unwrap();
    let (lead, hex) = secret.split_at(9);
    assert_eq!(lead, "e2a_live_");
    assert!(hex.len() == 64 && hex.bytes().all(|c| c.is_ascii_hexdigit()), "{secret}");
    assert!(secret.starts_with(made["prefix"].as_str().unwrap()));
    assert_eq!(made["plan_tier"], "free");
    let me = ann.get("/v1/tenants/me").await.json(200);
    assert_eq!(made["owner"], me["tenant_id"]);

    let other = ann.post_nothing("/v1/tenants/me/api-keys").await.json(200);
    assert_eq!(other["api_key"].as_str().unwrap().len(), 4 + 64);
    let second = Client { key: Some(secret.into()), ..ann };
    let list = ann.get("/v1/api-keys").await;
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
    let theirs = ann.get("/v1/tenants/me/api-keys").await.json(200);
    assert_eq!(theirs["keys"], list["api_keys"], "both lists show all keys");
    server.stop().await;
}

#[tokio::test]
async fn a_key_does_not_manage_keys_where_a_token_is_asked_for() {
    let server = TestServer::start().await;
    let ann = server.tenant("ann").await;
    for answer in [
        ann.post_nothing("/v1/api-keys").await,
        ann.get("/v1/api-keys").await,
        ann.delete("/v1/api-keys/key_0").await,
    ] {
        let problem = answer.problem(401, "unauthorized");
        assert!(problem["detail"].as_str().unwrap().contains("/v1/auth/login"), "{problem}");
    }
    server.operator.get("/v1/api-keys").await.json(200);
    server.stop().await;
}

#[tokio::test]
async fn a_tenants_own_key_manages_its_own_keys_and_nobody_elses() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.tenant("ann").await, server.tenant("bob").await);
    let made = ann.post_nothing("/v1/tenants/me/api-keys").await.json(200);
    let path = format!("/v1/tenants/me/api-keys/{}", made["key_id"].as_str().unwrap());
    let second = Client { key: Some(made["api_key"].as_str().unwrap().into()), ..ann.clone() };
    second.get("/v1/sandboxes").await.json(200);
    let theirs = bob.delete(&path).await.problem(404, "not_found");
    let unknown = bob.delete("/v1/tenants/me/api-keys/key_0").await.problem(404, "not_found");
    let id = made["key_id"].as_str().unwrap();
    assert_eq!(theirs.to_string().replace(id, "key_0"), unknown.to_string());
    second.get("/v1/sandboxes").await.json(200);
    for _ in 0..2 {
        assert_eq!(ann.delete(&path).await.status, 204);
        second.get("/v1/sandboxes").await.problem(401, "unauthorized");
    }
    let list = ann.get("/v1/tenants/me/api-keys").await;
    assert!(!String::from_utf8_lossy(&list.bytes).contains(made["api_key"].as_str().unwrap()));
    let keys = list.json(200)["keys"].as_array().unwrap().clone();
    let revoked: Vec<_> = keys.iter().map(|key| key["revoked"].as_bool().unwrap()).collect();
    assert_eq!(revoked, [true, false]);
    server.stop().await;
}

#[tokio::test]
async fn only_the_operator_manages_others() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.account("ann").await, server.account("bob").await);
    let id_of = async |who: &Client| who.get("/v1/tenants/me").await.json(200)["tenant_id"].clone();
    let (anns, bobs_id) = (id_of(&ann).await, id_of(&bob).await);
    let bob_is = bobs_id.as_str().unwrap();
    bob.post_nothing("/v1/api-keys").await.json(201);
    ann.post("/v1/api-keys", &json!({ "owner": bob_is })).await.problem(403, "forbidden");
    ann.post("/v1/api-keys", &json!({ "plan": "operator" })).await.problem(403, "forbidden");
    ann.get(&format!("/v1/api-keys?owner={bob_is}")).await.problem(403, "forbidden");
    ann.post("/v1/api-keys", &json!({ "owner": anns, "plan": "free" })).await.json(201);

    let bobs = bob.get("/v1/api-keys").await.json(200);
    let id = bobs["api_keys"][0]["key_id"].as_str().unwrap();
    let theirs = ann.delete(&format!("/v1/api-keys/{id}")).await.problem(404, "not_found");
    let unknown = ann.delete("/v1/api-keys/key_0").await.problem(404, "not_found");
    let forget = |body: &serde_json::Value, id| body.to_string().replace(id, "ID");
    assert_eq!(forget(&theirs, id), forget(&unknown, "key_0"));
    let key_works = bob.get("/v1/api-keys").await.json(200);
    assert_eq!(key_works["api_keys"][0]["revoked"], false);

    let seen = server.operator.get(&format!("/v1/api-keys?owner={bob_is}")).await.json(200);
    assert_eq!(seen, bobs);
    let path = format!("/v1/api-keys/{id}?owner={bob_is}");
    server.operator.delete(&path).await.json(200);
    let revoked = bob.get("/v1/api-keys").await.json(200);
    assert_eq!(revoked["api_keys"][0]["revoked"], true);
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

#[tokio::test]
async fn nobody_gets_a_key_of_the_platform() {
    let server = TestServer::start().await;
    for plan in [json!(null), json!("operator")] {
        let asked = json!({ "owner": "usr_code-mode", "plan": plan });
        let refused = server.operator.post("/v1/api-keys", &asked).await.refuses("owner");
        assert!(refused.contains("the platform's own"), "{refused}");
    }
    let keys = server.operator.get("/v1/api-keys?owner=usr_code-mode").await.json(200);
    assert_eq!(keys["api_keys"], json!([]));
    let asked = json!({ "owner": "usr_code-mode-2" });
    server.operator.post("/v1/api-keys", &asked).await.json(201);
    server.stop().await;
}
