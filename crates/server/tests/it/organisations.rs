//! `/v1/admin`: organisations, limits, the audit log, and who may do what there.

use axum::body::Body;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::harness::TestServer;

async fn put(client: &Client, path: &str, body: &Value) -> Answer {
    let request = client.request("PUT", path).body(Body::from(body.to_string()));
    client.send(request.unwrap()).await
}

async fn id_of(client: &Client) -> String {
    let me = client.get("/v1/tenants/me").await.json(200);
    me["tenant_id"].as_str().unwrap().to_owned()
}

/// Its path.
async fn organisation(server: &TestServer, name: &str) -> String {
    let body = json!({ "name": name });
    let made = server.operator.post("/v1/admin/organisations", &body).await.json(201);
    format!("/v1/admin/organisations/{}", made["id"].as_str().unwrap())
}

#[tokio::test]
async fn a_member_has_what_its_organisation_has_unless_something_is_said_about_itself() {
    let server = TestServer::start().await;
    let ann = server.account("ann").await;
    let acme = organisation(&server, "Acme").await;
    let member = format!("{acme}/members/{}", id_of(&ann).await);
    let joined = put(&server.operator, &member, &json!({ "role": "member" })).await;
    assert_eq!(joined.status, 204);
    let one = json!({ "template": "standard" });
    let limits = format!("{acme}/limits");
    put(&server.operator, &limits, &json!({ "ephemeral_max": 0 })).await.json(200);
    ann.post("/v1/sandboxes", &one).await.problem(429, "quota_exceeded");
    let own = format!("/v1/admin/owners/{}/limits", id_of(&ann).await);
    put(&server.operator, &own, &json!({ "ephemeral_max": 1 })).await.json(200);
    ann.post("/v1/sandboxes", &one).await.json(201);
    ann.post("/v1/sandboxes", &one).await.problem(429, "quota_exceeded");
    put(&server.operator, &limits, &json!({ "plan": "operator" })).await.json(200);
    assert_eq!(ann.get("/v1/tenants/me").await.json(200)["plan"], "operator");
    put(&server.operator, &limits, &json!({})).await.json(200);
    let shown = server.operator.get(&own).await.json(200);
    assert_eq!(shown["effective"]["ephemeral_max"], 1);
    assert_eq!(shown["effective"]["plan"], Value::Null);
    server.stop().await;
}

