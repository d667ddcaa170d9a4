//! The agent daemon in a real sandbox: through the server with the owner's key, and not from inside.

use serde_json::Value;

use super::{Server, pause};

/// What reaches the daemon of a sandbox, as its owner.
fn connection(server: &Server, sandbox: &str) -> [String; 4] {
    let key = std::fs::read_to_string(server.instance().data().join("operator.key")).unwrap();
    let endpoint = format!("{}/v1/sandboxes/{sandbox}/agents", server.url());
    ["--endpoint".into(), endpoint, "--token".into(), key.trim().to_owned()]
}

#[track_caller]
fn agents(server: &Server, sandbox: &str, words: &[&str]) -> String {
    let connection = connection(server, sandbox);
    let connection = connection.each_ref().map(String::as_str);
    server.ok(&[&["agents"], words, &connection[..]].concat())
}

/// A minute at most.
#[track_caller]
fn until(what: &str, mut happened: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if happened() {
            return;
        }
        pause();
    }
    panic!("in vain: {what}");
}

#[test]
fn a_daemon_that_cannot_start_says_why_and_its_log_is_there() {
    let server = Server::start();
    let serve = "from socket import *; s = socket(); s.bind(('127.0.0.1', 2468)); s.listen(); \
        open('/workspace/up', 'w'); import time; time.sleep(1000)";
    let taken = format!(
        "nohup python3 -c \"{serve}\" >/dev/null 2>&1 & echo $! > /workspace/pid; \
         while [ ! -e /workspace/up ]; do sleep 0.05; done"
    );
    server.ok(&["sandbox", "exec", "box", "--", &taken]);
    let connection = connection(&server, "box");
    let connection = connection.each_ref().map(String::as_str);
    let list = [&["agents", "agents", "list"], &connection[..]].concat();
    let refused = server.instance().bastide(&list).unwrap_err().to_string();
    let why = "the agent daemon does not start: cannot listen at 127.0.0.1:2468";
    assert!(refused.contains("503") && refused.contains(why), "{refused}");
    server.ok(&["sandbox", "exec", "box", "--", "kill $(cat /workspace/pid)"]);
    until("the port is free", || server.instance().bastide(&list).is_ok());
    let logs: Value =
        serde_json::from_str(&server.curl("/v1/sandboxes/box/logs?stream=agents")).unwrap();
    let logs = logs["content"].as_str().unwrap();
    assert!(logs.contains("cannot listen at") && logs.contains("listening at"), "{logs}");
    server.end();
}

#[test]
fn an_agent_in_a_turn_keeps_its_sandbox_also_when_the_server_is_killed() {
    let mut server = Server::start();
    let create = ["sandbox", "create", "--template", "host", "--name", "brief"];
    server.ok(&[&create[..], &["--idle-timeout-seconds", "15"]].concat());
    agents(&server, "brief", &["sessions", "create", "s", "--agent", "mock"]);
    // Each takes more than ten seconds.
    for _ in 0..10 {
        agents(&server, "brief", &["sessions", "send-message", "s", "--message", "demo"]);
    }
    let instance = server.instance.as_mut().expect("it is taken only at the end");
    instance.kill_server().unwrap();
    instance.start().unwrap();
    // Twice as long as it may be idle, and nobody is there.
    for _ in 0..1500 {
        pause();
    }
    assert_eq!(server.json(&["sandbox", "get", "brief"])["state"], "running");
    agents(&server, "brief", &["sessions", "terminate", "s"]);
    until("it idles", || server.json(&["sandbox", "get", "brief"])["state"] == "destroyed");
    server.end();
}

#[test]
fn a_sandbox_has_an_agent_daemon_that_only_its_owner_commands() {
    let server = Server::start();
    let agents = |words: &[&str]| agents(&server, "box", words);
    let listed: Value = serde_json::from_str(&agents(&["agents", "list"])).unwrap();
    let ids: Vec<_> = listed["agents"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, ["claude", "codex", "opencode", "amp", "mock", "deictic"]);

    let made = agents(&["sessions", "create", "s", "--agent", "mock"]);
    assert!(made.contains("mock-s"), "{made}");
    let streamed = agents(&["sessions", "send-message-stream", "s", "--message", "hello there"]);
    assert!(streamed.contains("hello there") && streamed.contains("item.completed"), "{streamed}");
    // The turn goes on after its stream; the sandbox is in use meanwhile.
    agents(&["sessions", "terminate", "s"]);
    let events = agents(&["sessions", "events", "s"]);
    let events: Value = serde_json::from_str(&events).unwrap();
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

    let [_, endpoint, ..] = connection(&server, "box");
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
