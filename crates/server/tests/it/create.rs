//! `POST`, `GET` and `PATCH /v1/sandboxes`: both documents' shapes, defaults, limits, refusals.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::client::Answer;
use crate::harness::{Setup, TestServer};

#[tokio::test]
async fn a_template_sandbox_has_every_field_of_both_documents() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let made = operator
        .create(&json!({
            "template": "standard", "env_vars": { "MY_VAR": "value" }, "metadata": { "tag": "prod" }
        }))
        .await;
    let id = made["id"].as_str().unwrap();
    let bare = id.strip_prefix("sb-").unwrap();
    assert!(bare.len() == 26 && bare.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()));
    assert_eq!(made["vm_id"], made["id"]);
    assert_eq!(made["name"].as_str().unwrap().split('-').count(), 3);
    for (field, value) in [
        ("state", json!("running")),
        ("tier", json!("ephemeral")),
        ("disk_gb", json!(5)),
        ("auto_stop_minutes", json!(0)),
        ("idle_timeout_seconds", json!(60)),
        ("max_lifetime_seconds", json!(7200)),
        ("host_port", json!(operator.address.port())),
        ("endpoint", json!(format!("http://{}", operator.address))),
        ("vcpu", json!(1)),
        ("cpu_fraction", json!(0.5)),
        ("memory_mib", json!(512)),
        ("template", json!("standard")),
        ("policy", json!("default")),
        ("metadata", json!({ "tag": "prod", "user_id": "usr_operator" })),
    ] {
        assert_eq!(made[field], value, "{field}");
    }
    assert!(made["rootfs"].as_str().unwrap().starts_with("standard@sha256:"));
    for field in ["created_at", "last_activity_at", "started_at"] {
        let text = made[field].as_str().unwrap();
        assert!(text.ends_with('Z'), "{text}");
        text.parse::<Timestamp>().unwrap();
    }
    let absent = [
        "deadline",
        "auto_delete_hours",
        "image",
        "end_reason",
        "agent_status",
        "agent_exit_code",
        "llm_key",
        "env",
    ];
    for field in absent {
        assert!(made.get(field).is_none(), "{field}");
    }
    server.stop().await;
}

#[tokio::test]
async fn an_image_sandbox_has_the_other_clocks() {
    let server = TestServer::start().await;
    let made = server.operator.create(&json!({ "image": "standard" })).await;
    for (field, value) in [
        ("state", json!("running")),
        ("tier", json!("ephemeral")),
        ("disk_gb", json!(5)),
        ("auto_stop_minutes", json!(15)),
        ("auto_delete_hours", json!(24)),
        ("image", json!("standard")),
    ] {
        assert_eq!(made[field], value, "{field}");
    }
    assert!(made.get("idle_timeout_seconds").is_none());
    assert!(made.get("max_lifetime_seconds").is_none());
    let at = |field: &str| made[field].as_str().unwrap().parse::<Timestamp>().unwrap();
    assert_eq!(at("deadline").duration_since(at("created_at")).as_hours(), 24);
    server.stop().await;
}

#[tokio::test]
async fn a_persistent_sandbox_has_no_deadline_unless_asked() {
    let server = TestServer::start().await;
    for source in ["template", "image"] {
        let body = json!({ (source): "standard", "tier": "persistent" });
        let made = server.operator.create(&body).await;
        assert_eq!(made["tier"], "persistent");
        assert_eq!(made["auto_stop_minutes"], 15);
        for field in ["deadline", "auto_delete_hours", "idle_timeout_seconds"] {
            assert!(made.get(field).is_none(), "{field}");
        }
    }
    let asked = json!({
        "image": "standard", "tier": "persistent", "name": "my-workspace", "disk_gb": 7,
        "auto_stop_minutes": 0, "auto_delete_hours": 48, "env": { "A": "b" }, "policy": "none"
    });
    let made = server.operator.create(&asked).await;
    assert_eq!(made["name"], "my-workspace");
    assert_eq!((&made["disk_gb"], &made["auto_stop_minutes"]), (&json!(7), &json!(0)));
    assert_eq!(made["policy"], "none");
    assert!(made["deadline"].is_string());
    server.stop().await;
}

#[tokio::test]
async fn explicit_values_win_and_long_lives_are_clamped() {
    let server = TestServer::start().await;
    let made = server
        .operator
        .create(&json!({
            "template": "standard", "idle_timeout_seconds": 5, "max_lifetime_seconds": 999_999,
            "auto_stop_minutes": 3, "auto_delete_hours": 1,
            "vcpu": 2, "cpu_fraction": 1.0, "memory_mib": 256, "wire_version": 1,
            "workspace_enabled": false, "app_id": "my-app", "capset_id": "default"
        }))
        .await;
    for (field, value) in [
        ("idle_timeout_seconds", json!(5)),
        ("max_lifetime_seconds", json!(7200)),
        ("auto_stop_minutes", json!(3)),
        ("auto_delete_hours", json!(1)),
        ("vcpu", json!(2)),
        ("cpu_fraction", json!(1.0)),
        ("memory_mib", json!(256)),
    ] {
        assert_eq!(made[field], value, "{field}");
    }
    server.stop().await;
}

