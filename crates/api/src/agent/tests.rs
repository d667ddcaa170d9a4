//! The agent's fields, one row each: what is refused, by which field, and what is only too early.

use model::Error;
use serde_json::{Value, json};

use crate::create::{Checked, CreateSandbox};

fn base() -> Value {
    json!({ "template": "standard", "agent": "claude-code", "llm_key": "sk-ant-1" })
}

#[track_caller]
fn check(changes: &Value) -> Result<Checked, Error> {
    let mut body = base();
    for (key, value) in changes.as_object().unwrap() {
        body[key] = value.clone();
    }
    let request: CreateSandbox = crate::json::parse(body.to_string().as_bytes())?;
    request.check()
}

#[track_caller]
fn refused(changes: &Value, field: &str) {
    match check(changes).unwrap_err() {
        Error::Invalid { field: named, detail } => assert_eq!(named, field, "{changes} {detail}"),
        other => panic!("{changes}: {other:?}"),
    }
}

#[test]
fn a_valid_agent_is_taken() {
    for changes in [
        json!({}),
        json!({ "agent": "claude" }),
        json!({ "agent": "claude-code", "model": "claude-sonnet-4-5" }),
        json!({ "agent": "codex", "model": "gpt-5" }),
        json!({ "agent": "codex", "model": "o3", "session_id": "abcd-1234" }),
        json!({ "agent": "codex" }),
        json!({ "agent": "deictic", "model": "gemini-2.5-pro" }),
        json!({ "task": "summarize README.md" }),
        json!({ "agent_cmd": "/home/user/run.sh" }),
        json!({ "agent_cmd": format!("/workspace/{}", "a".repeat(501)) }),
        json!({ "agent_env": { "A": "b" } }),
        json!({ "wire_version": 1 }),
        json!({ "wire_version": 1, "app_json": app(1) }),
        json!({ "wire_version": 2, "app_json": app(2) }),
        json!({ "app_json": app(2) }),
        json!({ "workspace_enabled": true, "app_id": "my-app", "capset_id": "default" }),
    ] {
        let checked = check(&changes).unwrap();
        assert!(checked.agent.is_some(), "{changes}");
    }
}

#[test]
fn where_a_conversation_is_kept_goes_with_the_agent() {
    let changes = json!({ "persistence_url": "https://chat.example.com:8443/p?tenant=7",
        "persistence_auth_header": "Basic dTpw" });
    let wanted = check(&changes).unwrap().agent.unwrap().persistence.unwrap();
    assert_eq!(wanted.url.as_str(), "https://chat.example.com:8443/p?tenant=7");
    assert_eq!(wanted.auth_header.unwrap().0, "Basic dTpw");
    let alone = json!({ "persistence_url": "https://chat.example.com/p" });
    let wanted = check(&alone).unwrap().agent.unwrap().persistence.unwrap();
    assert!(wanted.auth_header.is_none());
    assert!(check(&json!({})).unwrap().agent.unwrap().persistence.is_none());
}

#[test]
fn a_base_url_of_the_environment_is_for_the_relay_if_there_is_one() {
    let changes = json!({ "env_vars": { "ANTHROPIC_BASE_URL": "https://gw.test/v1", "A": "b" } });
    let checked = check(&changes).unwrap();
    let (field, url) = checked.agent.unwrap().base_url.unwrap();
    assert_eq!((field.as_str(), url.as_str()), ("env.ANTHROPIC_BASE_URL", "https://gw.test/v1"));
    assert_eq!(checked.sandbox.env.keys().collect::<Vec<_>>(), ["A"]);

    let mut without = changes.clone();
    without["model_relay"] = json!(false);
    let checked = check(&without).unwrap();
    assert!(checked.agent.unwrap().base_url.is_none());
    assert!(checked.sandbox.env.contains_key("ANTHROPIC_BASE_URL"));

    // Another vendor's is the caller's own affair.
    let mut other = changes;
    other["agent"] = json!("codex");
    assert!(check(&other).unwrap().sandbox.env.contains_key("ANTHROPIC_BASE_URL"));

    for bad in ["gw.test", "ftp://gw.test", "https://a:b@gw.test/", "https://gw.test/?a=b"] {
        let changes = json!({ "env": { "ANTHROPIC_BASE_URL": bad } });
        refused(&changes, "env.ANTHROPIC_BASE_URL");
    }
}

fn app(agents: usize) -> Value {
    let agents: Vec<Value> = (0..agents)
        .map(|i| {
            json!({
                "name": format!("agent-{i}"), "capability_name": "general",
                "capability_description": "worker", "tools": ["read_file", "shell_exec"]
            })
        })
        .collect();
    json!({ "name": "My App", "capability_sets": [{ "name": "general", "agents": agents }] })
}

#[test]
fn an_unknown_agent_is_not_implemented() {
    for changes in [json!({ "agent": "gemini" }), json!({ "agent": "" })] {
        let error = check(&changes).unwrap_err();
        assert!(matches!(error, Error::NotImplemented { .. }), "{changes}: {error:?}");
    }
}