#[tokio::test]
async fn roles_hold_and_strangers_learn_nothing() {
    let server = TestServer::start().await;
    let (ann, bob, zoe) =
        (server.account("ann").await, server.account("bob").await, server.account("zoe").await);
    let acme = organisation(&server, "Acme").await;
    let path = async |of: &Client| format!("{acme}/members/{}", id_of(of).await);
    let (anns, bobs, zoes) = (path(&ann).await, path(&bob).await, path(&zoe).await);
    put(&server.operator, &anns, &json!({ "role": "owner" })).await;
    put(&server.operator, &bobs, &json!({ "role": "billing" })).await;

    let shown = bob.get(&acme).await.json(200);
    assert_eq!(shown["members"].as_array().unwrap().len(), 2);
    put(&bob, &anns, &json!({ "role": "member" })).await.problem(403, "forbidden");
    bob.delete(&anns).await.problem(403, "forbidden");
    assert_eq!(put(&ann, &bobs, &json!({ "role": "member" })).await.status, 204);
    // Whom it does not have, an owner cannot put in.
    put(&ann, &zoes, &json!({ "role": "member" })).await.problem(404, "not_found");
    put(&ann, &format!("{acme}/limits"), &json!({})).await.problem(403, "forbidden");
    ann.post("/v1/admin/organisations", &json!({ "name": "x" })).await.problem(403, "forbidden");
    ann.get("/v1/admin/organisations").await.problem(403, "forbidden");
    ann.get("/v1/admin/audit").await.problem(403, "forbidden");

    let unknown = "/v1/admin/organisations/org_00000000000000000000000000000000";
    let theirs = zoe.get(&acme).await.problem(404, "not_found").to_string();
    let none = zoe.get(unknown).await.problem(404, "not_found").to_string();
    let id = |path: &str| path.rsplit('/').next().unwrap().to_owned();
    assert_eq!(theirs.replace(&id(&acme), ""), none.replace(&id(unknown), ""));
    put(&zoe, &zoes, &json!({ "role": "owner" })).await.problem(404, "not_found");
    zoe.delete(&anns).await.problem(404, "not_found");

    assert_eq!(ann.delete(&bobs).await.status, 204);
    bob.get(&acme).await.problem(404, "not_found");
    put(&server.operator, &bobs, &json!({ "role": "king" })).await.refuses("role");
    server.operator.post("/v1/admin/organisations", &json!({ "name": "" })).await.refuses("name");
    let limits = format!("{acme}/limits");
    put(&server.operator, &limits, &json!({ "plan": "gold" })).await.refuses("plan");
    put(&server.operator, &limits, &json!({ "ephemeral_max": -1 })).await.refuses("ephemeral_max");
    server.operator.get("/v1/admin/organisations/'%20OR%201=1").await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn changes_are_written_down_with_who_what_outcome_and_from_where() {
    let server = TestServer::start().await;
    let ann = server.account("ann").await;
    let id = id_of(&ann).await;
    let key = ann.post_nothing("/v1/api-keys").await.json(201);
    let path = format!("/v1/api-keys/{}", key["key_id"].as_str().unwrap());
    ann.delete(&path).await.json(200);
    ann.delete("/v1/api-keys/key_0").await.problem(404, "not_found");
    let guess = json!({ "email": "ann@e2a-qa.test", "code": "000000" });
    server.nobody().post("/v1/auth/verify-otp", &guess).await;
    // Anybody can do this as often as they like: it is not written down.
    server.nobody().post_nothing("/v1/api-keys").await.problem(401, "unauthorized");
    let log = server.operator.get("/v1/admin/audit").await;
    let text = String::from_utf8_lossy(&log.bytes).into_owned();
    for secret in [ann.key.as_deref().unwrap(), key["key"].as_str().unwrap()] {
        assert!(!text.contains(secret));
    }
    let log = log.json(200);
    let lines: Vec<_> = log["entries"].as_array().unwrap().iter().collect();
    let line = |actor: &str, action: &str, target: &str, outcome: &str| {
        let fits = |line: &&&Value| {
            (&line["actor"], &line["action"], &line["target"], &line["outcome"])
                == (&json!(actor), &json!(action), &json!(target), &json!(outcome))
        };
        let found = lines.iter().find(fits);
        let found = found.unwrap_or_else(|| panic!("no {actor} {action} {target}: {text}"));
        assert_eq!(found["address"], "127.0.0.1");
    };
    line("", "POST /v1/auth/register", "ann@e2a-qa.test", "201");
    line("", "POST /v1/auth/verify-otp", "ann@e2a-qa.test", "200");
    line("", "POST /v1/auth/verify-otp", "ann@e2a-qa.test", "401");
    line(&id, "POST /v1/api-keys", "/v1/api-keys", "201");
    line(&id, "DELETE /v1/api-keys/{key_id}", &path, "200");
    line(&id, "DELETE /v1/api-keys/{key_id}", "/v1/api-keys/key_0", "404");
    assert_eq!(lines.len(), 6, "{text}");
    let rest = server.operator.get("/v1/admin/audit?after=4&limit=1").await.json(200);
    assert_eq!(rest["entries"].as_array().unwrap().as_slice(), [lines[4].clone()]);
    server.operator.get("/v1/admin/audit?after=x").await.refuses("after");
    server.stop().await;
}

#[tokio::test]
async fn what_is_done_to_sandboxes_is_written_down_too() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.account("ann").await, server.account("bob").await);
    let me = id_of(&ann).await;
    let made = ann.create(&json!({ "template": "standard", "name": "mine" })).await;
    let id = made["id"].as_str().unwrap();
    let path = format!("/v1/sandboxes/{id}");
    ann.patch("/v1/sandboxes/mine", &json!({ "name": "ours", "policy": "none" })).await.json(200);
    let link = ann.post("/v1/sandboxes/ours/ports/8080/link", &json!({})).await.json(201);
    ann.post(&format!("{path}/exec"), &json!({ "command": "true" })).await.json(200);
    bob.delete(&path).await.problem(404, "not_found");
    ann.delete("/v1/sandboxes/ours").await.json(200);
    let mut lines = Vec::new();
    // Their answers do not wait for it.
    for _ in 0..500 {
        let log = server.operator.get("/v1/admin/audit").await.json(200);
        let all = log["entries"].as_array().unwrap().iter();
        let of_sandboxes = |line: &&Value| line["action"].as_str().unwrap().contains("sandboxes");
        lines = all.filter(of_sandboxes).cloned().collect();
        if lines.len() == 5 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let seen: Vec<_> = lines
        .iter()
        .map(|line| {
            assert_eq!(line["address"], "127.0.0.1");
            let text = |field: &str| line[field].as_str().unwrap().to_owned();
            (text("actor"), text("action"), text("target"), text("outcome"))
        })
        .collect();
    let bobs = id_of(&bob).await;
    let of = |actor: &str, action: &str, target: String, outcome: &str| {
        (actor.to_owned(), action.to_owned(), target, outcome.to_owned())
    };
    let one = "/v1/sandboxes/{id}";
    assert_eq!(
        seen,
        [
            of(&me, "POST /v1/sandboxes", id.into(), "201"),
            of(&me, &format!("PATCH {one}"), format!("{id} name=ours policy=none"), "200"),
            of(
                &me,
                &format!("POST {one}/ports/{{port}}/link"),
                "/v1/sandboxes/ours/ports/8080/link".into(),
                "201"
            ),
            of(&bobs, &format!("DELETE {one}"), path.clone(), "404"),
            of(&me, &format!("DELETE {one}"), id.into(), "200"),
        ]
    );
    assert!(!format!("{lines:?}").contains(link["url"].as_str().unwrap()));
    server.stop().await;
}

