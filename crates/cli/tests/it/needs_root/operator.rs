//! Life of a sandbox, keys, templates, events, as tables and as JSON.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::Server;

#[test]
fn a_sandbox_goes_through_its_states() {
    let server = Server::start();
    assert_eq!(server.ok(&["sandbox", "pause", "box"]), "box  paused\n");
    assert_eq!(server.ok(&["sandbox", "resume", "box"]), "box  running\n");
    assert_eq!(server.ok(&["sandbox", "stop", "box"]), "box  stopped\n");
    assert_eq!(server.ok(&["sandbox", "start", "box"]), "box  running\n");
    assert_eq!(server.ok(&["sandbox", "rename", "box", "chest"]), "chest\n");
    let list = server.ok(&["sandbox", "list"]);
    assert!(list.starts_with("NAME"), "{list}");
    assert!(
        list.lines().any(|line| line.starts_with("chest") && line.contains("running")),
        "{list}"
    );
    assert_eq!(server.json(&["sandbox", "get", "chest"])["template"], "host");
    server.ok(&["sandbox", "rename", "chest", "box"]);
    assert_eq!(server.ok(&["sandbox", "logs", "box"]), "");
    server.end();
}

#[test]
fn a_key_of_another_owner_sees_nothing_and_ends_when_revoked() {
    let server = Server::start();
    let key = server.json(&["keys", "create", "--owner", "ada", "--plan", "free"]);
    assert_eq!(key["owner"], "usr_ada");
    let secret = key["key"].as_str().unwrap();
    assert_eq!(server.ok(&["sandbox", "list", "--key", secret]).lines().count(), 1);
    let hidden = server.instance().exit_code(&["sandbox", "get", "box", "--key", secret]);
    assert_eq!(hidden.unwrap(), 1);
    let id = key["key_id"].as_str().unwrap();
    assert!(server.ok(&["keys", "list", "--owner", "ada"]).contains(id));
    server.ok(&["keys", "revoke", id, "--owner", "ada"]);
    let revoked = server.fed(&["sandbox", "list", "--key", secret], b"");
    assert_eq!(revoked.status.code(), Some(1));
    server.end();
}

