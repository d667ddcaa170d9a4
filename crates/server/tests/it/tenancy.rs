//! Another owner's sandbox is as unknown as one that never existed: the same bytes.

use axum::body::Body;
use serde_json::json;

use crate::client::{Answer, Client};
use crate::harness::TestServer;

/// Everything that can be asked about a sandbox, with a body that is right.
const ASKED: &[(&str, &str, &str)] = &[
    ("GET", "", ""),
    ("PATCH", "", r#"{"name": "mine-now"}"#),
    ("DELETE", "", ""),
    ("POST", "/start", ""),
    ("POST", "/stop", ""),
    ("POST", "/pause", ""),
    ("POST", "/resume", ""),
    ("POST", "/cancel", ""),
    ("POST", "/exec", r#"{"command": "true"}"#),
    ("POST", "/exec/stream", r#"{"command": "true"}"#),
    ("GET", "/exec/ex-0123456789abcdef0123456789abcdef", ""),
    ("DELETE", "/exec/ex-0123456789abcdef0123456789abcdef", ""),
    ("GET", "/logs", ""),
    ("GET", "/usage", ""),
    ("GET", "/files?path=/workspace/a", ""),
    ("POST", "/files?path=/workspace/a", "x"),
    ("GET", "/files/export", ""),
    ("POST", "/files/import", "x"),
    ("GET", "/tunnel?port=80", ""),
];

async fn ask(client: &Client, method: &str, path: &str, body: &str) -> Answer {
    let mut request = client.request(method, path);
    if path.contains("/tunnel") {
        request = request.header("connection", "upgrade").header("upgrade", "bastide-tunnel");
    }
    client.send(request.body(Body::from(body.to_owned())).unwrap()).await
}

#[tokio::test]
async fn every_question_about_anothers_sandbox_is_answered_as_for_none() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.tenant("ann").await, server.tenant("bob").await);
    let made = ann.create(&json!({ "template": "standard", "name": "anns" })).await;
    let id = made["id"].as_str().unwrap();
    let never = "sb-01k9q5t0a7e8fbqjyx3mz2c4nd";
    for (method, tail, body) in ASKED {
        for (theirs, unknown) in [(id, never), ("anns", "none")] {
            let path = |id: &str| format!("/v1/sandboxes/{id}{tail}");
            let refused = ask(&bob, method, &path(theirs), body).await;
            let absent = ask(&bob, method, &path(unknown), body).await;
            refused.problem(404, "not_found");
            let forget = |answer: &Answer, id: &str| {
                String::from_utf8(answer.bytes.to_vec()).unwrap().replace(id, "ID")
            };
            assert_eq!(forget(&refused, theirs), forget(&absent, unknown), "{method} {tail}");
            let mut names: Vec<_> = refused.headers.keys().collect();
            let mut absent_names: Vec<_> = absent.headers.keys().collect();
            names.sort_by_key(|name| name.as_str());
            absent_names.sort_by_key(|name| name.as_str());
            assert_eq!(names, absent_names, "{method} {tail}");
        }
    }
    let unharmed = ann.get("/v1/sandboxes/anns").await.json(200);
    assert_eq!(unharmed["state"], "running");
    assert_eq!(bob.get("/v1/sandboxes").await.json(200), json!([]));
    server.stop().await;
}

#[tokio::test]
async fn the_operator_sees_its_own_only() {
    let server = TestServer::start().await;
    let path = server.tenant("ann").await.sandbox().await;
    server.operator.get(&path).await.problem(404, "not_found");
    assert_eq!(server.operator.get("/v1/sandboxes").await.json(200), json!([]));
    server.stop().await;
}

#[tokio::test]
async fn two_owners_share_a_name_and_each_gets_their_own() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.tenant("ann").await, server.tenant("bob").await);
    let named = json!({ "template": "standard", "name": "same" });
    let (anns, bobs) = (ann.create(&named).await, bob.create(&named).await);
    assert_ne!(anns["id"], bobs["id"]);
    assert_eq!(ann.get("/v1/sandboxes/same").await.json(200)["id"], anns["id"]);
    assert_eq!(bob.get("/v1/sandboxes/same").await.json(200)["id"], bobs["id"]);
    assert_eq!(bobs["metadata"]["user_id"], "usr_bob");
    server.stop().await;
}
