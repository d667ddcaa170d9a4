//! Who may call: keys, and the refusal of everything else.

use axum::body::Body;

use crate::client::Client;
use crate::harness::{Setup, TestServer};

/// Every route that needs a key, as a method and a path.
pub(crate) const GUARDED: &[(&str, &str)] = &[
    ("POST", "/v1/sandboxes"),
    ("GET", "/v1/sandboxes"),
    ("GET", "/v1/sandboxes/x"),
    ("PATCH", "/v1/sandboxes/x"),
    ("DELETE", "/v1/sandboxes/x"),
    ("POST", "/v1/sandboxes/x/start"),
    ("POST", "/v1/sandboxes/x/stop"),
    ("POST", "/v1/sandboxes/x/pause"),
    ("POST", "/v1/sandboxes/x/resume"),
    ("POST", "/v1/sandboxes/x/cancel"),
    ("POST", "/v1/sandboxes/x/exec"),
    ("POST", "/v1/sandboxes/x/exec/stream"),
    ("GET", "/v1/sandboxes/x/exec/y"),
    ("DELETE", "/v1/sandboxes/x/exec/y"),
    ("GET", "/v1/sandboxes/x/logs"),
    ("GET", "/v1/sandboxes/x/usage"),
    ("GET", "/v1/sandboxes/x/egress"),
    ("GET", "/v1/sandboxes/x/files"),
    ("POST", "/v1/sandboxes/x/files"),
    ("GET", "/v1/sandboxes/x/files/export"),
    ("POST", "/v1/sandboxes/x/files/import"),
    ("GET", "/v1/sandboxes/x/tunnel"),
    ("POST", "/v1/sandboxes/x/tunnel"),
    ("GET", "/v1/sandboxes/x/agents/y"),
    ("GET", "/v1/sandboxes/x/ports/1/y"),
    ("POST", "/v1/sandboxes/x/ports/1/link"),
    ("GET", "/v1/events"),
    ("POST", "/v1/sessions"),
    ("GET", "/v1/sessions"),
    ("POST", "/v1/sessions/resume"),
    ("GET", "/v1/sessions/x"),
    ("DELETE", "/v1/sessions/x"),
    ("POST", "/v1/sessions/x/fork"),
    ("POST", "/v1/sessions/x/token"),
    ("GET", "/v1/sessions/x/events"),
    ("GET", "/v1/sessions/x/transcript"),
    ("GET", "/v1/sessions/x/ws"),
    ("GET", "/v1/sandbox-templates"),
    ("DELETE", "/v1/sandbox-templates/x"),
    ("POST", "/v1/api-keys"),
    ("GET", "/v1/api-keys"),
    ("DELETE", "/v1/api-keys/x"),
    ("GET", "/v1/tenants/me"),
    ("POST", "/v1/tenants/me/api-keys"),
    ("GET", "/v1/tenants/me/api-keys"),
    ("DELETE", "/v1/tenants/me/api-keys/x"),
    ("POST", "/v1/admin/organisations"),
    ("GET", "/v1/admin/organisations"),
    ("GET", "/v1/admin/organisations/org_x"),
    ("GET", "/v1/admin/organisations/org_x/balance"),
    ("GET", "/v1/admin/organisations/org_x/transactions"),
    ("GET", "/v1/admin/organisations/org_x/usage"),
    ("PUT", "/v1/admin/organisations/org_x/limits"),
    ("PUT", "/v1/admin/organisations/org_x/members/usr_x"),
    ("DELETE", "/v1/admin/organisations/org_x/members/usr_x"),
    ("GET", "/v1/admin/owners/usr_x/limits"),
    ("PUT", "/v1/admin/owners/usr_x/limits"),
    ("GET", "/v1/admin/audit"),
    ("POST", "/v1/admin/credits"),
    ("GET", "/v1/billing/auto-topup"),
    ("POST", "/v1/billing/auto-topup"),
    ("GET", "/v1/billing/balance"),
    ("POST", "/v1/billing/checkout"),
    ("GET", "/v1/billing/transactions"),
    ("GET", "/v1/dashboard/overview"),
    ("GET", "/v1/dashboard/sandboxes"),
    ("GET", "/v1/dashboard/usage/daily"),
    ("GET", "/v1/templates"),
    ("GET", "/v1/templates/x"),
    ("POST", "/v1/tenants/me/secrets"),
    ("GET", "/v1/tenants/me/secrets"),
    ("GET", "/v1/tenants/me/secrets/x"),
    ("PUT", "/v1/tenants/me/secrets/x"),
    ("DELETE", "/v1/tenants/me/secrets/x"),
    ("GET", "/v1/usage"),
    ("GET", "/v1/usage/history"),
    ("GET", "/v1/workspaces"),
    ("DELETE", "/v1/workspaces/x/x"),
    ("GET", "/v1/workspaces/x/x"),
    ("DELETE", "/v1/workspaces/x/x/files/y"),
    ("GET", "/v1/workspaces/x/x/files/y"),
    ("PUT", "/v1/workspaces/x/x/files/y"),
    ("GET", "/v1/workspaces/x/x/usage"),
];