#[tokio::test]
async fn both_environments_reach_the_programs_inside() {
    let server = TestServer::start().await;
    let body = json!({ "template": "standard", "env": { "A": "1" }, "env_vars": { "B": "2" } });
    let made = server.operator.create(&body).await;
    let path = format!("/v1/sandboxes/{}/exec", made["name"].as_str().unwrap());
    let said = server.operator.post(&path, &json!({ "command": "echo $A$B" })).await.json(200);
    assert_eq!(said["output"], "12\n");
    server.stop().await;
}

#[tokio::test]
async fn bad_requests_name_their_field_and_make_nothing() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let check = async |body: Value, field: &str| {
        operator.post("/v1/sandboxes", &body).await.refuses(field);
    };
    check(json!({}), "template").await;
    check(json!({ "template": "standard", "image": "standard" }), "template").await;
    check(json!({ "image": "no-such-template" }), "image").await;
    check(json!({ "image": "Upper" }), "image").await;
    for (field, value) in [
        ("name", json!("Not A Slug")),
        ("name", json!("sb-mine")),
        ("name", json!("x".repeat(64))),
        ("tier", json!("gold")),
        ("disk_gb", json!(21)),
        ("disk_gb", json!(0)),
        ("disk_gb", json!("5")),
        ("auto_stop_minutes", json!(-1)),
        ("auto_delete_hours", json!(0)),
        ("idle_timeout_seconds", json!(0)),
        ("idle_timeout_seconds", json!("60")),
        ("max_lifetime_seconds", json!(0)),
        ("policy", json!("no-such-policy")),
        ("policy", json!("")),
        ("env", json!(["A=b"])),
        ("env.TASK", json!(null)),
        ("env_vars.LLM_KEY", json!(null)),
        ("metadata", json!("x")),
        ("metadata.user_id", json!(null)),
        ("vcpu", json!(0)),
        ("vcpu", json!(100_000)),
        ("cpu_fraction", json!(2)),
        ("memory_mib", json!(1)),
        ("wire_version", json!(3)),
        ("workspace_enabled", json!("yes")),
        ("app_id", json!(7)),
        ("unheard_of", json!(1)),
    ] {
        let (key, inner) = field.split_once('.').unwrap_or((field, ""));
        let value = if inner.is_empty() { value } else { json!({ (inner): "x" }) };
        check(json!({ "template": "standard", (key): value }), field).await;
    }
    let twice = json!({ "template": "standard", "env": { "A": "" }, "env_vars": { "A": "" } });
    check(twice, "env_vars.A").await;
    assert_eq!(operator.get("/v1/sandboxes").await.json(200), json!([]));
    assert_eq!(server.driver.count(), 0);
    server.stop().await;
}

#[tokio::test]
async fn broken_json_is_400_with_a_problem_body() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    for body in ["", "   ", "{", "nonsense", "[]", "\"x\"", "null", "{} {}"] {
        operator.post_text("/v1/sandboxes", body).await.refuses("body");
    }
    let twice = r#"{"template": "standard", "template": "standard"}"#;
    operator.post_text("/v1/sandboxes", twice).await.refuses("template");
    operator.post_text("/v1/sandboxes", r#"{"template": }"#).await.refuses("template");
    let not_utf8 = operator.upload("/v1/sandboxes", b"{\"template\": \"\xff\"}".to_vec()).await;
    not_utf8.problem(400, "invalid_request");
    operator.post_nothing("/v1/sandboxes").await.refuses("body");
    server.stop().await;
}

#[tokio::test]
async fn what_is_not_there_yet_says_so() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let post = async |body: Value| operator.post("/v1/sandboxes", &body).await;
    post(json!({ "template": "no-such" })).await.problem(501, "unknown_template");
    let unbuilt: Answer = post(json!({ "template": "browser" })).await;
    let detail = unbuilt.problem(501, "template_not_built")["detail"].to_string();
    assert!(detail.contains("bastide template build browser"), "{detail}");
    post(json!({ "image": "browser" })).await.problem(501, "template_not_built");
    let reference = json!({ "image": "ghcr.io/latere-ai/sandbox-base:main" });
    post(reference).await.problem(501, "image_pull_not_available");
    server.stop().await;
}

