//! What sessions do beyond the contract: they wait in turn, survive a restart, and lose nothing.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::daemon::{Daemon, Setup, parse};

fn quick() -> Setup {
    Setup { mock_delay: Duration::from_millis(2), ..Setup::default() }
}

async fn session(daemon: &Daemon, id: &str) {
    let made = daemon.post(&format!("/v1/sessions/{id}"), &json!({ "agent": "mock" })).await;
    assert_eq!(made.status, 200, "{}", made.body);
}

async fn say(daemon: &Daemon, id: &str, message: &str) {
    let path = format!("/v1/sessions/{id}/messages");
    let said = daemon.post(&path, &json!({ "message": message })).await;
    assert_eq!(said.status, 204, "{}", said.body);
}

async fn events(daemon: &Daemon, id: &str) -> Vec<Value> {
    let list = daemon.get(&format!("/v1/sessions/{id}/events")).await;
    let events = list["events"].as_array().unwrap().clone();
    for (n, event) in events.iter().enumerate() {
        assert_eq!(event["sequence"], n + 1, "no gap");
        assert_eq!(event["event_id"], format!("evt_{}", n + 1));
    }
    events
}

fn completed(events: &[Value]) -> Vec<&str> {
    let done = events.iter().filter(|event| event["type"] == "item.completed");
    done.filter_map(|event| event["data"]["item"]["native_item_id"].as_str()).collect()
}

#[tokio::test]
async fn messages_that_come_during_a_turn_wait_for_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), quick()).await;
    session(&daemon, "s").await;
    for text in ["tool", "one", "two"] {
        say(&daemon, "s", text).await;
    }
    daemon.wait_idle("s").await;
    assert_eq!(
        completed(&events(&daemon, "s").await),
        [
            "mock_0_prompt",
            "mock_1_user",
            "mock_1_tool_call",
            "mock_1_tool_result",
            "mock_1_prompt",
            "mock_2_user",
            "mock_2_reply",
            "mock_2_prompt",
            "mock_3_user",
            "mock_3_reply",
            "mock_3_prompt",
        ]
    );
    // A stream shows the turn of its own message, not the one that happens to run.
    say(&daemon, "s", "tool").await;
    let body = json!({ "message": "mine" });
    let answer = daemon.post("/v1/sessions/s/messages/stream", &body).await;
    let shown: Vec<Value> = answer
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(completed(&shown), ["mock_5_user", "mock_5_reply"]);
    daemon.stop().await;
}

#[tokio::test]
async fn too_many_waiting_messages_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let slow = Setup { mock_delay: Duration::from_secs(60), ..Setup::default() };
    let daemon = Daemon::start(directory.path(), slow).await;
    session(&daemon, "s").await;
    let mut statuses = Vec::new();
    for _ in 0..70 {
        let said = daemon.post("/v1/sessions/s/messages", &json!({ "message": "x" })).await;
        statuses.push(said.status);
    }
    assert!(statuses[..60].iter().all(|status| *status == 204), "{statuses:?}");
    assert_eq!(statuses[69], 400, "{statuses:?}");
    let listed = daemon.get("/v1/sessions").await;
    assert_eq!(listed["sessions"][0]["busy"], true);
    assert!(listed["sessions"][0]["queued"].as_u64().unwrap() > 50);
    daemon.stop().await;
}

#[tokio::test]
async fn a_session_goes_on_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), quick()).await;
    session(&daemon, "s").await;
    let asked = json!({ "agent": "mock", "title": "mine", "env": { "A": "1" } });
    assert_eq!(daemon.post("/v1/sessions/other", &asked).await.status, 200);
    say(&daemon, "s", "hello").await;
    daemon.wait_idle("s").await;
    let before = events(&daemon, "s").await;
    let listed = daemon.get("/v1/sessions").await;
    assert_eq!(listed["sessions"][0]["title"], "mine");
    daemon.stop().await;

    let daemon = Daemon::start(directory.path(), quick()).await;
    assert_eq!(daemon.get("/v1/sessions").await, listed);
    assert_eq!(events(&daemon, "s").await, before);
    let taken = daemon.post("/v1/sessions/s", &json!({ "agent": "mock" })).await;
    assert_eq!(taken.status, 409);
    say(&daemon, "s", "again").await;
    daemon.wait_idle("s").await;
    let after = events(&daemon, "s").await;
    assert_eq!(after[..before.len()], before[..]);
    assert_eq!(after.len(), before.len() + 9);
    assert!(after.iter().all(|event| event["native_session_id"] == "mock-s"));
    daemon.stop().await;
}

#[tokio::test]
async fn a_turn_that_a_restart_cuts_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let slow = Setup { mock_delay: Duration::from_millis(50), ..Setup::default() };
    let daemon = Daemon::start(directory.path(), slow).await;
    session(&daemon, "s").await;
    let body = json!({ "message": "permission" });
    let asked = daemon.post("/v1/sessions/s/messages/stream", &body).await;
    assert!(asked.body.contains("permission.requested"));
    daemon.stop().await;

    let daemon = Daemon::start(directory.path(), quick()).await;
    let events = events(&daemon, "s").await;
    let count = |what: &str| events.iter().filter(|event| event["type"] == what).count();
    assert_eq!(count("permission.requested"), count("permission.resolved"));
    assert_eq!(count("item.started"), count("item.completed"), "nothing is left open");
    assert_eq!(events.last().unwrap()["data"]["code"], "daemon_restarted");
    assert_eq!(count("session.ended"), 0);
    // Too late.
    let path = "/v1/sessions/s/permissions/mock_1_permission/reply";
    let late = daemon.post(path, &json!({ "reply": "once" })).await;
    assert_eq!(late.status, 400);
    daemon.stop().await;
}

