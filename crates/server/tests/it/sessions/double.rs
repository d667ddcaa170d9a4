//! An agent daemon that says what a test wants to be said, and keeps what it was asked.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::{get, put};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// All its sessions are the same.
pub(super) struct Double {
    pub(super) port: u16,
    seen: Arc<Seen>,
    _task: AbortOnDropHandle<()>,
}

struct Seen {
    /// How it says that a session goes on.
    resumed: &'static str,
    events: Vec<Value>,
    puts: Mutex<Vec<Value>>,
}

impl Double {
    pub(super) async fn start(resumed: &'static str, events: Vec<Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Seen { resumed, events, puts: Mutex::default() });
        let routes = Router::new()
            .route("/internal/sessions/{id}", put(made))
            .route("/v1/sessions/{id}/events/sse", get(listen))
            .with_state(Arc::clone(&seen));
        let task = TaskTracker::new().spawn(async move {
            axum::serve(listener, routes).await.unwrap();
        });
        Self { port, seen, _task: AbortOnDropHandle::new(task) }
    }

    /// What it was asked to make, each time.
    pub(super) fn puts(&self) -> Vec<Value> {
        self.seen.puts.lock().unwrap().clone()
    }
}

async fn made(State(seen): State<Arc<Seen>>, Json(body): Json<Value>) -> Json<Value> {
    seen.puts.lock().unwrap().push(body);
    let count = seen.events.len();
    Json(json!({ "event_count": count, "native_session_id": "native-1", "resumed": seen.resumed }))
}

/// All of it at once; then it says nothing more.
async fn listen(State(seen): State<Arc<Seen>>) -> impl IntoResponse {
    let said = |(n, event): (usize, &Value)| format!("id: {}\ndata: {event}\n\n", n + 1);
    let all: String = seen.events.iter().enumerate().map(said).collect();
    let body = stream::iter([Ok::<_, Infallible>(all)]).chain(stream::pending());
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(body))
}

/// An item that is complete.
pub(super) fn item(kind: &str, role: &str, part: &Value) -> Value {
    json!({ "event_id": "evt_1", "sequence": 1, "time": "2026-01-02T03:04:05Z",
        "session_id": "theirs", "native_session_id": "native-1", "synthetic": false,
        "source": "agent", "type": "item.completed", "data": { "item": { "item_id": "itm_1",
        "native_item_id": null, "parent_id": null, "kind": kind, "role": role,
        "status": "completed", "content": [part] } }, "raw": null })
}