#[tokio::test]
async fn the_role_billing_reads_the_money_of_its_organisation_and_of_no_other() {
    let server = TestServer::start().await;
    let (ann, bob, eve, zoe) = (
        server.account("ann").await,
        server.account("bob").await,
        server.account("eve").await,
        server.account("zoe").await,
    );
    let (acme, other) = (organisation(&server, "Acme").await, organisation(&server, "Umbra").await);
    let member = async |of: &str, who: &Client| format!("{of}/members/{}", id_of(who).await);
    for (of, who, role) in
        [(&acme, &ann, "member"), (&acme, &bob, "billing"), (&other, &eve, "billing")]
    {
        put(&server.operator, &member(of, who).await, &json!({ "role": role })).await;
    }
    let anns = id_of(&ann).await;
    for (owner, cents) in [(&anns, 700), (&id_of(&bob).await, 30), (&id_of(&eve).await, 5000)] {
        let grant = json!({ "owner": owner, "amount": cents, "description": "invoice 7" });
        let granted = server.operator.post("/v1/admin/credits", &grant).await;
        assert!(granted.status.is_success(), "{granted:?}");
    }
    ann.post("/v1/sandboxes", &json!({ "template": "standard" })).await.json(201);

    let balance = bob.get(&format!("{acme}/balance")).await.json(200);
    assert_eq!(balance["credit_balance"], 730);
    let members = balance["members"].as_array().unwrap();
    assert_eq!(members.len(), 2);
    assert!(members.contains(&json!({ "owner": anns, "credit_balance": 700 })), "{balance}");
    let moved = bob.get(&format!("{acme}/transactions?limit=1&offset=1")).await.json(200);
    let moved = moved["transactions"].as_array().unwrap().clone();
    assert_eq!(
        (moved.len(), &moved[0]["owner"], &moved[0]["amount"]),
        (1, &json!(anns), &json!(700))
    );
    assert_eq!(counted(&bob, &format!("{acme}/usage"), &anns).await, (2, 1));

    for what in ["balance", "transactions", "usage"] {
        let path = format!("{acme}/{what}");
        ann.get(&path).await.problem(403, "forbidden");
        eve.get(&path).await.problem(404, "not_found");
        zoe.get(&path).await.problem(404, "not_found");
        server.operator.get(&path).await.json(200);
        // A key of its own does not do: it can leak into a sandbox.
        let key = bob.post_nothing("/v1/api-keys").await.json(201);
        let key = Client { key: Some(key["key"].as_str().unwrap().into()), ..bob.clone() };
        assert_eq!(key.get(&path).await.status, 401, "{what}");
        let none = format!("/v1/admin/organisations/org_00000000000000000000000000000000/{what}");
        server.operator.get(&none).await.problem(404, "not_found");
    }
    // It reads, and moves nothing; and a member that is one no longer sees nothing.
    let grant = json!({ "owner": anns, "amount": 1 });
    bob.post("/v1/admin/credits", &grant).await.problem(403, "forbidden");
    server.operator.delete(&member(&acme, &bob).await).await;
    bob.get(&format!("{acme}/balance")).await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn the_audit_log_is_as_long_as_the_settings_say() {
    let setup = crate::harness::Setup::with("[audit]\nkeep_days = 30");
    let store = crate::harness::store(setup.dir.path());
    let now = jiff::Timestamp::now();
    for days in [90, 60, 31, 29] {
        let entry = store::AuditEntry {
            at: now - jiff::SignedDuration::from_hours(24 * days),
            actor: "usr_ann".into(),
            action: "POST /v1/api-keys".into(),
            target: format!("{days}"),
            outcome: "201".into(),
            address: String::new(),
        };
        store.audit(entry).await.unwrap();
    }
    let server = setup.start().await;
    for _ in 0..1000 {
        let log = server.operator.get("/v1/admin/audit").await.json(200);
        if log["begins"]["number"] == 3 {
            let entries = log["entries"].as_array().unwrap();
            assert_eq!((&entries[0]["target"], &entries[0]["number"]), (&json!("29"), &json!(4)));
            assert_eq!(entries[1]["action"], "audit.prune");
            return server.stop().await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("old entries are not removed");
}

/// How many members there are, and the sandboxes of one of them, once any are counted.
async fn counted(client: &Client, path: &str, owner: &str) -> (usize, u64) {
    for _ in 0..500 {
        let used = client.get(path).await.json(200);
        let members = used["members"].as_array().unwrap();
        let one = members.iter().find(|one| one["owner"] == owner).unwrap();
        let sandboxes = one["sandbox_count"].as_u64().unwrap();
        if sandboxes > 0 {
            return (members.len(), sandboxes);
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{owner} has no sandbox in {path}");
}
