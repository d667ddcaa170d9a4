use serde_json::json;

use super::*;

fn owner() -> OwnerId {
    "usr_ann".parse().unwrap()
}

fn request(change: impl FnOnce(&mut Value)) -> Value {
    let mut body = json!({
        "agent": { "kind": "deictic" },
        "template": "standard",
        "llm": { "vendor": "anthropic" },
        "user_id": "usr_ann",
    });
    change(&mut body);
    body
}

fn checked(body: &Value) -> Result<CheckedSession> {
    json::parse::<CreateSession>(body.to_string().as_bytes())?.check(&owner())
}

#[track_caller]
fn refused(field: &str, change: impl FnOnce(&mut Value)) {
    let body = request(change);
    match checked(&body) {
        Err(Error::Invalid { field: named, .. }) => assert_eq!(named, field),
        other => panic!("{body}: {other:?}"),
    }
}

/// The contract of the catalogue: what it shows can be asked for.
#[test]
fn everything_in_the_catalogue_is_accepted() {
    let shown = crate::catalogue::Catalogue::of(catalogue::CATALOGUE);
    assert!(!shown.templates.is_empty());
    for entry in shown.templates {
        assert!(!entry.capability_sets.is_empty());
        for set in entry.capability_sets {
            for template in SESSION_TEMPLATES {
                let session = checked(&request(|body| {
                    body["agent"]["kind"] = entry.app_id.clone().into();
                    body["template"] = (*template).into();
                    body["app"] = json!({ "id": entry.app_id, "set_id": set.set_id });
                }))
                .unwrap();
                let known = session.agent.set(&session.set_id).unwrap();
                let tools: Vec<_> = known.tools.iter().map(|tool| tool.shown).collect();
                assert_eq!(tools, set.tools);
            }
        }
    }
}

#[test]
fn the_defaults_are_those_of_the_document() {
    let session = checked(&request(|_| {})).unwrap();
    assert_eq!(session.ttl_seconds, 3600);
    assert_eq!(session.wire_version, 2);
    assert_eq!((session.app_id.as_str(), session.set_id.as_str()), ("deictic", "default"));
    assert!(session.app.is_none() && session.secrets.is_empty() && session.model.is_none());
    let long = checked(&request(|body| body["ttl_seconds"] = 90_000.into())).unwrap();
    assert_eq!(long.ttl_seconds, 7200);
}

#[test]
fn the_documents_own_example_is_accepted() {
    let session = checked(&request(|body| {
        body["agent"]["version"] = "b4232d5".into();
        body["template"] = "cua".into();
        body["llm"]["model"] = "claude-sonnet-4-5".into();
        body["llm"]["base_url"] = "https://proxy.example.com/v1".into();
        body["secrets"] = json!(["my-llm-keys"]);
        body["app"] = json!({ "id": "my-app", "set_id": "default", "capability_sets": {} });
    }))
    .unwrap();
    assert_eq!(session.app_id, "my-app");
    assert!(session.app.is_none());
}

#[test]
fn what_is_wrong_is_named() {
    refused("template", |body| body["template"] = "canvas".into());
    refused("agent.kind", |body| body["agent"]["kind"] = "amp".into());
    refused("agent.version", |body| body["agent"]["version"] = "../x".into());
    refused("llm.vendor", |body| body["llm"]["vendor"] = "acme".into());
    refused("llm.model", |body| body["llm"]["model"] = "a/b".into());
    refused("llm.model", |body| body["llm"]["model"] = "a".repeat(129).into());
    refused("user_id", |body| body["user_id"] = "usr_bob".into());
    refused("user_id", |body| drop(body.as_object_mut().unwrap().remove("user_id")));
    refused("secrets", |body| body["secrets"] = json!(vec!["a"; 11]));
    refused("secrets[1]", |body| body["secrets"] = json!(["a", "../a"]));
    refused("ttl_seconds", |body| body["ttl_seconds"] = 0.into());
    refused("wire_version", |body| body["wire_version"] = 3.into());
    refused("app.set_id", |body| body["app"] = json!({ "id": "deictic", "set_id": "other" }));
    refused("app.id", |body| body["app"] = json!({ "id": "../x" }));
    refused("surprise", |body| body["surprise"] = 1.into());
}

#[test]
fn a_model_endpoint_that_is_no_address_is_refused() {
    for url in [
        "https://user:pass@example.com/",
        "https://",
        "https://example.com/?key=value",
        "https://example.com/#here",
        "file:///etc/passwd",
    ] {
        refused("llm.base_url", |body| body["llm"]["base_url"] = url.into());
    }
}

#[test]
fn sets_come_as_an_array_or_by_name() {
    let agent = json!({ "name": "primary", "tools": ["shell_exec"] });
    let array = json!([{ "name": "general", "agents": [agent] }]);
    let by_name = json!({ "general": { "agents": [agent] } });
    for sets in [array, by_name] {
        let app = json!({ "id": "my-app", "capability_sets": sets });
        let session = checked(&request(|body| body["app"] = app)).unwrap();
        assert_eq!(session.app.unwrap().capability_sets[0].name, "general");
    }
    let two = json!([{ "name": "general", "agents": [agent, agent] }]);
    refused("wire_version", |body| {
        body["app"] = json!({ "id": "my-app", "capability_sets": two });
        body["wire_version"] = 1.into();
    });
    refused("app.capability_sets[0].agents", |body| {
        let empty = json!([{ "name": "general", "agents": [] }]);
        body["app"] = json!({ "id": "my-app", "capability_sets": empty });
    });
}
