//! What tests of sessions have in common: a daemon that can be restarted, and a client on a WebSocket.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::Clock;
use futures_util::{SinkExt, StreamExt};
use jiff::Timestamp;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::{Client, PATIENCE};
use crate::harness::{Setup, TestServer};

/// The agent daemon; all sandboxes of a test have the same one.
pub(super) struct Daemon {
    dir: Arc<TempDir>,
    pub(super) port: u16,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Daemon {
    pub(super) async fn start() -> Self {
        Self::on(Arc::new(tempfile::tempdir().unwrap()), 0).await
    }

    async fn on(dir: Arc<TempDir>, port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = agentd::Config {
            data_dir: dir.path().to_owned(),
            directory: dir.path().to_owned(),
            environment: BTreeMap::new(),
            token: None,
            task: None,
            cors: None,
            patience: Duration::ZERO,
            adopt_orphans: false,
            mock_delay: Duration::ZERO,
            deictic: Vec::new(),
        };
        let stop = CancellationToken::new();
        let until = stop.clone();
        let serving = TaskTracker::new().spawn(async move {
            agentd::serve(listener, config, until.cancelled_owned()).await.unwrap();
        });
        Self { dir, port, stop, serving }
    }

    /// With what it kept, and without what it had in memory.
    pub(super) async fn restart(self) -> Self {
        let (dir, port) = (Arc::clone(&self.dir), self.port);
        self.stop().await;
        Self::on(dir, port).await
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        timeout(PATIENCE * 3, self.serving).await.unwrap().unwrap();
    }
}

pub(super) async fn server(daemon: &Daemon) -> TestServer {
    let setup = Setup::new();
    setup.pools[0].0.set_agents(daemon.port);
    setup.start().await
}

/// One whose time passes only when a test says so.
pub(super) async fn server_with_a_manual_clock(daemon: &Daemon) -> TestServer {
    let setup = Setup { clock: Clock::manual(Timestamp::now()), ..Setup::new() };
    setup.pools[0].0.set_agents(daemon.port);
    setup.start().await
}

/// A server on what another one left.
pub(super) async fn another(server: TestServer) -> TestServer {
    let (clock, dir) = (server.clock.clone(), Arc::clone(&server.dir));
    let pools = vec![(server.driver.clone(), None)];
    server.stop().await;
    Setup { clock, pools, dir, ..Setup::new() }.start().await
}

pub(super) fn wanted(user: &str) -> Value {
    json!({ "agent": { "kind": "mock" }, "template": "standard", "llm": { "vendor": "openai" },
        "user_id": user })
}

/// A session that was made, or resumed, and how to connect to it.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) id: String,
    pub(super) jwt: String,
    pub(super) sandbox: String,
}

impl Made {
    pub(super) async fn new(client: &Client, body: &Value) -> Self {
        Self::of(&client.post("/v1/sessions", body).await.json(201))
    }

    pub(super) fn of(answer: &Value) -> Self {
        let text = |name: &str| answer[name].as_str().unwrap().to_owned();
        Self { id: text("chat_session_id"), jwt: text("jwt"), sandbox: text("sandbox_id") }
    }

    pub(super) async fn attach(&self, address: SocketAddr, from: u64) -> Socket {
        let socket = self.try_attach(address, from).await;
        socket.unwrap_or_else(|status| panic!("the upgrade was answered {status}"))
    }

    /// The status of an upgrade that is refused; 0 when nobody answers.
    pub(super) async fn try_attach(&self, address: SocketAddr, from: u64) -> Result<Socket, u16> {
        let path = format!("/v1/sessions/{}/ws?from={from}", self.id);
        Socket::open(address, &path, &self.jwt).await
    }

    pub(super) fn path(&self) -> String {
        format!("/v1/sessions/{}", self.id)
    }
}

/// Numbers that look random and are the same in every run.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

/// What a client has so far.
#[derive(Default)]
pub(super) struct Pieces(pub(super) Vec<Value>);

impl Pieces {
    pub(super) fn last(&self) -> u64 {
        self.0.last().map_or(0, sequence)
    }

    #[track_caller]
    pub(super) fn take(&mut self, event: Value) {
        assert_eq!(sequence(&event), self.last() + 1, "after {} events", self.0.len());
        self.0.push(event);
    }

    #[track_caller]
    pub(super) fn take_all(&mut self, events: Vec<Value>) {
        events.into_iter().for_each(|event| self.take(event));
    }
}

