//! The document of the interface: as it was reviewed, and nothing less than the contract's.

use serde_json::Value;

#[test]
fn the_document_is_as_reviewed() {
    insta::assert_snapshot!(agentd::openapi());
}

#[test]
fn every_path_of_the_contract_is_there() {
    let (ours, contract) = documents();
    for (name, wanted) in contract["paths"].as_object().unwrap() {
        let (method, path) = name.split_once(' ').unwrap();
        let found = &ours["paths"][path][method];
        assert_eq!(found["operationId"], wanted["operationId"], "{name}");
        for status in wanted["statuses"].as_array().unwrap() {
            assert!(found["responses"].get(status.as_str().unwrap()).is_some(), "{name} {status}");
        }
        let has = |wanted: &Value| {
            found["parameters"].as_array().is_some_and(|all| {
                all.iter().any(|one| one["in"] == wanted[0] && one["name"] == wanted[1])
            })
        };
        for parameter in wanted["parameters"].as_array().unwrap() {
            assert!(has(parameter), "{name}: {parameter}");
        }
        let body = &found["requestBody"]["content"]["application/json"]["schema"];
        let body = if body.is_null() { Value::Null } else { kind(body).into() };
        assert_eq!(body, wanted["body"], "{name}: body");
    }
}

#[test]
fn every_schema_of_the_contract_is_there_and_only_added_to() {
    let (ours, contract) = documents();
    for (name, wanted) in contract["schemas"].as_object().unwrap() {
        let found = &ours["components"]["schemas"][name];
        assert!(found.is_object(), "no schema {name}");
        assert_eq!(strings(&found["required"]), strings(&wanted["required"]), "{name}: required");
        for (property, wanted) in wanted["properties"].as_object().unwrap() {
            let found = found["properties"].get(property);
            let found = found.unwrap_or_else(|| panic!("{name} has no {property}"));
            assert_eq!(kind(found), wanted.as_str().unwrap(), "{name}.{property}");
        }
        if let Some(values) = wanted.get("enum") {
            assert_eq!(strings(&found["enum"]), strings(values), "{name}");
        }
        if let Some(variants) = wanted.get("oneOf") {
            let found: Vec<_> = found["oneOf"].as_array().unwrap().iter().map(variant).collect();
            let wanted: Vec<_> =
                variants.as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
            assert_eq!(found, wanted, "{name}");
        }
    }
}

fn documents() -> (Value, Value) {
    let contract = include_str!("../fixtures/contract.json");
    (serde_json::from_str(&agentd::openapi()).unwrap(), serde_json::from_str(contract).unwrap())
}

fn strings(list: &Value) -> Vec<String> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut all: Vec<_> = list.iter().map(|one| one.as_str().unwrap().to_owned()).collect();
    all.sort();
    all
}

/// What a schema is, in a word. That it may be null is left out.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        return name.rsplit('/').next().unwrap().to_owned();
    }
    if let Some(list) = schema["allOf"].as_array().or(schema["oneOf"].as_array()) {
        return list.iter().find(|one| one["type"] != "null").map(kind).unwrap();
    }
    let named = match &schema["type"] {
        Value::Array(types) => types.iter().find(|one| *one != "null").cloned(),
        Value::String(one) => Some(one.clone().into()),
        _ => None,
    };
    match named.as_ref().and_then(Value::as_str) {
        None => "any".to_owned(),
        Some("array") => format!("array of {}", kind(&schema["items"])),
        Some(name) => name.to_owned(),
    }
}

/// A variant of a union: its name, or its tag and its fields.
fn variant(schema: &Value) -> String {
    let Some(properties) = schema["properties"].as_object() else { return kind(schema) };
    let mut fields: Vec<_> = properties.keys().map(String::as_str).collect();
    fields.sort_unstable();
    format!("{}: {}", properties["type"]["enum"][0].as_str().unwrap(), fields.join(","))
}