#[test]
fn limits_are_said_and_what_was_done_can_be_verified() {
    let server = Server::start();
    server.json(&["keys", "create", "--owner", "ada", "--plan", "free"]);
    let acme = server.json(&["org", "create", "Acme"]);
    let acme = acme["id"].as_str().unwrap();
    server.ok(&["org", "add", acme, "usr_ada", "--role", "owner"]);
    assert!(server.ok(&["org", "show", acme]).contains("usr_ada"));
    assert!(server.ok(&["org", "list"]).contains("Acme"));
    server.ok(&["org", "limits", acme, "--ephemeral-max", "7"]);
    let limits = server.json(&["org", "limits", "usr_ada"]);
    assert_eq!(limits["effective"]["ephemeral_max"], 7);
    assert_eq!(limits["own"]["ephemeral_max"], serde_json::Value::Null);
    server.ok(&["org", "remove", acme, "usr_ada"]);
    assert!(server.ok(&["audit", "list"]).contains("PUT /v1/admin/organisations/"));
    let head = server.ok(&["audit", "verify"]);
    server.ok(&["audit", "verify", "--since", head.trim()]);
    let refused = |arguments: &[&str]| {
        let output = server.fed(arguments, b"");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let wrong = format!("1:{}", "0".repeat(64));
    assert!(refused(&["audit", "verify", "--since", &wrong]).contains("entry 1"));
    let gone = format!("99:{}", "0".repeat(64));
    assert!(refused(&["audit", "verify", "--since", &gone]).contains("99 is gone"));
    // Somebody with the database in hand.
    let script = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); \
                  db.execute(\"UPDATE audit SET actor = 'usr_eve' WHERE number = 2\"); db.commit()";
    let database = server.instance().data().join("bastide.db");
    let changed = std::process::Command::new("python3").args(["-c", script]).arg(database).status();
    assert!(changed.unwrap().success());
    assert!(refused(&["audit", "verify"]).contains("changed at entry 2"));
    server.end();
}

/// The rows of a table without its header, sorted, one blank between columns.
fn rows(table: &str) -> Vec<String> {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rows: Vec<String> = table.lines().skip(1).map(words).collect();
    rows.sort();
    rows
}

#[test]
fn the_money_of_an_organisation_is_shown_as_tables_and_as_json() {
    let server = Server::start();
    let acme = server.json(&["org", "create", "Acme"]);
    let acme = acme["id"].as_str().unwrap();
    for (owner, cents) in [("usr_ada", "700"), ("usr_bob", "30"), ("usr_eve", "5000")] {
        server.json(&["keys", "create", "--owner", owner, "--plan", "free"]);
        server.ok(&["billing", "grant", owner, cents, "--description", "invoice 7"]);
    }
    // The sandbox `box` is the operator's.
    for owner in ["usr_ada", "usr_bob", "usr_operator"] {
        server.ok(&["org", "add", acme, owner]);
    }
    let balance = server.ok(&["org", "balance", acme]);
    let wanted = ["all 730", "usr_ada 700", "usr_bob 30", "usr_operator 0"];
    assert_eq!(rows(&balance), wanted, "{balance}");
    assert!(balance.starts_with("OWNER") && balance.lines().last().unwrap().starts_with("all"));
    assert_eq!(server.json(&["org", "balance", acme])["credit_balance"], 730);

    let moved = server.ok(&["org", "transactions", acme]);
    let newest_first: Vec<_> = moved.lines().skip(1).collect();
    assert!(newest_first[0].contains("usr_bob") && newest_first[1].contains("usr_ada"), "{moved}");
    let ends = |row: &str, end: &str| rows(&format!("\n{row}"))[0].ends_with(end);
    assert!(ends(newest_first[1], "usr_ada 700 invoice 7"), "{moved}");
    assert_eq!(newest_first.len(), 2, "nothing of those outside: {moved}");
    let page = server.json(&["org", "transactions", acme, "--limit", "1", "--offset", "1"]);
    let page = page["transactions"].as_array().unwrap();
    assert_eq!((page.len(), &page[0]["owner"]), (1, &"usr_ada".into()));

    let used = || rows(&server.ok(&["org", "usage", acme]));
    let operators = |rows: &[String]| rows[2].starts_with("usr_operator 1 ");
    let counted = (0..500).map(|_| used()).find(|rows| {
        operators(rows) || {
            super::pause();
            false
        }
    });
    let counted = counted.expect("the operator's sandbox is counted");
    assert_eq!(counted[..2], ["usr_ada 0 0 0 0", "usr_bob 0 0 0 0"]);
    let members = server.json(&["org", "usage", acme])["members"].as_array().unwrap().len();
    assert_eq!(members, 3);

    for what in ["balance", "transactions", "usage"] {
        let none = "org_00000000000000000000000000000000";
        let refused = server.fed(&["org", what, none], b"");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{what}: {said}");
        let wrong = server.fed(&["org", what, "../../x"], b"");
        assert!(String::from_utf8(wrong.stderr).unwrap().contains("not an id: ../../x"));
    }
    server.end();
}

#[test]
fn templates_are_listed_built_or_not() {
    let server = Server::start();
    let list = server.json(&["template", "list"]);
    let built = |name: &str| {
        let all = list["templates"].as_array().unwrap();
        all.iter().find(|one| one["name"] == name).unwrap()["built"].clone()
    };
    assert_eq!((built("host"), built("standard")), (true.into(), false.into()));
    let unbuilt = server.fed(&["sandbox", "create", "--template", "standard"], b"");
    let text = String::from_utf8_lossy(&unbuilt.stderr).into_owned();
    assert!(text.contains("bastide template build standard"), "{text}");
    server.end();
}

#[test]
fn events_tell_what_happened() {
    let server = Server::start();
    let mut following = server
        .instance()
        .command(&["sandbox", "events", "--after", "0", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(following.stdout.take().unwrap()).lines();
    server.ok(&["sandbox", "stop", "box"]);
    let kinds = lines.map(|line| {
        let event: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        (event["type"].as_str().unwrap().to_owned(), event["reason"].clone())
    });
    let stopped = kinds.into_iter().find(|(kind, _)| kind == "lifecycle.stopped").unwrap();
    following.kill().unwrap();
    following.wait().unwrap();
    assert_eq!(stopped.1, "user_request");
    server.end();
}

#[test]
fn the_servers_configuration_file_says_where_its_things_are() {
    let server = Server::start();
    let (file, own) = (server.files().join("bastide.toml"), server.files().join("templates"));
    std::fs::create_dir(&own).unwrap();
    let data = server.instance().data();
    let text = format!("data_dir = {:?}\ntemplates_dir = {:?}\n", data, own);
    std::fs::write(&file, text).unwrap();
    let standard = concat!(env!("CARGO_MANIFEST_DIR"), "/../../templates/standard.toml");
    let definition = std::fs::read_to_string(standard).unwrap();
    let definition = definition.replace("name = \"standard\"", "name = \"mine\"");
    std::fs::write(own.join("mine.toml"), definition).unwrap();
    let with_file = |arguments: &[&str]| {
        let mut command = server.instance().command(arguments);
        let output = command.env_remove("BASTIDE_DATA_DIR").arg("--config").arg(&file).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    // With the operator's key, which only that directory has.
    assert!(with_file(&["sandbox", "list"]).contains("box"));
    let list = with_file(&["template", "list"]);
    assert!(list.lines().any(|line| line.starts_with("mine ")), "{list}");
    server.end();
}
