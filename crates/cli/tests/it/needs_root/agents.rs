//! The agent daemon in a real sandbox: through the server with the owner's key, and not from inside.

use super::Server;

#[test]
fn a_sandbox_has_an_agent_daemon_that_only_its_owner_commands() {
    let server = Server::start();
    let data = server.files().parent().unwrap().join("data");
    let key = std::fs::read_to_string(data.join("operator.key")).unwrap();
    let key = key.trim().to_owned();
    let endpoint = format!("{}/v1/sandboxes/box/agents", server.url());
    let agents = |words: &[&str]| {
        let connection = ["--endpoint", &endpoint, "--token", &key];
        server.ok(&[&["agents"], words, &connection[..]].concat())
    };
    let listed: serde_json::Value = serde_json::from_str(&agents(&["agents", "list"])).unwrap();
    let ids: Vec<_> = listed["agents"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, ["claude", "codex", "opencode", "amp", "mock"]);

    let made = agents(&["sessions", "create", "s", "--agent", "mock"]);
    assert!(made.contains("mock-s"), "{made}");
    let streamed = agents(&["sessions", "send-message-stream", "s", "--message", "hello there"]);
    assert!(streamed.contains("hello there") && streamed.contains("item.completed"), "{streamed}");
    // The turn goes on after its stream; the sandbox is in use meanwhile.
    agents(&["sessions", "terminate", "s"]);
    let events = agents(&["sessions", "events", "s"]);
    let events: serde_json::Value = serde_json::from_str(&events).unwrap();
    assert_eq!(events["events"].as_array().unwrap().last().unwrap()["type"], "session.ended");

    // Inside: it is there, and it listens to nobody without the token, which nobody finds.
    let inside = |user: &str, script: &str| {
        server.ok(&["sandbox", "exec", "box", "--user", user, "--", script])
    };
    let status = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:2468/v1/";
    assert_eq!(inside("user", &format!("{status}health")).trim(), "200");
    assert_eq!(inside("user", &format!("{status}agents")).trim(), "401");
    let daemon = "$(for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | \
        grep -q -- '--listen 127.0.0.1:2468' && basename $p; done | head -1)";
    let look = format!(
        "p={daemon}; test -n \"$p\" || echo gone; for f in environ mem maps fd/0; do \
         cat /proc/$p/$f >/dev/null 2>&1 && echo read $f; done; echo done"
    );
    for user in ["user", "root"] {
        assert_eq!(inside(user, &look).trim(), "done", "as {user}");
    }
    // To everybody inside, its memory belongs to somebody who is not there.
    assert_eq!(inside("root", &format!("stat -c %u /proc/{daemon}/environ")).trim(), "65534");

    let stranger = server.instance().bastide(&[
        "agents",
        "agents",
        "list",
        "--endpoint",
        &endpoint,
        "--token",
        "e2a_stranger",
    ]);
    assert!(stranger.unwrap_err().to_string().contains("401"));
    server.end();
}