#[tokio::test]
async fn a_sandbox_is_found_by_id_and_by_name() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let body = json!({ "template": "standard", "name": "mine" });
    let answer = operator.post("/v1/sandboxes", &body).await;
    let made = answer.json(201);
    let id = made["id"].as_str().unwrap();
    assert_eq!(answer.header("location"), format!("/v1/sandboxes/{id}"));
    let bare = id.strip_prefix("sb-").unwrap();
    for reference in [id, bare, &id.to_ascii_uppercase(), "mine"] {
        let found = operator.get(&format!("/v1/sandboxes/{reference}")).await.json(200);
        assert_eq!(found["id"], made["id"], "{reference}");
    }
    let list = operator.get("/v1/sandboxes").await.json(200);
    assert_eq!(list.as_array().unwrap().len(), 1);
    let got = operator.get("/v1/sandboxes/mine").await.json(200);
    let same = |field: &str| assert_eq!(list[0][field], got[field], "{field}");
    got.as_object().unwrap().keys().for_each(|field| same(field));
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_id_is_as_unknown_as_any() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    for id in
        ["nobody", "sb-0", "UPPER", "%20", "a%2Fb", "%ff", "..", "sb-00000000000000000000000000"]
    {
        let answer = operator.get(&format!("/v1/sandboxes/{id}")).await;
        answer.problem(404, "not_found");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_name_is_taken_once_per_owner() {
    let server = TestServer::start().await;
    let named = json!({ "template": "standard", "name": "mine" });
    server.operator.create(&named).await;
    server.operator.post("/v1/sandboxes", &named).await.problem(409, "name_taken");
    server.tenant("ann").await.create(&named).await;
    server.operator.delete("/v1/sandboxes/mine").await.json(200);
    server.operator.create(&named).await;
    server.stop().await;
}

#[tokio::test]
async fn patch_changes_name_and_policy() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let path = operator.sandbox().await;
    let changed = operator.patch(&path, &json!({ "name": "better", "policy": "none" })).await;
    let changed = changed.json(200);
    assert_eq!((&changed["name"], &changed["policy"]), (&json!("better"), &json!("none")));
    let again = operator.patch("/v1/sandboxes/better", &json!({ "name": "better" })).await;
    assert_eq!(again.json(200)["name"], "better");
    operator.create(&json!({ "template": "standard", "name": "other" })).await;
    operator.patch(&path, &json!({ "name": "other" })).await.problem(409, "name_taken");
    operator.patch(&path, &json!({})).await.refuses("name");
    operator.patch(&path, &json!({ "name": "No" })).await.refuses("name");
    operator.patch(&path, &json!({ "name": 7 })).await.refuses("name");
    operator.patch(&path, &json!({ "policy": "nope" })).await.refuses("policy");
    operator.patch(&path, &json!({ "tier": "persistent" })).await.refuses("tier");
    operator.patch("/v1/sandboxes/nobody", &json!({ "name": "x" })).await.problem(404, "not_found");
    assert_eq!(operator.get(&path).await.json(200)["policy"], "none");
    server.stop().await;
}

#[tokio::test]
async fn settings_bound_what_may_be_asked() {
    let toml = "public_url = 'https://town.example/base/'\n[disk]\ngb_default = 2\ngb_max = 3\n\
                [ceiling]\nvcpu = 2\nmemory_mib = 1024\n";
    let server = Setup::with(toml).start().await;
    let ann = server.tenant("ann").await;
    let made = ann.create(&json!({ "template": "standard", "vcpu": 2 })).await;
    assert_eq!(made["disk_gb"], 2);
    assert_eq!(made["endpoint"], "https://town.example/base");
    assert_eq!(made["host_port"], 443);
    let post = async |body: Value| ann.post("/v1/sandboxes", &body).await;
    post(json!({ "template": "standard", "disk_gb": 4 })).await.refuses("disk_gb");
    post(json!({ "template": "standard", "vcpu": 3 })).await.refuses("vcpu");
    post(json!({ "template": "standard", "memory_mib": 1025 })).await.refuses("memory_mib");
    post(json!({ "template": "host" })).await.refuses("template");
    server.operator.create(&json!({ "template": "host" })).await;
    server.stop().await;
}

#[tokio::test]
async fn the_built_templates_are_listed() {
    let server = TestServer::start().await;
    let list = server.operator.get("/v1/sandbox-templates").await.json(200);
    let names: Vec<&str> =
        list["templates"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"standard") && names.contains(&"host"), "{names:?}");
    let first = &list["templates"][0];
    assert!(first["digest"].as_str().unwrap().starts_with("sha256:"));
    assert_eq!((&first["vcpu"], &first["memory_mib"]), (&json!(1), &json!(512)));
    server.stop().await;
}

#[tokio::test]
async fn a_template_is_removed_by_the_operator_once_nothing_uses_it() {
    let server = TestServer::start().await;
    let (path, operator) = ("/v1/sandbox-templates/standard", &server.operator);
    let ann = server.tenant("ann").await;
    let made = ann.create(&json!({ "template": "standard" })).await;
    ann.delete(path).await.problem(403, "forbidden");
    operator.delete(path).await.problem(409, "wrong_state");
    ann.delete(&format!("/v1/sandboxes/{}", made["id"].as_str().unwrap())).await.json(200);
    let removed = operator.delete(path).await.json(200);
    assert_eq!(removed, json!({ "name": "standard", "status": "removed" }));
    operator.delete(path).await.problem(404, "not_found");
    operator.delete("/v1/sandbox-templates/Not%20A%20Name").await.problem(404, "not_found");
    let list = operator.get("/v1/sandbox-templates").await.json(200);
    assert_eq!(list["templates"].as_array().unwrap().len(), 1);
    server.stop().await;
}
