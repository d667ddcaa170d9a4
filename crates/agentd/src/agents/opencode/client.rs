//! HTTP to an `OpenCode` server on loopback: small requests, and one stream of events.

use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::error::{Error, Result};

/// The first request of a directory makes the server read all there is.
const ANSWER_WAIT: Duration = Duration::from_secs(90);
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// A longer event is nothing that a session is about.
const EVENT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Client {
    /// Host and port.
    pub(super) address: String,
    authorization: String,
    tasks: TaskTracker,
}

/// An answer: its JSON, `null` if it had none.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Value,
}

impl Client {
    pub(super) fn new(address: &str, password: &str, tasks: &TaskTracker) -> Self {
        let encoded =
            base64::engine::general_purpose::STANDARD.encode(format!("opencode:{password}"));
        let authorization = format!("Basic {encoded}");
        Self { address: address.to_owned(), authorization, tasks: tasks.clone() }
    }

    pub(super) async fn get(&self, path: &str) -> Result<Answer> {
        self.ask(Method::GET, path, None).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.ask(Method::POST, path, Some(body)).await
    }

    /// The events from now on.
    pub(super) async fn events(&self, path: &str) -> Result<Events> {
        let response = timeout(ANSWER_WAIT, self.send(Method::GET, path, None))
            .await
            .map_err(|_| Error::stream("opencode does not answer"))??;
        if response.status() != StatusCode::OK {
            return Err(Error::stream(format!("opencode answered {}: {path}", response.status())));
        }
        Ok(Events { body: response.into_body(), buffer: Vec::new(), data: Vec::new() })
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer> {
        let answer = async {
            let response = self.send(method, path, body).await?;
            let status = response.status();
            let body = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX);
            let bytes = body
                .collect()
                .await
                .map_err(|error| Error::stream(format!("opencode: {error}")))?
                .to_bytes();
            let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            Ok(Answer { status, body })
        };
        timeout(ANSWER_WAIT, answer).await.map_err(|_| Error::stream("opencode does not answer"))?
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>> {
        let gone = |error: String| Error::stream(format!("opencode is out of reach: {error}"));
        let stream =
            TcpStream::connect(&self.address).await.map_err(|error| gone(error.to_string()))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| gone(error.to_string()))?;
        // Ends when the answer was read or dropped.
        self.tasks.spawn(connection);
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.address)
            .header(header::AUTHORIZATION, &self.authorization)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(bytes))
            .map_err(|error| gone(error.to_string()))?;
        sender.send_request(request).await.map_err(|error| gone(error.to_string()))
    }
}

/// A stream of server-sent events.
pub(super) struct Events {
    body: Incoming,
    buffer: Vec<u8>,
    data: Vec<u8>,
}

impl Events {
    /// The data of the next event; `None` at the end. Nothing is lost if the wait is given up.
    pub(super) async fn next(&mut self) -> Option<String> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if let Some(event) = self.line(line.trim_ascii_end()) {
                    return Some(event);
                }
            }
            if self.buffer.len() + self.data.len() > EVENT_BYTES_MAX {
                return None;
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(bytes) = frame.into_data() {
                self.buffer.extend_from_slice(&bytes);
            }
        }
    }

    /// An empty line ends an event.
    fn line(&mut self, line: &[u8]) -> Option<String> {
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            return Some(String::from_utf8_lossy(&data).into_owned())
                .filter(|data| !data.is_empty());
        }
        if let Some(data) = line.strip_prefix(b"data:") {
            if !self.data.is_empty() {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
        }
        None
    }
}
