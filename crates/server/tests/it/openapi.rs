//! The description of the API: complete, 3.1, and reviewed as a file in git.

use serde_json::Value;

use crate::harness::TestServer;

#[test]
fn the_document_is_as_reviewed() {
    let document = serde_json::to_value(server::document()).unwrap();
    insta::assert_json_snapshot!("openapi", document);
}

#[tokio::test]
async fn it_is_served_with_this_servers_address() {
    let server = TestServer::start().await;
    let nobody = server.nobody();
    let answer = nobody.get("/openapi.json").await;
    assert_eq!(answer.header("content-type"), "application/json");
    let document = answer.json(200);
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["servers"][0]["url"], format!("http://{}", nobody.address));
    server.stop().await;
}

#[test]
fn every_reference_leads_somewhere_and_every_operation_is_described() {
    let document = serde_json::to_value(server::document()).unwrap();
    let mut references = Vec::new();
    collect(&document, &mut references);
    assert!(references.len() > 20);
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    let mut ids = std::collections::BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let at = format!("{method} {path}");
            assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{at}");
            assert!(!operation["summary"].as_str().unwrap().is_empty(), "{at}");
            assert!(operation["tags"].is_array(), "{at}");
            for (status, answer) in operation["responses"].as_object().unwrap() {
                let about = answer["description"].as_str().unwrap_or_default();
                assert!(!about.is_empty(), "{at} {status}");
                if status.starts_with(['4', '5']) {
                    let body = &answer["content"]["application/problem+json"]["schema"]["$ref"];
                    assert_eq!(body, "#/components/schemas/Problem", "{at} {status}");
                }
            }
        }
    }
}

#[tokio::test]
async fn the_page_loads_nothing_and_runs_nothing() {
    let server = TestServer::start().await;
    let answer = server.nobody().get("/docs").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), "text/html; charset=utf-8");
    let policy = answer.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"));
    let page = String::from_utf8(answer.bytes.to_vec()).unwrap();
    for part in ["<script", "src=", " style=", "@import", "url("] {
        assert!(!page.contains(part), "{part}");
    }
    let document = serde_json::to_value(server::document()).unwrap();
    for path in document["paths"].as_object().unwrap().keys() {
        assert!(page.contains(&format!("<code>{path}</code>")), "{path}");
    }
    for schema in document["components"]["schemas"].as_object().unwrap().keys() {
        let anchor = format!("id=\"{}\"", schema.to_ascii_lowercase());
        assert!(page.contains(&anchor), "{anchor}");
    }
    server.stop().await;
}

fn collect(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref") {
                into.push(reference.clone());
            }
            fields.values().for_each(|child| collect(child, into));
        }
        Value::Array(items) => items.iter().for_each(|child| collect(child, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