#[tokio::test]
async fn every_route_wants_a_key() {
    let server = TestServer::start().await;
    let nobody = server.nobody();
    let stranger = Client { key: Some(format!("e2a_live_{}", "0".repeat(64))), ..nobody };
    for (method, path) in GUARDED {
        for (client, challenge) in
            [(&nobody, r#"Bearer realm="bastide""#), (&stranger, r#"error="invalid_token""#)]
        {
            // A body that is wrong as well: the key comes first.
            let request = client.request(method, path).body(Body::from("not json")).unwrap();
            let answer = client.send(request).await;
            answer.problem(401, "unauthorized");
            assert!(answer.header("www-authenticate").contains(challenge), "{method} {path}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn the_table_of_guarded_routes_is_whole() {
    let document = serde_json::to_value(server::document()).unwrap();
    let mut missing = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let concrete =
                path.replace("{exec_id}", "y").replace("{id}", "x").replace("{key_id}", "x");
            let concrete = concrete.replace("{organisation}", "org_x").replace("{owner}", "usr_x");
            let concrete = concrete.replace("{app_id}", "x").replace("{capset_id}", "x");
            let concrete = concrete.replace("{port}", "1").replace("{path}", "y");
            let concrete = concrete.replace("{name}", "x");
            let open = operation["security"][0] == serde_json::json!({});
            let row = (method.to_ascii_uppercase(), concrete);
            let listed = GUARDED.iter().any(|(m, p)| (*m, *p) == (row.0.as_str(), row.1.as_str()));
            if open == listed {
                missing.push(row);
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

#[tokio::test]
async fn a_key_may_come_in_either_header() {
    let server = TestServer::start().await;
    let key = server.operator.key.clone().unwrap();
    let nobody = server.nobody();
    for (header, value, status) in [
        ("authorization", format!("Bearer {key}"), 200),
        ("authorization", format!("bearer {key}"), 200),
        ("x-api-key", key.clone(), 200),
        ("authorization", key.clone(), 401),
        ("authorization", format!("Basic {key}"), 401),
        ("authorization", "Bearer ".into(), 401),
        ("x-api-key", String::new(), 401),
        ("cookie", format!("key={key}"), 401),
    ] {
        let request = nobody.request("GET", "/v1/sandboxes").header(header, &value);
        let answer = nobody.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, status, "{header}: {value}");
    }
    let in_query = nobody.get(&format!("/v1/sandboxes?token={key}")).await;
    assert_eq!(in_query.status, 401);
    server.stop().await;
}

#[tokio::test]
async fn the_operators_key_outlives_a_restart_and_a_half_written_file() {
    use std::os::unix::fs::PermissionsExt;
    let server = TestServer::start().await;
    let (first, dir) = (server.operator.key.clone(), server.dir.clone());
    let file = dir.path().join(server::OPERATOR_KEY_FILE);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    server.stop().await;

    let again = Setup { dir: dir.clone(), ..Setup::new() }.start().await;
    assert_eq!(again.operator.key, first);
    again.stop().await;

    std::fs::write(&file, "").unwrap();
    let third = Setup { dir, ..Setup::new() }.start().await;
    assert_ne!(third.operator.key, first);
    third.operator.get("/v1/sandboxes").await.json(200);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    third.stop().await;
}
