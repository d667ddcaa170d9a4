//! A model that does as it is told, in the three dialects that the programs speak. What to do is the
//! last `play:` in what the user said; what it is sent is checked, and every fault is kept.

// By their paths, because the tests of the command line have this file too.
#[path = "model/anthropic.rs"]
mod anthropic;
#[path = "model/chat.rs"]
mod chat;
#[path = "model/responses.rs"]
mod responses;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What every program is given as its key.
pub(crate) const KEY: &str = "test-key";

/// Longer than any test lets it talk.
const SLOW_PIECES: usize = 1200;
const SLOW_PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub(crate) struct Model(Arc<Shared>);

struct Shared {
    url: String,
    key: Mutex<String>,
    faults: Mutex<Vec<String>>,
    /// Ids of the calls that it made.
    calls: Mutex<BTreeSet<String>>,
    last_id: AtomicU64,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// What a request says, whatever its dialect.
#[derive(Debug, Default)]
struct Dialogue {
    /// All that the user said, oldest first.
    users: Vec<String>,
    /// What its calls since the last thing that the user said came to.
    results: Vec<String>,
    tools: Vec<String>,
}

/// What it says to that.
#[derive(Debug, Default)]
struct Reply {
    thinking: Option<String>,
    pieces: Vec<String>,
    pause: Duration,
    /// Names and arguments.
    calls: Vec<(String, Value)>,
}

enum Outcome {
    Reply(Reply),
    Error(u16),
}

/// One piece of an answer, and how long to wait before it.
type Piece = (Duration, String);

impl Model {
    pub(crate) async fn serve() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let model = Self(Arc::new(Shared {
            url: format!("http://{}", listener.local_addr().unwrap()),
            key: Mutex::new(KEY.to_owned()),
            faults: Mutex::default(),
            calls: Mutex::default(),
            last_id: AtomicU64::new(0),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }));
        let router = Router::new().fallback(answer).with_state(model.clone());
        let stop = model.0.stop.clone();
        model.0.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                served = axum::serve(listener, router) => served.unwrap(),
            }
        });
        model
    }

    pub(crate) fn url(&self) -> &str {
        &self.0.url
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        self.0.faults.lock().unwrap().clone()
    }

    pub(crate) fn stop(&self) {
        self.0.stop.cancel();
    }

    fn fault(&self, what: impl Into<String>) {
        self.0.faults.lock().unwrap().push(what.into());
    }

    fn id(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.0.last_id.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn call_id(&self, prefix: &str) -> String {
        let id = self.id(prefix);
        self.0.calls.lock().unwrap().insert(id.clone());
        id
    }

    /// A result is one of a call that was made.
    fn check_result(&self, call: &str) {
        if !self.0.calls.lock().unwrap().contains(call) {
            self.fault(format!("a result of a call that was not made: {call}"));
        }
    }

    /// From now on this is the key. A call that has the one of before is a fault.
    pub(crate) fn rotate(&self, key: &str) {
        key.clone_into(&mut self.0.key.lock().unwrap());
    }

    fn check_key(
        &self,
        (headers, request): (&HeaderMap, &Value),
        name: header::HeaderName,
        scheme: &str,
    ) {
        let sent = headers.get(name).and_then(|value| value.to_str().ok());
        let key = self.0.key.lock().unwrap().clone();
        if sent.and_then(|sent| sent.strip_prefix(scheme)) != Some(&key) {
            let asked = request.to_string();
            let end = asked.len().saturating_sub(1_000);
            let end = asked.get(end..).unwrap_or_default();
            self.fault(format!(
                "another key than it was given: {sent:?} in a call that ends: {end}"
            ));
        }
    }
}

async fn answer(
    State(model): State<Model>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path();
    if method != Method::POST {
        let list = match path.ends_with("/api.json") {
            true => json!({}),
            false => json!({"object": "list", "data": [], "models": []}),
        };
        return (StatusCode::OK, list.to_string()).into_response();
    }
    let Ok(request) = serde_json::from_slice::<Value>(&body) else {
        model.fault(format!("a body that is no JSON: {path}"));
        return StatusCode::BAD_REQUEST.into_response();
    };
    match path.rsplit('/').next() {
        Some("messages") => anthropic::answer(&model, &headers, &request),
        Some("count_tokens") => {
            (StatusCode::OK, json!({"input_tokens": 1}).to_string()).into_response()
        }
        Some("responses") => responses::answer(&model, &headers, &request),
        Some("completions") => chat::answer(&model, &headers, &request),
        _ => {
            model.fault(format!("an unknown path: {path}"));
            StatusCode::NOT_FOUND.into_response()
        }
    }
}

impl Dialogue {
    fn user(&mut self, text: &str) {
        if text.contains("play:") {
            self.results.clear();
        }
        self.users.push(text.to_owned());
    }

