//! An `OpenAPI` document as `search` has it: every `$ref` resolved, cycles marked, and nothing in it that
//! does not help to make a call. Pure.

use serde_json::{Map, Value, json};

use super::guard;

const METHODS: [&str; 7] = ["get", "post", "put", "patch", "delete", "head", "options"];

/// What is kept of an operation.
const KEPT: [&str; 7] =
    ["summary", "description", "tags", "deprecated", "parameters", "requestBody", "responses"];

/// References within references; deeper ones are marked like cycles.
const DEPTH_MAX: usize = 40;

/// The document for code, as JSON. Paths that code may not call are left out.
pub(super) fn slim(document: &Value, blocked: &[&str]) -> String {
    let mut paths = Map::new();
    let all = document.get("paths").and_then(Value::as_object);
    for (path, item) in all.into_iter().flatten() {
        if guard::check(path, blocked).is_err() {
            continue;
        }
        let mut through = Vec::new();
        let item = resolved(document, item, &mut through);
        let common = item.get("parameters").and_then(Value::as_array).cloned();
        let mut operations = Map::new();
        for method in METHODS {
            if let Some(operation) = item.get(method).and_then(Value::as_object) {
                let operation = operation_of(operation, common.as_deref().unwrap_or_default());
                operations.insert(method.to_owned(), operation);
            }
        }
        paths.insert(path.clone(), Value::Object(operations));
    }
    let info = document.get("info").cloned().unwrap_or_default();
    json!({ "info": info, "paths": paths }).to_string()
}

/// The header that an API wants its key in; `None` for a bearer token. What most operations ask for, of the
/// schemes that have a header of their own.
pub(super) fn key_header(document: &Value) -> Option<String> {
    let schemes = document.pointer("/components/securitySchemes")?.as_object()?;
    let header = |name: &str| {
        let scheme = schemes.get(name)?;
        let is_key = scheme["type"] == "apiKey" && scheme["in"] == "header";
        is_key.then(|| scheme["name"].as_str().map(str::to_owned)).flatten()
    };
    let mut wanted: Vec<(usize, &String)> = Vec::new();
    for (name, scheme) in schemes {
        if scheme["type"] == "apiKey" || scheme["type"] == "http" {
            wanted.push((0, name));
        }
    }
    let paths = document.get("paths").and_then(Value::as_object);
    let operations = paths.into_iter().flatten().filter_map(|(_, item)| item.as_object()).flatten();
    let general = document.get("security");
    for (_, operation) in operations.filter(|(method, _)| METHODS.contains(&method.as_str())) {
        let needs = operation.get("security").or(general).and_then(Value::as_array);
        for need in needs.into_iter().flatten().filter_map(Value::as_object) {
            for (count, name) in &mut wanted {
                *count += usize::from(need.contains_key(*name));
            }
        }
    }
    let most = wanted.iter().max_by_key(|(count, _)| *count)?;
    header(most.1)
}

fn operation_of(operation: &Map<String, Value>, common: &[Value]) -> Value {
    let mut kept = Map::new();
    for key in KEPT {
        if let Some(value) = operation.get(key) {
            kept.insert(key.to_owned(), value.clone());
        }
    }
    if !common.is_empty() {
        let own = kept.entry("parameters").or_insert_with(|| json!([]));
        if let Value::Array(own) = own {
            let missing: Vec<Value> = common
                .iter()
                .filter(|one| !own.iter().any(|own| own["name"] == one["name"]))
                .cloned()
                .collect();
            own.extend(missing);
        }
    }
    // All errors look the same: their words are enough.
    let responses = kept.get_mut("responses").and_then(Value::as_object_mut);
    for (status, response) in responses.into_iter().flatten() {
        let is_error = status.starts_with(['4', '5']) || status == "default";
        if let (true, Some(response)) = (is_error, response.as_object_mut()) {
            response.retain(|key, _| key == "description");
        }
    }
    Value::Object(kept)
}

fn resolved(document: &Value, value: &Value, through: &mut Vec<String>) -> Value {
    match value {
        Value::Object(map) => {
            let Some(Value::String(reference)) = map.get("$ref") else {
                let resolve = |(key, value): (&String, &Value)| {
                    (key.clone(), resolved(document, value, through))
                };
                return Value::Object(map.iter().map(resolve).collect());
            };
            let target = reference.strip_prefix('#').and_then(|at| document.pointer(at));
            let Some(target) = target else { return json!({ "$unresolved": reference }) };
            if through.contains(reference) || through.len() >= DEPTH_MAX {
                return json!({ "$circular": reference });
            }
            through.push(reference.clone());
            let target = resolved(document, target, through);
            through.pop();
            target
        }
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| resolved(document, item, through)).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Value {
        json!({
            "info": { "title": "T" },
            "paths": {
                "/sandboxes/{id}": {
                    "parameters": [{ "$ref": "#/components/parameters/id" }],
                    "get": {
                        "operationId": "x",
                        "summary": "One",
                        "security": [{ "Key": [] }],
                        "responses": {
                            "200": { "content": { "application/json": {
                                "schema": { "$ref": "#/components/schemas/Node" } } } },
                            "404": { "$ref": "#/components/responses/404" },
                        },
                    },
                },
                "/teams": { "get": { "summary": "No", "security": [{ "Token": [] }] } },
            },
            "components": {
                "parameters": { "id": { "name": "id", "in": "path" } },
                "responses": { "404": { "description": "None", "content": { "x": {} } } },
                "schemas": { "Node": { "properties": {
                    "next": { "$ref": "#/components/schemas/Node" },
                    "lost": { "$ref": "other.yml#/X" },
                } } },
                "securitySchemes": {
                    "Token": { "type": "http", "scheme": "bearer" },
                    "Key": { "type": "apiKey", "in": "header", "name": "X-API-Key" },
                    "Admin": { "type": "apiKey", "in": "header", "name": "X-Admin" },
                },
            },
        })
    }

    #[test]
    fn references_are_resolved_cycles_marked_and_the_rest_left_out() {
        let slim: Value = serde_json::from_str(&slim(&document(), guard::OF_OTHERS)).unwrap();
        let schema = json!({ "properties": {
            "next": { "$circular": "#/components/schemas/Node" },
            "lost": { "$unresolved": "other.yml#/X" },
        } });
        assert_eq!(
            slim,
            json!({
                "info": { "title": "T" },
                "paths": { "/sandboxes/{id}": { "get": {
                    "summary": "One",
                    "parameters": [{ "name": "id", "in": "path" }],
                    "responses": {
                        "200": { "content": { "application/json": { "schema": schema } } },
                        "404": { "description": "None" },
                    },
                } } },
            })
        );
    }

    #[test]
    fn the_key_goes_where_most_operations_want_it() {
        let mut document = document();
        document["paths"]["/x"] = json!({ "get": { "security": [{ "Key": [] }] } });
        assert_eq!(key_header(&document).as_deref(), Some("X-API-Key"));
        document["components"]["securitySchemes"]["Key"] =
            json!({ "type": "http", "scheme": "bearer" });
        assert_eq!(key_header(&document), None);
    }
}
