//! Create: what is taken, with which defaults, and what is refused by which field.

use model::{Clocks, Error, Source, Tier};
use proptest::prelude::proptest;
use serde_json::{Value, json};

use super::{Checked, CreateSandbox};

proptest! {
    /// Whatever is sent is either refused by name or a sandbox; nothing panics.
    #[test]
    fn any_text_has_an_answer(
        field in "[a-z_]{1,20}|agent_cmd|app_json|persistence_url|env|model|name|policy",
        value in "[ -~]{0,24}|[0-9.e-]{1,24}|\\PC{0,24}",
        quoted: bool,
    ) {
        let value = if quoted { json!(value).to_string() } else { value };
        let body = format!(
            "{{\"template\": \"standard\", \"agent\": \"codex\", \"llm_key\": \"k\", \"{field}\": {value}}}"
        );
        let outcome = crate::json::parse::<CreateSandbox>(body.as_bytes()).and_then(|request| request.check());
        if let Err(Error::Invalid { field, detail }) = outcome {
            assert!(!field.is_empty() && !detail.is_empty());
        }
    }
}

#[track_caller]
fn check(body: &Value) -> Result<Checked, Error> {
    crate::json::parse::<CreateSandbox>(body.to_string().as_bytes())?.check()
}

#[track_caller]
fn refused(body: &Value, field: &str) {
    match check(body).unwrap_err() {
        Error::Invalid { field: named, detail } => assert_eq!(named, field, "{body} {detail}"),
        other => panic!("{body}: {other:?}"),
    }
}

#[test]
fn the_examples_of_both_documents_are_taken() {
    let template = check(&json!({
        "template": "standard", "wire_version": 2, "idle_timeout_seconds": 60,
        "max_lifetime_seconds": 7200, "workspace_enabled": false, "app_id": "my-app",
        "capset_id": "default", "env_vars": { "MY_VAR": "value" }, "metadata": { "tag": "prod" }
    }))
    .unwrap();
    assert_eq!(template.sandbox.source, Source::Template("standard".into()));
    assert_eq!(template.sandbox.env["MY_VAR"], "value");
    let image = check(&json!({
        "image": "ghcr.io/latere-ai/sandbox-base:main", "name": "my-workspace",
        "tier": "persistent", "disk_gb": 5, "auto_stop_minutes": 15, "auto_delete_hours": 24,
        "env": { "MY_VAR": "value" }, "policy": "default"
    }))
    .unwrap();
    assert_eq!(image.sandbox.tier, Some(Tier::Persistent));
    assert_eq!(image.sandbox.name.unwrap().as_str(), "my-workspace");
}

#[test]
fn nothing_is_filled_in_before_its_time() {
    let plain = check(&json!({ "image": "standard" })).unwrap().sandbox;
    assert_eq!(plain.asked_clocks, Clocks::default());
    assert_eq!((plain.tier, plain.disk_gb, plain.policy), (None, None, None));
}

#[test]
fn exactly_one_source() {
    refused(&json!({}), "template");
    refused(&json!({ "template": "standard", "image": "standard" }), "template");
    refused(&json!({ "template": "" }), "template");
    refused(&json!({ "image": "a b" }), "image");
    refused(&json!({ "template": 7 }), "template");
    refused(&json!({ "template": null }), "template");
}

#[test]
fn wrong_values_are_named() {
    for (field, value) in [
        ("name", json!("Bad Name")),
        ("name", json!("sb-mine")),
        ("name", json!("")),
        ("name", json!(7)),
        ("tier", json!("gold")),
        ("disk_gb", json!(0)),
        ("disk_gb", json!(-1)),
        ("disk_gb", json!(1.5)),
        ("disk_gb", json!("5")),
        ("auto_stop_minutes", json!(-1)),
        ("auto_stop_minutes", json!(525_601)),
        ("auto_delete_hours", json!(0)),
        ("idle_timeout_seconds", json!(0)),
        ("idle_timeout_seconds", json!("60")),
        ("max_lifetime_seconds", json!(0)),
        ("policy", json!("Not A Policy")),
        ("metadata", json!([])),
        ("metadata.user_id", json!(null)),
        ("vcpu", json!(0)),
        ("memory_mib", json!(0)),
        ("cpu_fraction", json!(0)),
        ("cpu_fraction", json!(1.1)),
        ("cpu_fraction", json!(-0.5)),
        ("surprise", json!(true)),
    ] {
        let key = field.split('.').next().unwrap();
        let value = if field == "metadata.user_id" { json!({ "user_id": "x" }) } else { value };
        refused(&json!({ "template": "standard", (key): value }), field);
    }
}

#[test]
fn every_reserved_name_is_refused_in_both_environments() {
    for name in [
        "AGENT_TYPE",
        "LLM_KEY",
        "LLM_MODEL",
        "TASK",
        "SESSION_ID",
        "AGENT_CMD",
        "AGENT_SESSION_MODE",
        "E2A_PERSISTENCE_URL",
        "E2A_PERSISTENCE_AUTH_HEADER",
        "WORKSPACE_USER_ID",
        "WORKSPACE_APP_ID",
        "WORKSPACE_CAPSET_ID",
        "WORKSPACE_MODE",
        "LLM_API_KEY",
    ] {
        for field in ["env", "env_vars"] {
            let body = json!({ "template": "standard", (field): { (name): "x" } });
            refused(&body, &format!("{field}.{name}"));
        }
    }
}

#[test]
fn one_variable_in_one_place() {
    refused(
        &json!({ "template": "standard", "env": { "A": "1" }, "env_vars": { "A": "1" } }),
        "env_vars.A",
    );
    let both = json!({ "template": "standard", "env": { "A": "1" }, "env_vars": { "B": "2" } });
    assert_eq!(check(&both).unwrap().sandbox.env.len(), 2);
    refused(&json!({ "template": "standard", "env": { "A": 1 } }), "env.A");
    refused(&json!({ "template": "standard", "env": { "A": "\0" } }), "env.A");
    refused(&json!({ "template": "standard", "env": { "1A": "x" } }), "env.1A");
}

#[test]
fn a_long_life_is_clamped() {
    let long = check(&json!({ "template": "standard", "max_lifetime_seconds": 1_000_000 }));
    assert_eq!(long.unwrap().sandbox.asked_clocks.max_lifetime_seconds, Some(7200));
}
