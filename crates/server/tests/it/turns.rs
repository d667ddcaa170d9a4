//! An agent in a turn keeps its sandbox in use, whoever watches; one that waits for its user does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::Json;
use axum::routing::{get, post};
use engine::Clock;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::harness::{Setup, TestServer};

/// As much of an agent daemon as is asked.
struct Daemon {
    busy: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    port: u16,
    _task: AbortOnDropHandle<()>,
}

impl Daemon {
    async fn start() -> Self {
        let (busy, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (working, count) = (Arc::clone(&busy), Arc::clone(&asked));
        let list = get(async move || {
            count.fetch_add(1, Ordering::SeqCst);
            Json(json!({ "sessions": [{ "busy": working.load(Ordering::SeqCst) }] }))
        });
        let working = Arc::clone(&busy);
        let message = post(async move || {
            working.store(true, Ordering::SeqCst);
            Json(Value::Null)
        });
        let routes = axum::Router::new()
            .route("/v1/sessions", list)
            .route("/v1/sessions/s/messages", message);
        let task = TaskTracker::new().spawn(async move {
            axum::serve(listener, routes).await.unwrap();
        });
        Self { busy, asked, port, _task: AbortOnDropHandle::new(task) }
    }
}

async fn start(daemon: &Daemon) -> TestServer {
    let server = Setup { clock: Clock::manual(Timestamp::now()), ..Setup::new() }.start().await;
    server.driver.set_agents(daemon.port);
    server
}

/// A server on what another one left.
async fn start_again(server: TestServer) -> TestServer {
    let (clock, dir) = (server.clock.clone(), Arc::clone(&server.dir));
    let pools = vec![(server.driver.clone(), None)];
    server.stop().await;
    Setup { clock, pools, dir, ..Setup::new() }.start().await
}

async fn state(server: &TestServer, path: &str) -> Value {
    server.operator.get(path).await.json(200)["state"].clone()
}

/// For longer than it may be idle, in steps that are shorter.
async fn lives_on(server: &TestServer, path: &str) {
    for _ in 0..2 {
        server.clock.advance(Duration::from_secs(40));
        // What is shown is less exact than the clock.
        let now = server.clock.now() - Duration::from_secs(1);
        let mut seen = Value::Null;
        let mut waits = 0;
        while seen["last_activity_at"]
            .as_str()
            .is_none_or(|at| at.parse::<Timestamp>().unwrap() < now)
        {
            assert!(waits < 2000, "the turn is not watched: {seen}");
            waits += 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
            seen = server.operator.get(path).await.json(200);
        }
        assert_eq!(seen["state"], "running");
    }
}

async fn ends_idle(server: &TestServer, path: &str) {
    for _ in 0..3000 {
        server.clock.advance(Duration::from_secs(1));
        if state(server, path).await == "destroyed" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never idles");
}

#[tokio::test]
async fn a_turn_keeps_its_sandbox_in_use_also_under_the_next_server() {
    let daemon = Daemon::start().await;
    let server = start(&daemon).await;
    let path = server.operator.sandbox().await;
    let messages = format!("{path}/agents/v1/sessions/s/messages");
    server.operator.post(&messages, &json!({ "message": "work" })).await.json(200);
    lives_on(&server, &path).await;

    let server = start_again(server).await;
    lives_on(&server, &path).await;

    daemon.busy.store(false, Ordering::SeqCst);
    ends_idle(&server, &path).await;
    server.stop().await;
}

#[tokio::test]
async fn a_turn_that_is_paused_goes_on_being_watched_when_it_is_resumed() {
    let daemon = Daemon::start().await;
    let server = start(&daemon).await;
    let path = server.operator.sandbox().await;
    let messages = format!("{path}/agents/v1/sessions/s/messages");
    server.operator.post(&messages, &json!({ "message": "work" })).await.json(200);
    server.operator.post(&format!("{path}/pause"), &Value::Null).await.json(200);
    // Longer than it may be idle, and long enough for the watch to ask meanwhile.
    for _ in 0..8 {
        server.clock.advance(Duration::from_secs(40));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(state(&server, &path).await, "paused");
    }
    server.operator.post(&format!("{path}/resume"), &Value::Null).await.json(200);
    lives_on(&server, &path).await;
    daemon.busy.store(false, Ordering::SeqCst);
    ends_idle(&server, &path).await;
    server.stop().await;
}

#[tokio::test]
async fn a_daemon_that_nobody_started_is_not_started_to_be_asked() {
    let daemon = Daemon::start().await;
    let server = start(&daemon).await;
    let unused = server.operator.sandbox().await;
    let waiting = server.operator.sandbox().await;
    server.operator.get(&format!("{waiting}/agents/v1/sessions")).await.json(200);
    assert_eq!(daemon.asked.load(Ordering::SeqCst), 1);

    let server = start_again(server).await;
    ends_idle(&server, &unused).await;
    ends_idle(&server, &waiting).await;
    assert!(daemon.asked.load(Ordering::SeqCst) <= 2, "only the one that ran, and once");
    server.stop().await;
}
