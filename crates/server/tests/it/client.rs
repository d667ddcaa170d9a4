//! A small HTTP client: one connection a request, so that a test decides when it goes away.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tokio_util::task::TaskTracker;

/// Longer than anything here takes; a test that hangs says so.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Whom a request comes from.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) key: Option<String>,
}

/// An answer, read whole.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
}

/// An answer that is still coming. Dropping it closes the connection.
pub(crate) struct Open {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Incoming,
    _connection: AbortOnDropHandle<()>,
}

/// One server-sent event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) id: String,
    pub(crate) event: String,
    pub(crate) data: String,
}

impl Client {
    pub(crate) fn request(&self, method: &str, path: &str) -> hyper::http::request::Builder {
        let method: Method = method.parse().unwrap();
        let request = Request::builder().method(method).uri(path).header("host", "test");
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    pub(crate) async fn open(&self, request: Request<Body>) -> Open {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let task = TaskTracker::new().spawn(async move {
            // Broken off by either side: the test looks at the answer.
            let _ = connection.with_upgrades().await;
        });
        let connection = AbortOnDropHandle::new(task);
        let answer = timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap();
        let (head, body) = answer.into_parts();
        Open { status: head.status, headers: head.headers, body, _connection: connection }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        self.open(request).await.whole().await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request("GET", path).body(Body::empty()).unwrap()).await
    }

    /// `None` when the connection breaks, or the answer is no JSON of a success.
    pub(crate) async fn try_get(&self, path: &str) -> Option<Value> {
        self.try_send(self.request("GET", path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn try_post(&self, path: &str, body: &Value) -> Option<Value> {
        let request = self.request("POST", path).header("content-type", "application/json");
        self.try_send(request.body(Body::from(body.to_string())).unwrap()).await
    }

    async fn try_send(&self, request: Request<Body>) -> Option<Value> {
        let stream = TcpStream::connect(self.address).await.ok()?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
        let task = TaskTracker::new().spawn(async move { drop(connection.await) });
        let _connection = AbortOnDropHandle::new(task);
        let asked = async {
            let answer = sender.send_request(request).await.ok()?;
            let good = answer.status().is_success();
            let body = answer.into_body().collect().await.ok()?.to_bytes();
            serde_json::from_slice(&body).ok().filter(|_| good)
        };
        timeout(PATIENCE, asked).await.expect("no answer, and no end")
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(self.request("DELETE", path).body(Body::empty()).unwrap()).await
    }

    /// A POST without any body at all.
    pub(crate) async fn post_nothing(&self, path: &str) -> Answer {
        self.send(self.request("POST", path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, &body.to_string()).await
    }

    pub(crate) async fn post_text(&self, path: &str, body: &str) -> Answer {
        let request = self.request("POST", path).header("content-type", "application/json");
        self.send(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Answer {
        let request = self.request("PATCH", path).body(Body::from(body.to_string()));
        self.send(request.unwrap()).await
    }

    pub(crate) async fn upload(&self, path: &str, bytes: impl Into<Body>) -> Answer {
        self.send(self.request("POST", path).body(bytes.into()).unwrap()).await
    }

    /// A sandbox that runs.
    pub(crate) async fn create(&self, body: &Value) -> Value {
        self.post("/v1/sandboxes", body).await.json(201)
    }

    /// A running sandbox from a template; its path.
    pub(crate) async fn sandbox(&self) -> String {
        let made = self.create(&serde_json::json!({ "template": "standard" })).await;
        format!("/v1/sandboxes/{}", made["id"].as_str().unwrap())
    }
}

impl Answer {
    /// The body as JSON, after checking the status.
    #[track_caller]
    pub(crate) fn json(&self, status: u16) -> Value {
        let text = String::from_utf8_lossy(&self.bytes);
        assert_eq!(self.status.as_u16(), status, "{text}");
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// A whole problem body of this status and code.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str) -> Value {
        let body = self.json(status);
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(body["type"], "about:blank");
        assert_eq!(body["status"], status);
        assert_eq!(body["title"], self.status.canonical_reason().unwrap());
        assert_eq!(body["code"], code, "{body}");
        assert!(!body["detail"].as_str().unwrap().is_empty());
        body
    }

    /// 400, naming this field.
    #[track_caller]
    pub(crate) fn refuses(&self, field: &str) -> String {
        let body = self.problem(400, "invalid_request");
        assert_eq!(body["field"], field, "{body}");
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.starts_with(field), "{detail}");
        detail.to_owned()
    }

    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Open {
    pub(crate) async fn whole(self) -> Answer {
        let collected = timeout(PATIENCE, self.body.collect()).await.unwrap().unwrap();
        Answer { status: self.status, headers: self.headers, bytes: collected.to_bytes() }
    }

    /// Its server-sent events, without comments; ends when the stream does.
    pub(crate) fn events(self) -> impl Stream<Item = Sent> + Unpin + use<> {
        assert_eq!(self.status, 200);
        assert_eq!(self.headers["content-type"], "text/event-stream");
        let state = (self, String::new());
        Box::pin(futures_util::stream::unfold(state, |(mut open, mut kept)| async move {
            loop {
                if let Some((block, rest)) = kept.split_once("\n\n") {
                    let sent = parse(block);
                    kept = rest.to_owned();
                    match sent {
                        Some(sent) => return Some((sent, (open, kept))),
                        None => continue,
                    }
                }
                let frame = timeout(PATIENCE, open.body.frame()).await.unwrap()?;
                let data = frame.ok()?.into_data().ok()?;
                kept.push_str(std::str::from_utf8(&data).unwrap());
            }
        }))
    }
}

impl Sent {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap()
    }
}

/// The next event of that name, passing over others.
pub(crate) async fn next(events: &mut (impl Stream<Item = Sent> + Unpin), name: &str) -> Sent {
    while let Some(sent) = events.next().await {
        if sent.event == name {
            return sent;
        }
    }
    panic!("the stream ended without {name}")
}

/// A body that comes in so many pieces, without saying how long it is.
pub(crate) fn pieces(piece_bytes: usize, times: usize) -> Body {
    let piece = Bytes::from(vec![b'x'; piece_bytes]);
    let pieces = std::iter::repeat_n(piece, times).map(Ok::<_, std::io::Error>);
    Body::from_stream(futures_util::stream::iter(pieces))
}

fn parse(block: &str) -> Option<Sent> {
    let mut sent = Sent::default();
    for line in block.lines() {
        match line.split_once(": ") {
            Some(("id", text)) => sent.id = text.into(),
            Some(("event", text)) => sent.event = text.into(),
            Some(("data", text)) => sent.data.push_str(text),
            _ => {}
        }
    }
    (!sent.event.is_empty()).then_some(sent)
}