/// What a client is sent.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Came {
    Event(Value),
    Control(Value),
    Close(u16, String),
    Gone,
}

pub(super) struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    async fn open(address: SocketAddr, path: &str, jwt: &str) -> Result<Self, u16> {
        let mut stream = TcpStream::connect(address).await.map_err(|_| 0_u16)?;
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {jwt}\r\n\
             connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.map_err(|_| 0_u16)?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            match timeout(PATIENCE, stream.read_u8()).await {
                Ok(Ok(byte)) => answer.push(byte),
                Ok(Err(_)) | Err(_) => return Err(0),
            }
        }
        let status = std::str::from_utf8(&answer).unwrap().split(' ').nth(1).unwrap();
        match status.parse().unwrap() {
            101 => Ok(Self(WebSocketStream::from_raw_socket(stream, Role::Client, None).await)),
            status => Err(status),
        }
    }

    pub(super) async fn next(&mut self) -> Came {
        loop {
            let came = timeout(PATIENCE, self.0.next()).await.expect("nothing comes");
            return match came {
                Some(Ok(Message::Text(text))) => {
                    let value: Value = serde_json::from_str(&text).unwrap();
                    match value.get("sequence") {
                        Some(_) => Came::Event(value),
                        None => Came::Control(value),
                    }
                }
                Some(Ok(Message::Close(frame))) => {
                    let frame = frame.unwrap();
                    Came::Close(frame.code.into(), frame.reason.to_string())
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                Some(Ok(other)) => panic!("not a frame of ours: {other:?}"),
                Some(Err(_)) | None => Came::Gone,
            };
        }
    }

    pub(super) async fn say(&mut self, frame: &Value) {
        self.0.send(Message::text(frame.to_string())).await.unwrap();
    }

    /// Whether it was taken by the connection.
    pub(super) async fn try_say(&mut self, frame: &Value) -> bool {
        self.0.send(Message::text(frame.to_string())).await.is_ok()
    }

    /// Events up to the one that this is said of.
    pub(super) async fn events_until(&mut self, last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                Came::Event(event) => {
                    let over = last(&event);
                    events.push(event);
                    if over {
                        return events;
                    }
                }
                Came::Control(_) => {}
                other => panic!("{other:?} after {} events: {events:?}", events.len()),
            }
        }
    }

    /// Has the agent say this, and gives the events up to then.
    pub(super) async fn echo(&mut self, text: &str) -> Vec<Value> {
        self.say(&message(&format!("echo {text}"))).await;
        self.events_until(|event| says(event, text)).await
    }

    /// The next frame beside the log.
    pub(super) async fn control(&mut self) -> Value {
        loop {
            match self.next().await {
                Came::Event(_) => {}
                Came::Control(frame) => return frame,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Everything up to the close: the events, and how it closed.
    pub(super) async fn rest(&mut self) -> (Vec<Value>, Came) {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                Came::Event(event) => events.push(event),
                Came::Control(_) => {}
                over => return (events, over),
            }
        }
    }
}

/// What a client says to the agent.
pub(super) fn message(text: &str) -> Value {
    json!({ "type": "message", "message": text })
}

/// Whether an event is the completed message of this text.
pub(super) fn says(event: &Value, text: &str) -> bool {
    let item = &event["data"]["item"];
    event["type"] == "item.completed"
        && item["kind"] == "message"
        && item["role"] == "assistant"
        && item["content"][0]["text"].as_str().is_some_and(|said| said.contains(text))
}

pub(super) fn is_prompt(event: &Value) -> bool {
    says(event, "Mock agent ready")
}

pub(super) fn sequence(event: &Value) -> u64 {
    event["sequence"].as_u64().unwrap()
}

/// The whole log, as `GET …/events` gives it.
pub(super) async fn log(client: &Client, made: &Made) -> Vec<Value> {
    let (mut all, mut from) = (Vec::<Value>::new(), 0);
    loop {
        let path = format!("{}/events?from={from}", made.path());
        let page = client.get(&path).await.json(200);
        all.extend(page["events"].as_array().unwrap().iter().cloned());
        if page["has_more"] == false {
            return all;
        }
        from = all.last().map_or(0, sequence);
    }
}

/// Waits until the session is so.
pub(super) async fn becomes(client: &Client, made: &Made, status: &str) -> Value {
    for _ in 0..2000 {
        let seen = client.get(&made.path()).await.json(200);
        if seen["status"] == status {
            return seen;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("the session is not {status}");
}