#[test]
fn the_key_comes_with_the_agent_and_only_with_it() {
    refused(&json!({ "llm_key": null }), "llm_key");
    refused(&json!({ "llm_key": "" }), "llm_key");
    refused(&json!({ "llm_key": "a\nb" }), "llm_key");
    refused(&json!({ "agent": null }), "llm_key");
    refused(&json!({ "agent": null, "llm_key": null, "task": "x" }), "task");
    refused(&json!({ "agent": null, "llm_key": null, "model": "gpt-5" }), "model");
    refused(&json!({ "agent": null, "llm_key": null, "app_json": app(1) }), "app_json");
    refused(&json!({ "agent": null, "llm_key": null, "model_relay": false }), "model_relay");
}

#[test]
fn models_fit_their_agent() {
    refused(&json!({ "agent": "claude-code", "model": "gpt-5" }), "model");
    refused(&json!({ "agent": "claude", "model": "gpt-5" }), "model");
    refused(&json!({ "agent": "codex", "model": "claude-3" }), "model");
    refused(&json!({ "agent": "deictic" }), "model");
    refused(&json!({ "agent": "deictic", "model": "" }), "model");
    refused(&json!({ "model": "claude 3" }), "model");
}

#[test]
fn the_command_stays_in_the_users_directories() {
    for bad in [
        "run.sh",
        "/usr/bin/agent",
        "/home/user/",
        "/workspace/",
        "/home/user/../../bin/sh",
        "/home/username/run",
        "/workspace/a/..",
        "",
    ] {
        refused(&json!({ "agent_cmd": bad }), "agent_cmd");
    }
    refused(&json!({ "agent_cmd": format!("/workspace/{}", "a".repeat(502)) }), "agent_cmd");
}

#[test]
fn reserved_names_are_refused_in_the_agents_environment() {
    refused(&json!({ "agent_env": { "LLM_KEY": "x" } }), "agent_env.LLM_KEY");
}

#[test]
fn app_json_is_nested() {
    refused(&json!({ "app_json": { "name": "a", "tools": ["x"] } }), "app_json.tools");
    refused(&json!({ "app_json": { "system_prompt": "x" } }), "app_json.system_prompt");
    refused(&json!({ "app_json": "x" }), "app_json");
    refused(&json!({ "app_json": { "name": "a" } }), "app_json.capability_sets");
    refused(
        &json!({ "app_json": { "name": "a", "capability_sets": [] } }),
        "app_json.capability_sets",
    );
    let mut odd = app(1);
    odd["capability_sets"][0]["agents"][0]["prompt"] = json!("x");
    refused(&json!({ "app_json": odd }), "app_json.capability_sets[0].agents[0].prompt");
    let mut odd = app(1);
    odd["capability_sets"][0]["agents"] = json!([]);
    refused(&json!({ "app_json": odd }), "app_json.capability_sets[0].agents");
}

#[test]
fn many_agents_need_wire_version_2() {
    let error = check(&json!({ "wire_version": 1, "app_json": app(2) })).unwrap_err();
    assert_eq!(error.to_string(), "wire_version: multi-agent requires wire_version=2");
    refused(&json!({ "wire_version": 3 }), "wire_version");
    refused(&json!({ "wire_version": 0 }), "wire_version");
    refused(&json!({ "wire_version": "2" }), "wire_version");
}

#[test]
fn a_stored_workspace_needs_its_names() {
    refused(&json!({ "workspace_enabled": true }), "app_id");
    refused(&json!({ "workspace_enabled": true, "app_id": "a" }), "capset_id");
    refused(&json!({ "workspace_enabled": true, "capset_id": "a" }), "app_id");
    refused(&json!({ "app_id": "a/b" }), "app_id");
    let plain = json!({
        "agent": null, "llm_key": null,
        "workspace_enabled": true, "app_id": "a", "capset_id": "b"
    });
    assert!(check(&plain).unwrap().agent.is_none());
}

/// What it may be beyond that depends on the deployment, which checks it.
#[test]
fn the_persistence_url_is_a_url_of_the_web() {
    for bad in [
        "ftp://chat.example.com",
        "file:///etc/passwd",
        "chat.example.com",
        "",
        "https://",
        "https://user:pw@chat.example.com/",
        "https://chat.example.com/#a",
    ] {
        refused(&json!({ "persistence_url": bad }), "persistence_url");
    }
    refused(&json!({ "persistence_auth_header": "Bearer x" }), "persistence_url");
    refused(
        &json!({ "persistence_url": "https://1.1.1.1/", "persistence_auth_header": "a\r\nb: c" }),
        "persistence_auth_header",
    );
}

#[test]
fn secrets_are_not_printed() {
    let request: CreateSandbox = crate::json::parse(base().to_string().as_bytes()).unwrap();
    assert!(!format!("{request:?}").contains("sk-ant-1"));
}
