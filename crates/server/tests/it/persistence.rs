//! Conversations that a backend keeps too: everything gets there, once and in order, whatever fails, and
//! nothing waits for it.

mod addresses;
mod doubles;
mod reference;

use std::sync::Arc;
use std::time::Duration;

use engine::Clock;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::sleep;

use self::doubles::{AUTH, Backend, Daemon, Mood};
use crate::harness::{Setup, TestServer};

fn setup(backend: &Backend) -> Setup {
    let allowed = format!("[persistence]\nallowed_urls = '{}'", backend.origin);
    Setup { clock: Clock::manual(Timestamp::now()), ..Setup::with(&allowed) }
}

async fn start(backend: &Backend, daemon: &Daemon) -> TestServer {
    let setup = setup(backend);
    setup.pools[0].0.set_agents(daemon.port);
    setup.start().await
}

async fn start_again(server: TestServer, backend: &Backend) -> TestServer {
    let (clock, dir) = (server.clock.clone(), Arc::clone(&server.dir));
    let pools = vec![(server.driver.clone(), None)];
    server.stop().await;
    Setup { clock, dir, pools, ..setup(backend) }.start().await
}

fn wanted(backend: &Backend) -> Value {
    json!({ "template": "standard", "agent": "claude", "llm_key": "sk-1",
        "persistence_url": backend.url(), "persistence_auth_header": AUTH })
}

async fn make(server: &TestServer, body: &Value) -> String {
    let made = server.operator.post("/v1/sandboxes", body).await.json(201);
    made["id"].as_str().unwrap().to_owned()
}

/// What begins a turn.
async fn say(server: &TestServer, sandbox: &str, session: &str) {
    let path = format!("/v1/sandboxes/{sandbox}/agents/v1/sessions/{session}/messages");
    let answer = server.operator.post(&path, &json!({ "message": "go" })).await;
    assert_eq!(answer.status, 204);
}

#[tokio::test]
async fn all_that_agents_do_gets_there_once_and_in_order_whatever_fails() {
    let (backend, daemon) = (Backend::start().await, Daemon::start().await);
    let server = start(&backend, &daemon).await;
    let sandbox = make(&server, &wanted(&backend)).await;
    // Every kind of failure, each on a call of its own.
    let fails = [
        Mood::Refuses(503),
        Mood::Keeps,
        Mood::KeepsAndFails,
        Mood::Late,
        Mood::Refuses(400),
        Mood::KeepsAndFails,
        Mood::Refuses(429),
        Mood::Refuses(401),
    ];
    daemon.busy(true);
    daemon.records("one", 300);
    daemon.records("a b/ö", 1);
    say(&server, &sandbox, "one").await;
    let all: u64 = 300 + 130 * fails.len() as u64;
    let others: u64 = 1 + 7 * fails.len() as u64;
    for mood in fails {
        let before = backend.posts();
        backend.next([mood]);
        daemon.records("one", 130);
        daemon.records("a b/ö", 7);
        backend.is_asked(before + 1).await;
    }
    daemon.busy(false);
    let count = all + others;
    let events = backend.has(&sandbox, usize::try_from(count).unwrap()).await;
    assert!(events.keys().copied().eq(1..=count));
    for (session, count) in [("one", all), ("a b/ö", others)] {
        let of: Vec<u64> = events
            .values()
            .filter(|event| event["session_id"] == session)
            .map(|event| event["sequence"].as_u64().unwrap())
            .collect();
        assert!(of.iter().copied().eq(1..=count), "{session}: {of:?}");
    }
    assert!(events.values().all(|event| event["data"]["delta"] == "ünïcode ☃"));
    server.stop().await;
}

#[tokio::test]
async fn a_backend_that_is_away_holds_up_nobody_and_gets_everything_later() {
    let (backend, daemon) = (Backend::start().await, Daemon::start().await);
    let server = start(&backend, &daemon).await;
    backend.always(Some(Mood::Refuses(502)));
    let sandbox = make(&server, &wanted(&backend)).await;
    daemon.records("s", 40);
    say(&server, &sandbox, "s").await;
    backend.is_asked(1).await;
    // The agent goes on, and so does its owner: the sandbox is gone before its backend is back.
    daemon.records("s", 2);
    say(&server, &sandbox, "s").await;
    sleep(Duration::from_millis(300)).await;
    server.operator.delete(&format!("/v1/sandboxes/{sandbox}")).await.json(200);
    let server = start_again(server, &backend).await;
    assert!(backend.kept.lock().unwrap().events.values().all(|all| all.is_empty()));
    backend.always(None);
    assert_eq!(backend.has(&sandbox, 42).await.len(), 42);
    server.stop().await;
}

