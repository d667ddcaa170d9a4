//! `/v1/tenants/me/secrets`: every rule of 000 *Secrets*.

use axum::body::Body;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::harness::{Setup, TestServer};

const PATH: &str = "/v1/tenants/me/secrets";

impl Client {
    async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request("PUT", path).body(Body::from(body.to_string())).unwrap()).await
    }
}

fn bundle(name: &str, key: &str, value: &str) -> Value {
    json!({ "name": name, "values": { key: value } })
}

#[tokio::test]
async fn a_bundle_is_made_listed_rotated_and_deleted_without_ever_showing_a_value() {
    let server = TestServer::start().await;
    let ann = server.tenant("ann").await;
    let mut seen = Vec::new();
    let mut keep = |answer: Answer| {
        seen.extend_from_slice(&answer.bytes);
        answer
    };
    let body = bundle("my-llm-keys", "LLM_API_KEY", "sk-hush");
    let made = keep(ann.post(PATH, &body).await).json(201);
    assert_eq!(made["name"], "my-llm-keys");
    assert_eq!(made["key_names"], json!(["LLM_API_KEY"]));
    assert!(made["created_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(made.as_object().unwrap().len(), 3);
    assert_eq!(keep(ann.get(PATH).await).json(200), json!({ "bundles": [made] }));

    let path = format!("{PATH}/my-llm-keys");
    let values = json!({ "values": { "B": "sk-hush-2", "A": "" } });
    let rotated = keep(ann.put(&path, &values).await).json(200);
    assert_eq!(rotated["key_names"], json!(["A", "B"]));
    assert!(rotated["last_rotated_at"].as_str().unwrap() >= made["created_at"].as_str().unwrap());
    assert_eq!(rotated.as_object().unwrap().len(), 3);
    let shown = keep(ann.get(&path).await).json(200);
    assert_eq!(shown["key_names"], json!(["A", "B"]));
    assert_eq!(shown["created_at"], made["created_at"]);
    assert_eq!(shown["last_rotated_at"], rotated["last_rotated_at"]);

    keep(ann.post(PATH, &body).await).problem(409, "name_taken");
    assert_eq!(keep(ann.delete(&path).await).json(200), json!({ "status": "deleted" }));
    for gone in [ann.get(&path).await, ann.put(&path, &values).await, ann.delete(&path).await] {
        gone.problem(404, "not_found");
    }
    assert!(!String::from_utf8(seen).unwrap().contains("hush"));
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_named_and_no_refusal_repeats_a_value() {
    let server = TestServer::start().await;
    let ann = server.tenant("ann").await;
    let hush = |name: &str, key: &str| bundle(name, key, "sk-hush");
    let many: serde_json::Map<_, _> =
        (0..51).map(|i| (format!("K{i}"), "sk-hush".into())).collect();
    let cases = [
        (hush("", "K"), "name"),
        (hush("Big", "K"), "name"),
        (hush("-a", "K"), "name"),
        (hush(&"a".repeat(64), "K"), "name"),
        (hush("a", "TASK"), "values.TASK"),
        (hush("a", "E2A_PERSISTENCE_URL"), "values.E2A_PERSISTENCE_URL"),
        (hush("a", "1K"), "values"),
        (bundle("a", "K", &"sk-hush ".repeat(8193)), "values.K"),
        (json!({ "name": "a", "values": many }), "values"),
        (json!({ "name": "a", "values": {} }), "values"),
        (json!({ "name": "a", "values": "sk-hush" }), "values"),
        (json!({ "name": "a", "values": ["sk-hush"] }), "values"),
        (json!({ "name": "a", "values": { "K": { "sk-hush": 1 } } }), "values"),
        (json!({ "name": "a", "values": null }), "values"),
        (json!({ "name": "a" }), "values"),
        (json!({ "name": "a", "values": { "K": "sk-hush" }, "more": 1 }), "more"),
        (json!({ "name": 7, "values": { "K": "sk-hush" } }), "name"),
    ];
    for (body, field) in cases {
        let answer = ann.post(PATH, &body).await;
        let detail = answer.refuses(field);
        assert!(!detail.contains("hush"), "{detail}");
    }
    ann.post(PATH, &hush("a", "K")).await.json(201);
    let path = format!("{PATH}/a");
    ann.put(&path, &json!({ "values": { "LLM_KEY": "x" } })).await.refuses("values.LLM_KEY");
    ann.put(&path, &json!({ "name": "b", "values": { "K": "x" } })).await.refuses("name");
    ann.get(&format!("{PATH}?all=1")).await.refuses("all");
    server.stop().await;
}

#[tokio::test]
async fn the_largest_bundle_fits_and_the_fifty_first_does_not() {
    let server = TestServer::start().await;
    let ann = server.tenant("ann").await;
    let value = "x".repeat(64 * 1024);
    let values: serde_json::Map<_, _> =
        (0..50).map(|i| (format!("K{i}"), value.clone().into())).collect();
    ann.post(PATH, &json!({ "name": "large", "values": values })).await.json(201);
    for i in 1..50 {
        ann.post(PATH, &bundle(&format!("b{i}"), "K", "v")).await.json(201);
    }
    let refused = ann.post(PATH, &bundle("b50", "K", "v")).await;
    refused.problem(429, "quota_exceeded");
    assert!(refused.header("retry-after").parse::<u64>().unwrap() > 0);
    assert_eq!(ann.get(PATH).await.json(200)["bundles"].as_array().unwrap().len(), 50);
    let huge = "x".repeat(9 << 20);
    ann.post(PATH, &bundle("huge", "K", &huge)).await.problem(413, "body_too_large");
    server.stop().await;
}

#[tokio::test]
async fn anothers_bundle_is_as_unknown_as_one_that_never_was() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.tenant("ann").await, server.tenant("bob").await);
    ann.post(PATH, &bundle("anns", "K", "sk-hush")).await.json(201);
    let values = json!({ "values": { "K": "mine" } });
    for (theirs, none) in [("anns", "none"), ("anns", "No%20Name"), ("anns", "..%2fusr_ann%2fanns")]
    {
        let asked = |name: &str| format!("{PATH}/{name}");
        let pairs = [
            (bob.get(&asked(theirs)).await, bob.get(&asked(none)).await),
            (bob.put(&asked(theirs), &values).await, bob.put(&asked(none), &values).await),
            (bob.delete(&asked(theirs)).await, bob.delete(&asked(none)).await),
        ];
        for (refused, absent) in pairs {
            let (refused, absent) =
                (refused.problem(404, "not_found"), absent.problem(404, "not_found"));
            assert_eq!(refused["title"], absent["title"]);
        }
    }
    assert_eq!(bob.get(PATH).await.json(200), json!({ "bundles": [] }));
    assert_eq!(ann.get(&format!("{PATH}/anns")).await.json(200)["key_names"], json!(["K"]));
    server.nobody().get(PATH).await.problem(401, "unauthorized");
    server.stop().await;
}

#[tokio::test]
async fn bundles_survive_a_restart_and_a_new_master_key() {
    let setup = Setup::new();
    let dir = std::sync::Arc::clone(&setup.dir);
    let server = setup.start().await;
    server.operator.post(PATH, &bundle("a", "K", "sk-hush")).await.json(201);
    server.stop().await;
    seal::add_key(&dir.path().join("master.key")).unwrap();
    let server = Setup { dir: std::sync::Arc::clone(&dir), ..Setup::new() }.start().await;
    assert_eq!(server.operator.get(PATH).await.json(200)["bundles"][0]["name"], "a");
    let sealer = seal::Sealer::open(&dir.path().join("master.key")).unwrap();
    let store = store::Store::open(&dir.path().join("bastide.db")).unwrap();
    let (owner, name) = ("usr_operator".parse().unwrap(), "a".parse().unwrap());
    for _ in 0..500 {
        let (_, kept) = store.bundle(&owner, &name).await.unwrap().unwrap();
        if sealer.is_newest(&kept.value) {
            return server.stop().await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("it was not sealed anew");
}
