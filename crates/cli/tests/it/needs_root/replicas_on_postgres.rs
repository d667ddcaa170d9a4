//! Several servers on one `PostgreSQL` and one data directory: what one knows, all know.

use serde_json::{Value, json};

use super::town::{Asker, Town};

const CREATE: &str = r#"{"template":"host","tier":"persistent"}"#;

#[test]
fn servers_on_one_postgresql_agree_and_an_upgrade_keeps_every_sandbox() {
    let (mut town, first) = Town::on_postgres();
    let second = town.join();
    assert_eq!(town.standing(first).0, "leader");
    assert_eq!(town.standing(second).0, "follower");
    assert!(!town.in_data("bastide.db").exists(), "nothing is kept in a file");
    // Sandboxes of either, seen and used by both.
    let ids = [first, second].map(|port| {
        let made = town.ask(port, "POST", "/v1/sandboxes", CREATE);
        assert_eq!(made.status, 201, "{made:?}");
        made.body["id"].as_str().unwrap().to_owned()
    });
    for id in &ids {
        let mark = "sleep 1000 >/dev/null 2>&1 & echo $! > /workspace/pid";
        town.asker(second).exec(id, mark).unwrap();
        assert_eq!(town.asker(first).exec(id, "echo hi").unwrap(), "hi\n");
    }
    rates_hold_over_both(&town, first, second);
    secrets_are_the_same_on_both(&town, first, second);
    let key = signed_up_at_one_revoked_at_the_other(&town, first, second);
    // An upgrade: a new server comes, the old one drains.
    let third = town.join();
    town.end(first);
    let next = town.until_any_leads(&[second, third]);
    for id in &ids {
        for port in [second, third] {
            let alive = "tr '\\0' ' ' < /proc/$(cat /workspace/pid)/cmdline";
            assert_eq!(town.asker(port).exec(id, alive).unwrap().trim_end(), "sleep 1000");
        }
    }
    for port in [second, third] {
        let refused = Asker { port, key: key.clone() }.ask("GET", "/v1/tenants/me", "").unwrap();
        assert_eq!(refused.status, 401, "{refused:?}");
    }
    let made = town.ask(next, "POST", "/v1/sandboxes", CREATE);
    assert_eq!(made.status, 201, "{made:?}");
    town.close(next);
}

/// Three codes an hour, whichever server is asked.
fn rates_hold_over_both(town: &Town, first: u16, second: u16) {
    let asked = [first, second, first, second, first].map(|port| {
        let body = r#"{"email":"bob@e2a-qa.test"}"#;
        town.ask(port, "POST", "/v1/tenants", body).status
    });
    assert_eq!(asked, [200, 200, 200, 429, 429]);
    // What each owner may ask in a minute is counted by one of them for all.
    let asked = [first, second, first, second, first, second, first]
        .map(|port| town.ask(port, "GET", "/v1/templates", "").status);
    assert_eq!(asked, [200, 200, 200, 200, 200, 429, 429]);
}

/// Made, rotated and deleted at one, seen by the other at once; and never a value.
fn secrets_are_the_same_on_both(town: &Town, first: u16, second: u16) {
    let path = "/v1/tenants/me/secrets";
    let named = |keys: &str| format!(r#"{{"name":"keys","values":{{{keys}}}}}"#);
    let made = town.ask(first, "POST", path, &named(r#""A":"hush-one""#));
    assert_eq!(made.status, 201, "{made:?}");
    let again = town.ask(second, "POST", path, &named(r#""B":"hush-two""#));
    assert_eq!(again.status, 409, "{again:?}");
    let one = format!("{path}/keys");
    let rotated = town.ask(second, "PUT", &one, r#"{"values":{"B":"hush-two","C":"hush-three"}}"#);
    assert_eq!(rotated.status, 200, "{rotated:?}");
    for port in [first, second] {
        let shown = town.ask(port, "GET", &one, "");
        assert_eq!(shown.body["key_names"], json!(["B", "C"]), "{shown:?}");
        assert_eq!(shown.body["last_rotated_at"], rotated.body["last_rotated_at"]);
        assert!(!shown.body.to_string().contains("hush"), "{shown:?}");
    }
    // Both at once: one of them comes last, and both say the same afterwards.
    std::thread::scope(|scope| {
        for port in [first, second] {
            let (asker, one) = (town.asker(port), &one);
            scope.spawn(move || {
                for _ in 0..10 {
                    let body = format!(r#"{{"values":{{"FROM_{port}":"hush"}}}}"#);
                    assert_eq!(asker.ask("PUT", one, &body).unwrap().status, 200);
                }
            });
        }
    });
    let shown = [first, second].map(|port| town.ask(port, "GET", &one, "").body);
    assert_eq!(shown[0], shown[1]);
    assert_eq!(shown[0]["key_names"].as_array().unwrap().len(), 1);
    assert_eq!(town.ask(second, "DELETE", &one, "").status, 200);
    for port in [first, second] {
        assert_eq!(town.ask(port, "GET", &one, "").status, 404);
        assert_eq!(town.ask(port, "DELETE", &one, "").status, 404);
        let listed = town.ask(port, "GET", path, "");
        assert_eq!(listed.body["bundles"], json!([]), "{listed:?}");
    }
}

/// The key, which is good for nothing now.
fn signed_up_at_one_revoked_at_the_other(town: &Town, first: u16, second: u16) -> String {
    let email = "ann@e2a-qa.test";
    let sent = town.ask(first, "POST", "/v1/tenants", &format!(r#"{{"email":"{email}"}}"#));
    let code = sent.body["verify_code"].as_str().unwrap();
    let body = format!(r#"{{"email":"{email}","code":"{code}"}}"#);
    let made = town.ask(second, "POST", "/v1/tenants/verify", &body);
    let text = |name: &str| made.body[name].as_str().unwrap().to_owned();
    let me = |port, secret: String| {
        let answer = Asker { port, key: secret }.ask("GET", "/v1/tenants/me", "").unwrap();
        (answer.status, answer.body["tenant_id"].clone())
    };
    for port in [first, second, first] {
        for secret in [text("api_key"), text("token")] {
            assert_eq!(me(port, secret), (200, Value::String(text("tenant_id"))));
        }
    }
    let path = format!("/v1/tenants/me/api-keys/{}", text("key_id"));
    let revoked = Asker { port: second, key: text("token") }.ask("DELETE", &path, "").unwrap();
    assert_eq!(revoked.status, 204, "{revoked:?}");
    for port in [first, second] {
        assert_eq!(me(port, text("api_key")).0, 401);
    }
    text("api_key")
}
