//! Signing up from the command line, and what the server's log does not hold.

use super::Server;

#[test]
fn who_signs_up_gets_a_key_that_works_and_no_log_has_it() {
    let settings = [("BASTIDE_TEST_MODE", "1"), ("BASTIDE_LOG_LEVEL", "trace")];
    let server = Server::with(&settings, &[]);
    let email = "ann@e2a-qa.test";
    let sent = server.json(&["account", "signup", email]);
    let code = sent["verify_code"].as_str().unwrap();
    let made = server.json(&["account", "verify", email, code]);
    let secrets = ["api_key", "token"].map(|name| made[name].as_str().unwrap().to_owned());
    for secret in &secrets {
        let me = server.json(&["account", "show", "--key", secret]);
        assert_eq!((&me["email"], &me["tenant_id"]), (&email.into(), &made["tenant_id"]));
        let another = server.json(&["keys", "create", "--key", secret]);
        let id = another["key_id"].as_str().unwrap();
        assert!(server.ok(&["keys", "list", "--key", secret]).contains(id));
        server.ok(&["keys", "revoke", id, "--key", secret]);
    }
    server.ok(&["account", "login", email]);
    let refused = server.fed(&["account", "login", email, "000000"], b"");
    assert_eq!(refused.status.code(), Some(1));
    let log = server.instance().data().parent().unwrap().join("server.log");
    let log = String::from_utf8_lossy(&std::fs::read(log).unwrap()).into_owned();
    assert!(log.contains("/v1/tenants/verify"), "{log}");
    for secret in &secrets {
        assert!(!log.contains(secret.as_str()));
    }
    server.end();
}
