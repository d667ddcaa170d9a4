//! One-shot tasks as clients see them: what the daemon in the sandbox is given, the status, activity, a
//! restart of the server, cancel. The daemon is a double; the real one has tests of its own.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Query, State};
use axum::routing::{post, put};
use axum::{Json, Router};
use engine::Clock;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::harness::{Setup, TestServer};

/// As much of an agent daemon as is asked.
#[derive(Clone)]
struct Daemon {
    /// The code of its end.
    ended: watch::Sender<Option<i32>>,
    given: Arc<Mutex<Vec<Value>>>,
    cancelled: Arc<Mutex<Vec<Value>>>,
    port: u16,
    _task: Arc<AbortOnDropHandle<()>>,
}

#[derive(Clone)]
struct Parts {
    ended: watch::Sender<Option<i32>>,
    given: Arc<Mutex<Vec<Value>>>,
    cancelled: Arc<Mutex<Vec<Value>>>,
}

#[derive(serde::Deserialize)]
struct Wait {
    seconds: u64,
}

impl Parts {
    fn state(&self) -> Json<Value> {
        let given = !self.given.lock().unwrap().is_empty();
        Json(match *self.ended.borrow() {
            Some(code) => json!({ "status": "ended", "exit_code": code }),
            None if given => json!({ "status": "running" }),
            None => json!({ "status": "none" }),
        })
    }
}

impl Daemon {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let ended = watch::Sender::new(None);
        let parts =
            Parts { ended: ended.clone(), given: Arc::default(), cancelled: Arc::default() };
        let (given, cancelled) = (Arc::clone(&parts.given), Arc::clone(&parts.cancelled));
        let begin = async |State(parts): State<Parts>, Json(task): Json<Value>| {
            parts.given.lock().unwrap().push(task);
            parts.state()
        };
        let wait = async |State(parts): State<Parts>, Query(wait): Query<Wait>| {
            let mut ended = parts.ended.subscribe();
            let most = Duration::from_secs(wait.seconds);
            let _ = timeout(most, ended.wait_for(Option::is_some)).await;
            parts.state()
        };
        let cancel = async |State(parts): State<Parts>, Json(why): Json<Value>| {
            parts.cancelled.lock().unwrap().push(why);
            Json(true)
        };
        let routes = Router::new()
            .route("/internal/task", put(begin).get(wait))
            .route("/internal/task/cancel", post(cancel))
            .with_state(parts);
        let task = TaskTracker::new().spawn(async move {
            axum::serve(listener, routes).await.unwrap();
        });
        let _task = Arc::new(AbortOnDropHandle::new(task));
        Self { ended, given, cancelled, port, _task }
    }

    fn given(&self) -> usize {
        self.given.lock().unwrap().len()
    }
}

fn wanted() -> Value {
    json!({ "template": "standard", "agent": "codex", "model": "gpt-5", "task": "fix it",
        "session_id": "abcd-1", "llm_key": "sk-real", "env_vars": { "A": "1", "B": "1" },
        "agent_env": { "B": "2" } })
}

async fn start(daemon: &Daemon) -> TestServer {
    let setup = Setup { clock: Clock::manual(Timestamp::now()), ..Setup::new() };
    setup.pools[0].0.set_agents(daemon.port);
    setup.start().await
}

async fn make(server: &TestServer, body: &Value) -> String {
    let made = server.operator.post("/v1/sandboxes", body).await.json(201);
    assert_eq!(made["agent_status"], "running", "{made}");
    assert!(made.get("agent_exit_code").is_none(), "{made}");
    format!("/v1/sandboxes/{}", made["id"].as_str().unwrap())
}

