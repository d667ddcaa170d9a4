//! SQL in every string that a caller can send: in paths, in queries, in bodies, as the document lists them. None is
//! understood, none breaks anything, and what is another's stays as it was.

use axum::body::Body;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::harness::{Setup, TestServer};

const STRINGS: [&str; 6] = [
    "'; DROP TABLE owners; --",
    "x' OR '1'='1",
    "x\" OR \"1\"=\"1",
    "' UNION SELECT sha256 FROM api_keys --",
    "$1'; UPDATE balances SET cents = 1000000 --\\",
    "a\0'",
];

/// Never ends by itself.
const ENDLESS: &str = "/v1/events";

struct Operation {
    method: String,
    path: String,
    in_path: Vec<String>,
    in_query: Vec<String>,
    body: Option<Value>,
}

fn operations() -> Vec<Operation> {
    let document = serde_json::to_value(server::document()).unwrap();
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let named = |place: &str| {
                let of_place = parameters.iter().filter(|one| one["in"] == place);
                of_place.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
            };
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            let body = (!body.is_null()).then(|| example(&document, body));
            all.push(Operation {
                method: method.to_ascii_uppercase(),
                path: path.clone(),
                in_path: named("path"),
                in_query: named("query"),
                body,
            });
        }
    }
    all.retain(|operation| operation.path.starts_with("/v1/") && operation.path != ENDLESS);
    all
}

/// A value of that schema: its example, or something with every property.
fn example(document: &Value, schema: &Value) -> Value {
    if let Some(reference) = schema["$ref"].as_str() {
        return example(document, document.pointer(&reference[1..]).unwrap());
    }
    if !schema["example"].is_null() {
        return schema["example"].clone();
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds[0].as_str().unwrap_or_default().to_owned(),
        kind => kind.as_str().unwrap_or_default().to_owned(),
    };
    let any_of = ["oneOf", "anyOf", "allOf"].into_iter().find_map(|of| schema[of].as_array());
    if let Some(any_of) = any_of {
        let one = any_of.iter().find(|one| one["type"] != "null");
        return one.map_or(Value::Null, |one| example(document, one));
    }
    match kind.as_str() {
        "object" => {
            let properties = schema["properties"].as_object().cloned().unwrap_or_default();
            let more = &schema["additionalProperties"];
            let mut made: serde_json::Map<_, _> = properties
                .iter()
                .map(|(name, schema)| (name.clone(), example(document, schema)))
                .collect();
            if more.is_object() {
                made.insert("KEY".into(), example(document, more));
            }
            Value::Object(made)
        }
        "array" => json!([example(document, &schema["items"])]),
        "integer" => json!(1000),
        "number" => json!(1.0),
        "boolean" => json!(false),
        _ => json!("x"),
    }
}