#[tokio::test]
async fn the_next_server_reads_on_where_the_last_one_was() {
    let (backend, daemon) = (Backend::start().await, Daemon::start().await);
    let server = start(&backend, &daemon).await;
    let sandbox = make(&server, &wanted(&backend)).await;
    daemon.busy(true);
    daemon.records("s", 10);
    say(&server, &sandbox, "s").await;
    backend.has(&sandbox, 10).await;
    // The turn goes on while there is no server.
    let (clock, dir) = (server.clock.clone(), Arc::clone(&server.dir));
    let pools = vec![(server.driver.clone(), None)];
    server.stop().await;
    daemon.records("s", 15);
    let server = Setup { clock, dir, pools, ..setup(&backend) }.start().await;
    daemon.busy(false);
    let events = backend.has(&sandbox, 25).await;
    assert!(events.keys().copied().eq(1..=25));
    server.stop().await;
}

#[tokio::test]
async fn a_batch_that_is_too_large_comes_in_halves_and_an_event_that_is_goes_missing() {
    let (backend, daemon) = (Backend::start().await, Daemon::start().await);
    let server = start(&backend, &daemon).await;
    let sandbox = make(&server, &wanted(&backend)).await;
    backend.always(Some(Mood::AtMost(3)));
    daemon.records("s", 20);
    say(&server, &sandbox, "s").await;
    assert_eq!(backend.has(&sandbox, 20).await.len(), 20);
    // Not even one.
    backend.next([Mood::Refuses(413)]);
    daemon.records("s", 1);
    say(&server, &sandbox, "s").await;
    backend.is_asked(backend.posts() + 1).await;
    let store = crate::harness::store(server.dir.path());
    for _ in 0..500 {
        if store.persisted(&sandbox).await.unwrap().unwrap().delivered == 21 {
            assert_eq!(backend.has(&sandbox, 20).await.len(), 20);
            return server.stop().await;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("it waits for ever");
}

#[tokio::test]
async fn a_backend_that_wants_no_more_gets_no_more_of_that_conversation() {
    let (backend, daemon) = (Backend::start().await, Daemon::start().await);
    let server = start(&backend, &daemon).await;
    let (gone, other) =
        (make(&server, &wanted(&backend)).await, make(&server, &wanted(&backend)).await);
    backend.next([Mood::Refuses(410)]);
    daemon.records("s", 5);
    say(&server, &gone, "s").await;
    backend.is_asked(1).await;
    let store = crate::harness::store(server.dir.path());
    for _ in 0..500 {
        if store.persisted(&gone).await.unwrap().unwrap().waiting_bytes == 0 {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    say(&server, &other, "s").await;
    assert_eq!(backend.has(&other, 5).await.len(), 5);
    assert!(backend.kept.lock().unwrap().events[&gone].is_empty());
    server.stop().await;
}

async fn one_shot(server: &TestServer, body: &Value, daemon: &Daemon, result: &str) -> String {
    let sandbox = make(server, body).await;
    let file = format!("/v1/sandboxes/{sandbox}/files?path=/tmp/result.txt");
    server.operator.upload(&file, result.to_owned()).await.json(200);
    for _ in 0..1000 {
        if daemon.recorded.lock().unwrap().task.is_some() {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    daemon.recorded.lock().unwrap().ended = Some(0);
    sandbox
}

fn texts(events: &std::collections::BTreeMap<u64, Value>) -> Vec<(String, String)> {
    let done = events.values().filter(|event| event["type"] == "item.completed");
    done.map(|event| {
        let item = &event["data"]["item"];
        let text = item["content"][0]["text"].as_str().unwrap();
        (item["role"].as_str().unwrap().to_owned(), text.to_owned())
    })
    .collect()
}

fn pair(role: &str, text: &str) -> (String, String) {
    (role.to_owned(), text.to_owned())
}

#[tokio::test]
async fn a_one_shot_task_is_a_conversation_also_when_the_server_changes() {
    let (backend, daemon) = (Backend::start().await, Daemon::start().await);
    let server = start(&backend, &daemon).await;
    let mut body = wanted(&backend);
    body["task"] = "what is 6 times 7?".into();
    let sandbox = one_shot(&server, &body, &daemon, "42\n").await;
    let events = backend.has(&sandbox, 6).await;
    let kinds: Vec<_> = events.values().map(|event| event["type"].as_str().unwrap()).collect();
    let pair_of = ["item.started", "item.completed"];
    let all = [&["session.started"], &pair_of[..], &pair_of[..], &["session.ended"]].concat();
    assert_eq!(kinds, all);
    let said = [pair("user", "what is 6 times 7?"), pair("assistant", "42\n")];
    assert_eq!(texts(&events), said);
    assert_eq!(events[&6]["data"]["reason"], "completed");
    // The next server asks the same daemon, hears the same, and says nothing twice.
    let server = start_again(server, &backend).await;
    server.operator.get(&format!("/v1/sandboxes/{sandbox}")).await.json(200);
    sleep(Duration::from_millis(500)).await;
    assert_eq!(backend.has(&sandbox, 6).await.len(), 6);
    let task = daemon.recorded.lock().unwrap().task.clone().unwrap();
    assert!(!task.to_string().contains("sk_secret"), "{task}");
    server.stop().await;
}

#[tokio::test]
async fn a_conversation_goes_on_in_another_sandbox() {
    let (backend, daemon) = (Backend::start().await, Daemon::start().await);
    let server = start(&backend, &daemon).await;
    let mut body = wanted(&backend);
    body["task"] = "what is 6 times 7?".into();
    body["session_id"] = "chat-1".into();
    one_shot(&server, &body, &daemon, "42").await;
    backend.has("chat-1", 6).await;
    let first = daemon.recorded.lock().unwrap().task.clone().unwrap();
    assert_eq!(first["TASK"], "what is 6 times 7?");
    assert_eq!(first["SESSION_ID"], Value::Null, "the agent has no such session: {first}");

    *daemon.recorded.lock().unwrap() = doubles::Recorded::default();
    body["task"] = "and plus one?".into();
    one_shot(&server, &body, &daemon, "43").await;
    let events = backend.has("chat-1", 12).await;
    assert!(events.keys().copied().eq(1..=12));
    let said = ["what is 6 times 7?", "42", "and plus one?", "43"];
    assert!(texts(&events).iter().map(|(_, text)| text.as_str()).eq(said));
    let second = daemon.recorded.lock().unwrap().task.clone().unwrap();
    let task = second["TASK"].as_str().unwrap();
    assert!(task.contains("[user]\nwhat is 6 times 7?\n\n[assistant]\n42\n"), "{task}");
    assert!(task.ends_with("and plus one?"), "{task}");
    assert!(backend.kept.lock().unwrap().loads.iter().all(|one| one == "chat-1"));
    server.stop().await;
}

#[tokio::test]
async fn a_task_does_not_wait_for_a_history_that_cannot_be_had() {
    let (backend, daemon) = (Backend::start().await, Daemon::start().await);
    let server = start(&backend, &daemon).await;
    backend.always(Some(Mood::Refuses(500)));
    let mut body = wanted(&backend);
    body["task"] = "go".into();
    body["session_id"] = "chat-2".into();
    one_shot(&server, &body, &daemon, "done").await;
    let task = daemon.recorded.lock().unwrap().task.clone().unwrap();
    assert_eq!(task["TASK"], "go");
    assert_eq!(backend.kept.lock().unwrap().wrong, Vec::<String>::new());
    server.stop().await;
}

#[tokio::test]
async fn the_authorization_is_readable_nowhere() {
    let (backend, daemon) = (Backend::start().await, Daemon::start().await);
    let server = start(&backend, &daemon).await;
    let sandbox = make(&server, &wanted(&backend)).await;
    daemon.records("s", 3);
    say(&server, &sandbox, "s").await;
    backend.has(&sandbox, 3).await;
    let shown = server.operator.get(&format!("/v1/sandboxes/{sandbox}")).await.json(200);
    assert!(!shown.to_string().contains("sk_secret"), "{shown}");
    let env = json!({ "command": "env" });
    let env = server.operator.post(&format!("/v1/sandboxes/{sandbox}/exec"), &env).await.json(200);
    assert!(!env.to_string().contains("sk_secret"), "{env}");
    let dir = Arc::clone(&server.dir);
    server.stop().await;
    let mut dirs = vec![dir.path().to_owned()];
    let mut looked_at = 0;
    while let Some(one) = dirs.pop() {
        for entry in std::fs::read_dir(one).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if let Ok(bytes) = std::fs::read(&path) {
                looked_at += 1;
                let found = bytes.windows(9).any(|part| part == b"sk_secret");
                assert!(!found, "{}", path.display());
            }
        }
    }
    assert!(looked_at > 3);
}

#[test]
fn the_contract_is_as_reviewed() {
    let document = server::persistence_contract().to_pretty_json().unwrap() + "\n";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/persistence.openapi.json");
    if std::env::var_os("INSTA_UPDATE").is_some_and(|how| how == "always") {
        std::fs::write(path, &document).unwrap();
    }
    let reviewed = std::fs::read_to_string(path).unwrap();
    assert!(document == reviewed, "run this test with INSTA_UPDATE=always, and review {path}");
}