async fn becomes(server: &TestServer, path: &str, status: &str) -> Value {
    for _ in 0..1000 {
        let seen = server.operator.get(path).await.json(200);
        if seen["agent_status"] == status {
            return seen;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("the agent's status is not {status}");
}

async fn given(daemon: &Daemon, times: usize) -> Value {
    for _ in 0..1000 {
        if daemon.given() >= times {
            return daemon.given.lock().unwrap()[times - 1].clone();
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("the daemon was not asked {times} times");
}

#[tokio::test]
async fn the_agent_is_told_everything_but_the_key() {
    let daemon = Daemon::start().await;
    let server = start(&daemon).await;
    let path = make(&server, &wanted()).await;
    let task = given(&daemon, 1).await;
    for (name, value) in [
        ("AGENT_TYPE", "codex"),
        ("TASK", "fix it"),
        ("LLM_MODEL", "gpt-5"),
        ("LLM_VENDOR", "openai"),
        ("LLM_BASE_URL", "http://198.19.255.254:4010"),
        ("SESSION_ID", "abcd-1"),
    ] {
        assert_eq!(task[name], value, "{task}");
    }
    assert_eq!(task["ENV"]["A"], "1");
    assert_eq!(task["ENV"]["B"], "2");
    assert_eq!(task["ENV"]["OPENAI_API_KEY"], "bastide-relay");
    assert!(!task.to_string().contains("sk-real"), "{task}");
    daemon.ended.send_replace(Some(0));
    let seen = becomes(&server, &path, "completed").await;
    assert_eq!(seen["agent_exit_code"], 0);
    assert!(!seen.to_string().contains("sk-real"));
    server.stop().await;
}

#[tokio::test]
async fn without_the_relay_the_key_is_the_agents_alone() {
    let daemon = Daemon::start().await;
    let server = start(&daemon).await;
    let mut body = wanted();
    body["model_relay"] = false.into();
    make(&server, &body).await;
    let task = given(&daemon, 1).await;
    assert_eq!(task["SECRETS"], json!({ "LLM_API_KEY": "sk-real", "OPENAI_API_KEY": "sk-real" }));
    assert_eq!(task["LLM_BASE_URL"], Value::Null);
    assert!(!task["ENV"].to_string().contains("sk-real"), "{task}");
    server.stop().await;
}

#[tokio::test]
async fn an_agent_that_fails_says_how() {
    let daemon = Daemon::start().await;
    let server = start(&daemon).await;
    let path = make(&server, &wanted()).await;
    daemon.ended.send_replace(Some(3));
    assert_eq!(becomes(&server, &path, "failed").await["agent_exit_code"], 3);
    // It is not shown of what does not run.
    server.operator.post_nothing(&format!("{path}/pause")).await.json(200);
    let paused = server.operator.get(&path).await.json(200);
    assert!(paused.get("agent_status").is_none(), "{paused}");
    server.stop().await;
}

#[tokio::test]
async fn a_working_agent_keeps_its_sandbox_and_one_that_ended_does_not() {
    let daemon = Daemon::start().await;
    let server = start(&daemon).await;
    let path = make(&server, &wanted()).await;
    given(&daemon, 1).await;
    for _ in 0..3 {
        server.clock.advance(Duration::from_secs(50));
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(server.operator.get(&path).await.json(200)["state"], "running");
    daemon.ended.send_replace(Some(0));
    becomes(&server, &path, "completed").await;
    server.clock.advance(Duration::from_secs(61));
    for _ in 0..1000 {
        if server.operator.get(&path).await.json(200)["state"] == "destroyed" {
            return server.stop().await;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("it is not destroyed when its agent has ended");
}

#[tokio::test]
async fn another_server_goes_on_and_starts_nothing_twice() {
    let daemon = Daemon::start().await;
    let server = start(&daemon).await;
    let path = make(&server, &wanted()).await;
    let first = given(&daemon, 1).await;
    let (clock, dir) = (server.clock.clone(), Arc::clone(&server.dir));
    let pools = vec![(server.driver.clone(), None)];
    server.stop().await;
    let server = Setup { clock, pools, dir, ..Setup::new() }.start().await;
    // The same question again, which a daemon that knows the task takes for one.
    assert_eq!(given(&daemon, 2).await, first);
    assert_eq!(server.operator.get(&path).await.json(200)["agent_status"], "running");
    daemon.ended.send_replace(Some(0));
    becomes(&server, &path, "completed").await;
    server.stop().await;
}

#[tokio::test]
async fn cancel_reaches_the_agent() {
    let daemon = Daemon::start().await;
    let server = start(&daemon).await;
    let path = make(&server, &wanted()).await;
    given(&daemon, 1).await;
    let body = json!({ "reason": "user_request" });
    let told = server.operator.post(&format!("{path}/cancel"), &body).await.json(200);
    // It counts attached clients only.
    assert_eq!(told["cancelled"], false);
    assert_eq!(*daemon.cancelled.lock().unwrap(), [body]);
    server.stop().await;
}

#[tokio::test]
async fn clients_cannot_ask_for_the_daemons_inner_routes() {
    let daemon = Daemon::start().await;
    let server = start(&daemon).await;
    let path = make(&server, &wanted()).await;
    given(&daemon, 1).await;
    for inner in ["agents/internal/task", "agents/v1/../internal/task", "agents/%69nternal/task"] {
        let answer = server.operator.get(&format!("{path}/{inner}")).await;
        assert_eq!(answer.status.as_u16(), 404, "{inner}");
    }
    assert_eq!(daemon.given(), 1);
    server.stop().await;
}