/// The value, once for every string in it (also every name of a property), with that one replaced.
fn with_each_replaced(value: &Value, by: &str) -> Vec<Value> {
    match value {
        Value::String(_) => vec![json!(by)],
        Value::Array(items) => {
            let each = items.iter().enumerate().flat_map(|(i, item)| {
                with_each_replaced(item, by).into_iter().map(move |new| (i, new))
            });
            let changed = each.map(|(i, new)| {
                let mut items = items.clone();
                items[i] = new;
                Value::Array(items)
            });
            changed.collect()
        }
        Value::Object(fields) => {
            let mut all = Vec::new();
            for (name, field) in fields {
                for new in with_each_replaced(field, by) {
                    let mut fields = fields.clone();
                    fields.insert(name.clone(), new);
                    all.push(Value::Object(fields));
                }
                let mut renamed = fields.clone();
                let field = renamed.remove(name).unwrap();
                renamed.insert(by.into(), field);
                all.push(Value::Object(renamed));
            }
            all
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

/// Ours, and somebody else's things that have to stay.
struct Town {
    server: TestServer,
    ann: Client,
    bob: Client,
    bobs_key: Client,
    organisation: String,
}

impl Town {
    async fn new() -> Self {
        let settings =
            "[auth]\nattempts_per_minute = 100000\n[billing]\nsignup_credit_cents = 700\n";
        let server = Setup::with(settings).start().await;
        let (ann, bob) = (server.account("ann").await, server.account("bob").await);
        ann.create(&json!({ "template": "standard", "name": "there" })).await;
        let bundle = json!({ "name": "keys", "values": { "LLM_API_KEY": "hush" } });
        for who in [&ann, &bob] {
            who.post("/v1/tenants/me/secrets", &bundle).await.json(201);
        }
        let key = bob.post("/v1/api-keys", &json!({})).await.json(201);
        let bobs_key = Client { key: Some(key["key"].as_str().unwrap().into()), ..bob.clone() };
        let named = json!({ "name": "Acme" });
        let made = server.operator.post("/v1/admin/organisations", &named).await.json(201);
        let organisation = made["id"].as_str().unwrap().to_owned();
        let bobs_id = id(&bob).await;
        let member = format!("/v1/admin/organisations/{organisation}/members/{bobs_id}");
        let request = server.operator.request("PUT", &member);
        let body = Body::from(json!({ "role": "owner" }).to_string());
        assert_eq!(server.operator.send(request.body(body).unwrap()).await.status, 204);
        Self { server, ann, bob, bobs_key, organisation }
    }

    /// Everything of Bob's.
    async fn bobs(&self) -> Vec<Value> {
        let mut all = vec![self.bobs_key.get("/v1/tenants/me").await.json(200)];
        for path in [
            "/v1/api-keys",
            "/v1/tenants/me/secrets",
            "/v1/billing/balance",
            "/v1/billing/transactions",
            "/v1/workspaces",
            "/v1/sandboxes",
        ] {
            all.push(self.bob.get(path).await.json(200));
        }
        let organisation = format!("/v1/admin/organisations/{}", self.organisation);
        all.push(self.server.operator.get(&organisation).await.json(200));
        all
    }

    fn who(&self, path: &str) -> &Client {
        if path.starts_with("/v1/admin") { &self.server.operator } else { &self.ann }
    }

    /// What is there, for parameters that are not the one that is tried.
    fn good(&self, name: &str) -> String {
        match name {
            "id" => "there".into(),
            "organisation" => self.organisation.clone(),
            "owner" => "usr_ann".into(),
            "port" => "8080".into(),
            "name" => "keys".into(),
            "path" => "v1/a".into(),
            _ => "x".into(),
        }
    }

    fn path(&self, operation: &Operation, bad: Option<(&str, &str)>) -> String {
        operation.in_path.iter().fold(operation.path.clone(), |path, name| {
            let value = match bad {
                Some((of, bad)) if of == name => encoded(bad),
                _ => self.good(name),
            };
            path.replace(&format!("{{{name}}}"), &value)
        })
    }

    async fn send(&self, operation: &Operation, path: &str, body: Option<&Value>) -> Answer {
        let who = self.who(&operation.path);
        let request = who.request(&operation.method, path);
        let answer = match body {
            None => who.send(request.body(Body::empty()).unwrap()).await,
            Some(body) => {
                let request = request.header("content-type", "application/json");
                who.send(request.body(Body::from(body.to_string())).unwrap()).await
            }
        };
        let status = answer.status.as_u16();
        let fine = status < 500 || [501, 502, 504].contains(&status);
        assert!(fine, "{} {path} {body:?}: {answer:?}", operation.method);
        answer
    }
}

async fn id(client: &Client) -> String {
    client.get("/v1/tenants/me").await.json(200)["tenant_id"].as_str().unwrap().to_owned()
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test]
async fn sql_in_any_string_does_nothing() {
    let town = Town::new().await;
    let before = town.bobs().await;
    let mut tried = 0;
    for operation in &operations() {
        for bad in STRINGS {
            for name in &operation.in_path {
                let path = town.path(operation, Some((name, bad)));
                let answer = town.send(operation, &path, operation.body.as_ref()).await;
                // The name of a file can be anything.
                let refused = answer.status.is_client_error() || name == "path";
                assert!(refused, "{} {path}: {answer:?}", operation.method);
                tried += 1;
            }
            for name in &operation.in_query {
                let path = town.path(operation, None);
                let path = format!("{path}?{name}={}", encoded(bad));
                town.send(operation, &path, operation.body.as_ref()).await;
                tried += 1;
            }
            let bodies = operation.body.as_ref().map(|body| with_each_replaced(body, bad));
            for body in bodies.unwrap_or_default() {
                town.send(operation, &town.path(operation, None), Some(&body)).await;
                tried += 1;
            }
        }
    }
    assert!(tried > 500, "{tried}");
    assert_eq!(town.bobs().await, before);
    let audit = town.server.operator.get("/v1/admin/audit?limit=1000").await.json(200);
    let entries = audit["entries"].as_array().unwrap();
    let numbers: Vec<_> = entries.iter().map(|entry| entry["number"].as_u64().unwrap()).collect();
    assert!(numbers.len() > 10 && numbers.windows(2).all(|two| two[1] == two[0] + 1));
    town.server.stop().await;
}