    fn outcome(&self) -> Outcome {
        // Titles and the like: asked without tools.
        if self.tools.is_empty() {
            return said("A title");
        }
        let order = self.users.iter().rev().find_map(|text| text.rsplit_once("play:"));
        let order = order.map_or("", |(_, order)| order.lines().next().unwrap_or_default().trim());
        let (verb, rest) = order.split_once(' ').unwrap_or((order, ""));
        if verb == "error" {
            return Outcome::Error(rest.parse().unwrap());
        }
        if !self.results.is_empty() {
            return said(&format!("It came to: {}", self.results.join("; ")));
        }
        match verb {
            "think" => Outcome::Reply(Reply {
                thinking: Some("Let me think.".to_owned()),
                pieces: vec!["Thought ".to_owned(), "done.".to_owned()],
                ..Reply::default()
            }),
            "run" => Outcome::Reply(Reply {
                pieces: vec!["I run ".to_owned(), "a command.".to_owned()],
                calls: vec![self.shell(rest)],
                ..Reply::default()
            }),
            "ask" => Self::one_call(self.question()),
            "delegate" => {
                let step = json!({"id": "one", "capability": rest, "task": "Say hello."});
                Self::one_call(("delegate".to_owned(), json!({"steps": [step]})))
            }
            "plan" => {
                let ours = self.tools.iter().any(|tool| tool == "exit_plan");
                let name = if ours { "exit_plan" } else { "ExitPlanMode" };
                Self::one_call((name.to_owned(), json!({"plan": "1. Do it"})))
            }
            "slow" => Outcome::Reply(Reply {
                pieces: (0..SLOW_PIECES).map(|n| format!("slow {n} ")).collect(),
                pause: SLOW_PAUSE,
                ..Reply::default()
            }),
            "recall" => {
                let words = self.users.iter().filter_map(|text| text.split_once("remember:"));
                let word = words.map(|(_, rest)| rest.split_whitespace().next().unwrap()).next();
                said(&format!("The word is {}.", word.unwrap_or("unknown")))
            }
            _ => said("Hello from the model."),
        }
    }

    fn one_call(call: (String, Value)) -> Outcome {
        Outcome::Reply(Reply { calls: vec![call], ..Reply::default() })
    }

    fn shell(&self, command: &str) -> (String, Value) {
        let has = |name: &str| self.tools.iter().any(|tool| tool == name);
        if has("exec_command") {
            return ("exec_command".to_owned(), json!({"cmd": command}));
        }
        if has("shell_exec") {
            return ("shell_exec".to_owned(), json!({"command": command}));
        }
        let name = if has("Bash") { "Bash" } else { "bash" };
        (name.to_owned(), json!({"command": command, "description": "Runs it"}))
    }

    fn question(&self) -> (String, Value) {
        if self.tools.iter().any(|tool| tool == "ask_user") {
            let options = ["Red", "Blue"];
            let arguments = json!({"question": "Which color?", "options": options});
            return ("ask_user".to_owned(), arguments);
        }
        let names = ["AskUserQuestion", "request_user_input", "question"];
        let name = names.into_iter().find(|name| self.tools.iter().any(|tool| tool == name));
        let options = json!([
            {"label": "Red", "description": "warm"},
            {"label": "Blue", "description": "cold"},
        ]);
        let question = json!({
            "id": "color", "header": "Color", "question": "Which color?", "options": options,
        });
        let name = name.unwrap_or_else(|| panic!("nothing to ask with: {:?}", self.tools));
        let mut question = question;
        if name == "AskUserQuestion" {
            question["multiSelect"] = false.into();
        }
        if name != "request_user_input" {
            question.as_object_mut().unwrap().remove("id");
        }
        (name.to_owned(), json!({"questions": [question]}))
    }
}

fn said(text: &str) -> Outcome {
    // In two pieces, so that deltas are seen.
    let (one, two) = text.split_at(text.len() / 2);
    Outcome::Reply(Reply { pieces: vec![one.to_owned(), two.to_owned()], ..Reply::default() })
}

fn refuse(status: u16) -> Response {
    let kind = if status == 401 { "authentication_error" } else { "api_error" };
    let error =
        json!({"type": "error", "error": {"type": kind, "message": "as ordered", "code": kind}});
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::from_u16(status).unwrap(), headers, error.to_string()).into_response()
}

fn stream_of(pieces: Vec<Piece>) -> Response {
    let pieces = stream::unfold(pieces.into_iter(), |mut pieces| async {
        let (pause, piece) = pieces.next()?;
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        Some((Ok::<_, std::convert::Infallible>(piece), pieces))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream")];
    (headers, Body::from_stream(pieces)).into_response()
}

/// The texts of content, whatever its form.
fn texts(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let parts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            parts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}
