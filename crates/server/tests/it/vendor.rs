//! A vendor of models, as far as the relay asks it: it keeps what it hears, and answers with what is counted.
//! And a program in a sandbox that calls it: its connection is what the driver would hand over.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::client::{Client, PATIENCE};
use crate::harness::TestServer;

/// What the vendor heard of one call.
#[derive(Debug, Clone)]
pub(crate) struct Heard {
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// As much of a vendor as is asked.
pub(crate) struct Vendor {
    pub(crate) origin: String,
    heard: Arc<Mutex<Vec<Heard>>>,
    _task: AbortOnDropHandle<()>,
}

impl Vendor {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let heard: Arc<Mutex<Vec<Heard>>> = Arc::default();
        let routes = Router::new().fallback(hear).with_state(Arc::clone(&heard));
        let task = TaskTracker::new().spawn(async move {
            axum::serve(listener, routes).await.unwrap();
        });
        Self { origin, heard, _task: AbortOnDropHandle::new(task) }
    }

    pub(crate) fn last(&self) -> Heard {
        self.heard.lock().unwrap().last().cloned().unwrap()
    }

    pub(crate) fn count(&self) -> usize {
        self.heard.lock().unwrap().len()
    }
}

async fn hear(State(heard): State<Arc<Mutex<Vec<Heard>>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let target = parts.uri.to_string();
    let body = body.collect().await.unwrap().to_bytes();
    heard.lock().unwrap().push(Heard { target: target.clone(), headers: parts.headers, body });
    let usage = r#"{"type":"message","usage":{"input_tokens":11,"output_tokens":5}}"#;
    if target.contains("/stream") {
        let kind = [("content-type", "text/event-stream"), ("set-cookie", "a=b")];
        let pieces =
            ["data: {\"message\":{\"usage\":{\"input_tokens\":3,", "\"output_tokens\":1}}}\n\n"];
        let pieces = stream::iter(pieces).then(async |piece| {
            sleep(Duration::from_millis(5)).await;
            Ok::<_, std::io::Error>(piece)
        });
        return (kind, Body::from_stream(pieces)).into_response();
    }
    if target.contains("/long") {
        let block = |kind: &str, text: &str| json!({ "type": kind, "id": kind, "text": text });
        let long = "x".repeat(3 << 20);
        let blocks = [block("tool_use", ""), block("text", &long), block("tool_use", &long)];
        let answer = json!({ "type": "message", "content": blocks,
            "usage": { "input_tokens": 900, "output_tokens": 80 } });
        return ([("content-type", "application/json")], answer.to_string()).into_response();
    }
    if target.contains("/moved") {
        return (StatusCode::TEMPORARY_REDIRECT, [("location", "/elsewhere")]).into_response();
    }
    if target.contains("/slow") {
        sleep(Duration::from_millis(700)).await;
    }
    ([("content-type", "application/json")], usage).into_response()
}

pub(crate) struct Said {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// What a program in the sandbox does.
pub(crate) async fn say(
    server: &TestServer,
    sandbox: &Value,
    request: hyper::Request<Full<Bytes>>,
) -> Said {
    let sandbox = sandbox["id"].as_str().unwrap().parse().unwrap();
    let stream = server.driver.connect_to_relay(sandbox).await;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let _connection = AbortOnDropHandle::new(TaskTracker::new().spawn(async move {
        let _ = connection.await;
    }));
    let answered = timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap();
    let (parts, body) = answered.into_parts();
    let body = timeout(PATIENCE, body.collect()).await.unwrap().unwrap().to_bytes();
    Said { status: parts.status, headers: parts.headers, body }
}

pub(crate) fn request(target: &str) -> hyper::Request<Full<Bytes>> {
    hyper::Request::post(target)
        .header("host", "198.19.255.254:4010")
        .header("x-api-key", "bastide-relay")
        .header("authorization", "Bearer bastide-relay")
        .header("anthropic-version", "2023-06-01")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("cookie", "c=d")
        .body(Full::from("{\"model\":\"claude\"}"))
        .unwrap()
}

pub(crate) async fn tokens(account: &Client) -> (u64, u64) {
    let seen = account.get("/v1/dashboard/overview").await.json(200);
    (seen["input_tokens"].as_u64().unwrap(), seen["output_tokens"].as_u64().unwrap())
}
