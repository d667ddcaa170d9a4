//! A server with a real agent daemon behind its sandboxes, whose mock agent says the same every time; and a client
//! of sessions on a real WebSocket.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::client::{Client, PATIENCE};
use crate::harness::{Setup, TestServer};

/// The daemon goes when this does.
pub(crate) struct Daemon {
    pub(crate) port: u16,
    _dir: TempDir,
    _task: AbortOnDropHandle<()>,
}

/// A client on a socket.
pub(crate) struct Talk(pub(crate) WebSocketStream<TcpStream>);

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Closed(pub(crate) u16, pub(crate) String);

impl Daemon {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let config = agentd::Config {
            data_dir: dir.path().to_owned(),
            directory: dir.path().to_owned(),
            environment: BTreeMap::new(),
            token: None,
            task: None,
            cors: None,
            patience: Duration::ZERO,
            adopt_orphans: false,
            mock_delay: Duration::from_millis(1),
            deictic: Vec::new(),
        };
        let task = TaskTracker::new().spawn(async move {
            let forever = CancellationToken::new().cancelled_owned();
            agentd::serve(listener, config, forever).await.unwrap();
        });
        Self { port, _dir: dir, _task: AbortOnDropHandle::new(task) }
    }
}

/// A server whose sandboxes have that daemon.
pub(crate) async fn start(setup: Setup) -> (TestServer, Daemon) {
    let daemon = Daemon::start().await;
    let server = setup.start().await;
    server.driver.set_agents(daemon.port);
    (server, daemon)
}

/// What a create needs at least.
pub(crate) fn wanted(owner: &str) -> Value {
    json!({
        "agent": { "kind": "mock" },
        "template": "standard",
        "llm": { "vendor": "anthropic" },
        "user_id": owner,
    })
}

/// A session of a tenant that [`TestServer::tenant`] made.
pub(crate) async fn session(client: &Client, name: &str) -> Value {
    client.post("/v1/sessions", &wanted(&format!("usr_{name}"))).await.json(201)
}

pub(crate) fn path_of(session: &Value) -> String {
    format!("/v1/sessions/{}", session["chat_session_id"].as_str().unwrap())
}

impl Talk {
    /// With the session's own token and address.
    pub(crate) async fn with(session: &Value) -> Self {
        Self::after(session, None).await
    }

    pub(crate) async fn after(session: &Value, from: Option<u64>) -> Self {
        let from = from.map(|from| format!("?from={from}")).unwrap_or_default();
        let url = format!("{}{from}", session["connect_url"].as_str().unwrap());
        let jwt = session["jwt"].as_str().unwrap();
        Self::open(&url, Some(jwt)).await.unwrap_or_else(|status| panic!("{url}: {status}"))
    }

    /// The status, when it is not 101.
    pub(crate) async fn open(url: &str, token: Option<&str>) -> Result<Self, u16> {
        let mut request = url.into_client_request().unwrap();
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().unwrap();
            request.headers_mut().insert("authorization", value);
        }
        let uri = request.uri().clone();
        let address = (uri.host().unwrap().to_owned(), uri.port_u16().unwrap());
        let stream = TcpStream::connect(address).await.unwrap();
        match timeout(PATIENCE, client_async(request, stream)).await.unwrap() {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(other) => panic!("{url}: {other}"),
        }
    }

    pub(crate) async fn say(&mut self, frame: &Value) {
        self.say_text(&frame.to_string()).await;
    }

    pub(crate) async fn say_text(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.unwrap();
    }

    /// The next text frame, or how it ended. Pings are answered on the way.
    pub(crate) async fn next(&mut self) -> Result<Value, Closed> {
        loop {
            let message = timeout(PATIENCE, self.0.next()).await.unwrap();
            match message {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(frame))) => {
                    let frame = frame.unwrap();
                    return Err(Closed(frame.code.into(), frame.reason.as_str().to_owned()));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Closed(0, error.to_string())),
                None => return Err(Closed(0, "the connection ended without a close".into())),
            }
        }
    }

    /// The next control frame, passing over events.
    pub(crate) async fn control(&mut self) -> Value {
        loop {
            let frame = self.next().await.unwrap();
            if frame.get("sequence").is_none() {
                return frame;
            }
        }
    }

    /// The close, passing over everything.
    pub(crate) async fn closed(&mut self) -> Closed {
        loop {
            if let Err(closed) = self.next().await {
                return closed;
            }
        }
    }

    /// Events until one holds, that one included.
    pub(crate) async fn until(&mut self, last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let frame = self.next().await.unwrap();
            if frame.get("sequence").is_none() {
                continue;
            }
            let found = last(&frame);
            events.push(frame);
            if found {
                return events;
            }
        }
    }
}

/// Upgraded by hand, to send and read bytes.
pub(crate) async fn raw_upgrade(session: &Value) -> TcpStream {
    let url = session["connect_url"].as_str().unwrap().strip_prefix("ws://").unwrap();
    let (address, path) = url.split_once('/').unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let jwt = session["jwt"].as_str().unwrap();
    let request = format!(
        "GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Authorization: Bearer {jwt}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    // The example of RFC 6455.
    assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    stream
}

/// The completed message of the agent with this text.
pub(crate) fn says(text: &str) -> impl Fn(&Value) -> bool {
    move |event| {
        let item = &event["data"]["item"];
        event["type"] == "item.completed"
            && item["role"] == "assistant"
            && item["content"].as_array().unwrap().iter().any(|part| part["text"] == text)
    }
}

/// That nothing is missing and nothing comes twice.
#[track_caller]
pub(crate) fn without_gaps(events: &[Value], from: u64) {
    let sequences: Vec<_> =
        events.iter().map(|event| event["sequence"].as_u64().unwrap()).collect();
    let expected: Vec<_> = (from + 1..=from + events.len() as u64).collect();
    assert_eq!(sequences, expected);
}