#[tokio::test]
async fn a_slow_reader_loses_nothing_and_can_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let quick = Setup { mock_delay: Duration::ZERO, ..Setup::default() };
    let daemon = Daemon::start(directory.path(), quick).await;
    session(&daemon, "s").await;
    // It does not read while some thousand events happen: more than any buffer holds.
    let mut slow = daemon.open("GET /v1/sessions/s/events/sse", &[], None).await;
    for _ in 0..40 {
        say(&daemon, "s", "demo").await;
        daemon.wait_idle("s").await;
    }
    let all = events(&daemon, "s").await.len();
    assert_eq!(all, 5 + 40 * 69);
    let wanted = format!("id: {all}\n");
    let mut text = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&text).contains(&wanted) {
            slow.read_buf(&mut text).await.unwrap();
        }
    };
    timeout(Duration::from_secs(60), read).await.expect("everything comes");
    let ids = |text: &str| {
        let ids = text.lines().filter_map(|line| line.strip_prefix("id: "));
        ids.map(|id| id.parse().unwrap()).collect::<Vec<usize>>()
    };
    assert_eq!(ids(&String::from_utf8_lossy(&text)), (1..=all).collect::<Vec<_>>());

    let back = [("last-event-id".to_owned(), (all - 3).to_string())];
    let path = "GET /v1/sessions/s/events/sse?offset=2";
    let quiet = Duration::from_millis(500);
    let rest = daemon.send(path, &back, None, quiet).await;
    assert_eq!(ids(&rest.body), [all - 2, all - 1, all]);
    daemon.stop().await;
}

#[tokio::test]
async fn a_list_longer_than_a_buffer_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let quick = Setup { mock_delay: Duration::ZERO, ..Setup::default() };
    let daemon = Daemon::start(directory.path(), quick).await;
    session(&daemon, "s").await;
    let long = "long ".repeat(100_000);
    for _ in 0..3 {
        say(&daemon, "s", &long).await;
    }
    daemon.wait_idle("s").await;
    let all = events(&daemon, "s").await;
    assert_eq!(all.len(), 5 + 3 * 9);
    let page = daemon.get("/v1/sessions/s/events?offset=4&limit=20").await;
    assert_eq!(page["events"].as_array().unwrap()[..], all[4..24]);
    assert_eq!(page["hasMore"], true);
    daemon.stop().await;
}

#[tokio::test]
async fn nothing_comes_after_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let slow = Setup { mock_delay: Duration::from_millis(30), ..Setup::default() };
    let daemon = Daemon::start(directory.path(), slow).await;
    session(&daemon, "s").await;
    say(&daemon, "s", "demo").await;
    say(&daemon, "s", "never").await;
    let ended = daemon.post("/v1/sessions/s/terminate", &Value::Null).await;
    assert_eq!(ended.status, 204);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let last = events(&daemon, "s").await;
    assert_eq!(last.last().unwrap()["type"], "session.ended");
    assert_eq!(daemon.post("/v1/sessions/s/interrupt", &Value::Null).await.status, 400);
    daemon.stop().await;
}

#[tokio::test]
async fn an_interrupt_ends_the_turn_and_not_the_session() {
    let directory = tempfile::tempdir().unwrap();
    let slow = Setup { mock_delay: Duration::from_millis(30), ..Setup::default() };
    let daemon = Daemon::start(directory.path(), slow).await;
    session(&daemon, "s").await;
    say(&daemon, "s", "demo").await;
    assert_eq!(daemon.post("/v1/sessions/s/interrupt", &Value::Null).await.status, 204);
    daemon.wait_idle("s").await;
    assert!(events(&daemon, "s").await.len() < 40);
    say(&daemon, "s", "hi").await;
    daemon.wait_idle("s").await;
    assert!(completed(&events(&daemon, "s").await).contains(&"mock_2_reply"));
    daemon.stop().await;
}

#[tokio::test]
async fn what_makes_no_sense_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), quick()).await;
    let long = "x".repeat(300);
    for (path, body, named) in [
        (format!("/v1/sessions/{long}"), json!({ "agent": "mock" }), "session id"),
        ("/v1/sessions/s".into(), json!({ "agent": "mock", "directory": "/nowhere" }), "directory"),
        ("/v1/sessions/s".into(), json!({ "agent": "mock", "env": { "A=B": "" } }), "env"),
    ] {
        let answer = daemon.post(&path, &body).await;
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert!(answer.body.contains(named), "{}", answer.body);
    }
    assert_eq!(daemon.get("/v1/sessions").await["sessions"], json!([]));
    assert_eq!(daemon.get("/v1/agents/mock/models").await, json!({ "models": [] }));
    daemon.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_quiet_stream_says_that_it_is_alive() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), quick()).await;
    session(&daemon, "s").await;
    let mut stream = daemon.open("GET /v1/sessions/s/events/sse?offset=5", &[], None).await;
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains(": keep-alive\n\n") {
        assert!(stream.read_buf(&mut text).await.unwrap() > 0);
    }
    assert_eq!(parse(&text).headers["content-type"], "text/event-stream");
    drop(stream);
    daemon.stop().await;
}
