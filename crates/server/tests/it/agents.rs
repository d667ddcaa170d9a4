//! The agent's fields: wrong ones are 400, valid ones make a sandbox, and what is not built is 501.

use serde_json::{Value, json};

use crate::client::Answer;
use crate::harness::TestServer;

fn app(agents: usize) -> Value {
    let agent = |i| json!({ "name": format!("a{i}"), "tools": ["read_file"] });
    let agents: Vec<Value> = (0..agents).map(agent).collect();
    json!({ "name": "My App", "capability_sets": [{ "name": "general", "agents": agents }] })
}

async fn post(server: &TestServer, changes: Value) -> Answer {
    let mut body = json!({ "template": "standard", "agent": "claude-code", "llm_key": "sk-1" });
    for (key, value) in changes.as_object().unwrap() {
        body[key] = value.clone();
    }
    server.operator.post("/v1/sandboxes", &body).await
}

#[tokio::test]
async fn valid_requests_make_a_sandbox() {
    let server = TestServer::start().await;
    for changes in [
        json!({}),
        json!({ "agent": "claude", "model": "claude-sonnet-4-5" }),
        json!({ "agent": "codex", "model": "o3", "session_id": "abcd-1234" }),
        json!({ "agent": "codex", "model": "gpt-5" }),
        json!({ "agent": "deictic", "model": "anything-1" }),
        json!({ "app_json": app(1), "wire_version": 1 }),
        json!({ "app_json": app(3) }),
        json!({ "agent_cmd": "/home/user/run.sh", "agent_env": { "A": "b" } }),
        json!({ "template": null, "image": "standard" }),
        json!({ "persistence_url": "https://1.1.1.1/p", "persistence_auth_header": "ApiKey x" }),
    ] {
        let made = post(&server, changes).await.json(201);
        // It waits to be driven: there is no task whose status could be shown.
        assert!(made.get("agent_status").is_none(), "{made}");
    }
    post(&server, json!({ "agent": "gemini" })).await.problem(501, "agent_not_available");
    let plain = json!({ "agent": null, "llm_key": null,
        "workspace_enabled": true, "app_id": "a", "capset_id": "b" });
    post(&server, plain).await.json(201);
    server.stop().await;
}

#[tokio::test]
async fn wrong_requests_are_400() {
    let server = TestServer::start().await;
    for (changes, field) in [
        (json!({ "llm_key": null }), "llm_key"),
        (json!({ "agent": null }), "llm_key"),
        (json!({ "agent": 7 }), "agent"),
        (json!({ "model": "gpt-5" }), "model"),
        (json!({ "agent": "codex", "model": "claude-1" }), "model"),
        (json!({ "agent": "deictic" }), "model"),
        (json!({ "agent_cmd": "/bin/sh" }), "agent_cmd"),
        (json!({ "agent_cmd": "/workspace/../bin/sh" }), "agent_cmd"),
        (json!({ "agent_cmd": format!("/workspace/{}", "a".repeat(512)) }), "agent_cmd"),
        (json!({ "agent_env": { "WORKSPACE_MODE": "x" } }), "agent_env.WORKSPACE_MODE"),
        (json!({ "app_json": { "name": "x", "tools": [] } }), "app_json.tools"),
        (json!({ "app_json": { "name": "x", "system_prompt": "" } }), "app_json.system_prompt"),
        (json!({ "app_json": { "name": "x" } }), "app_json.capability_sets"),
        (json!({ "wire_version": 7 }), "wire_version"),
        (json!({ "workspace_enabled": true, "app_id": "a" }), "capset_id"),
        (json!({ "workspace_enabled": true, "capset_id": "a" }), "app_id"),
        (json!({ "persistence_url": "http://example.com" }), "persistence_url"),
        (json!({ "persistence_url": "https://127.0.0.1/" }), "persistence_url"),
        (json!({ "persistence_url": "https://[fc00::1]/" }), "persistence_url"),
        (json!({ "persistence_url": "https://169.254.169.254/" }), "persistence_url"),
    ] {
        post(&server, changes).await.refuses(field);
    }
    let many = post(&server, json!({ "wire_version": 1, "app_json": app(2) })).await;
    assert!(many.refuses("wire_version").contains("multi-agent requires wire_version=2"));
    server.stop().await;
}

#[tokio::test]
async fn a_refusal_does_not_repeat_the_secret() {
    let server = TestServer::start().await;
    let answer = post(&server, json!({ "llm_key": "sk-very-secret", "wire_version": 9 })).await;
    assert!(!String::from_utf8_lossy(&answer.bytes).contains("sk-very-secret"));
    let wrong = post(&server, json!({ "llm_key": "sk-very-secret\n" })).await;
    assert!(!wrong.refuses("llm_key").contains("sk-very-secret"));
    server.stop().await;
}
