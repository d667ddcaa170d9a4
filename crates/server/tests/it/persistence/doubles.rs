//! A backend that checks what it is sent and fails as it is told, and as much of an agent daemon as is read.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

pub(super) const AUTH: &str = "ApiKey  tenant:7 \"quoted\" sk_secret";

/// How a call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    Keeps,
    /// Refuses, with this status.
    Refuses(u16),
    /// Keeps it, and its answer is a failure.
    KeepsAndFails,
    /// Keeps it, late.
    Late,
    /// Takes no more events than this.
    AtMost(usize),
}

#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Every event, by conversation and number.
    pub(super) events: BTreeMap<String, BTreeMap<u64, Value>>,
    /// Batches by key: they must be the same when they come again.
    batches: HashMap<String, Bytes>,
    pub(super) posts: usize,
    pub(super) loads: Vec<String>,
    /// What was wrong with what came.
    pub(super) wrong: Vec<String>,
    next: VecDeque<Mood>,
    always: Option<Mood>,
}

pub(super) struct Backend {
    pub(super) origin: String,
    pub(super) kept: Arc<Mutex<Kept>>,
    _task: AbortOnDropHandle<()>,
}

impl Backend {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let kept: Arc<Mutex<Kept>> = Arc::default();
        let routes =
            Router::new().route("/persist", post(append).get(load)).with_state(Arc::clone(&kept));
        let task = TaskTracker::new().spawn(async move {
            axum::serve(listener, routes).await.unwrap();
        });
        Self { origin, kept, _task: AbortOnDropHandle::new(task) }
    }

    pub(super) fn url(&self) -> String {
        format!("{}/persist?tenant=7", self.origin)
    }

    /// The next calls are answered like this, one after the other.
    pub(super) fn next(&self, moods: impl IntoIterator<Item = Mood>) {
        self.kept.lock().unwrap().next.extend(moods);
    }

    pub(super) fn always(&self, mood: Option<Mood>) {
        self.kept.lock().unwrap().always = mood;
    }

    pub(super) fn posts(&self) -> usize {
        self.kept.lock().unwrap().posts
    }

    /// All of a conversation, once it is so long.
    pub(super) async fn has(&self, conversation: &str, count: usize) -> BTreeMap<u64, Value> {
        for _ in 0..3000 {
            {
                let kept = self.kept.lock().unwrap();
                assert_eq!(kept.wrong, Vec::<String>::new());
                if let Some(events) = kept.events.get(conversation)
                    && events.len() >= count
                {
                    return events.clone();
                }
            }
            sleep(Duration::from_millis(10)).await;
        }
        let kept = self.kept.lock().unwrap();
        let known: Vec<_> = kept.events.iter().map(|(id, all)| (id, all.len())).collect();
        panic!("{conversation} has not {count} events: {known:?}");
    }

    pub(super) async fn is_asked(&self, posts: usize) {
        for _ in 0..3000 {
            if self.posts() >= posts {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("the backend is not asked {posts} times");
    }
}

async fn append(
    State(kept): State<Arc<Mutex<Kept>>>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mood = {
        let mut kept = kept.lock().unwrap();
        kept.posts += 1;
        if query.get("tenant").map(String::as_str) != Some("7") {
            kept.wrong.push(format!("another query: {query:?}"));
        }
        let mood = kept.next.pop_front().or(kept.always).unwrap_or(Mood::Keeps);
        kept.take(&headers, &body, mood)
    };
    match mood {
        Mood::Keeps | Mood::AtMost(_) => StatusCode::NO_CONTENT.into_response(),
        Mood::KeepsAndFails => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Mood::Late => {
            sleep(Duration::from_millis(700)).await;
            (StatusCode::OK, "thanks").into_response()
        }
        Mood::Refuses(307) => {
            (StatusCode::TEMPORARY_REDIRECT, [("location", "/persist?tenant=7")]).into_response()
        }
        Mood::Refuses(status) => StatusCode::from_u16(status).unwrap().into_response(),
    }
}

async fn load(
    State(kept): State<Arc<Mutex<Kept>>>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let mut kept = kept.lock().unwrap();
    kept.check_auth(&headers);
    let of = query["conversation"].clone();
    kept.loads.push(of.clone());
    if let Some(Mood::Refuses(status)) = kept.always {
        return StatusCode::from_u16(status).unwrap().into_response();
    }
    let (after, limit): (u64, usize) =
        (query["after"].parse().unwrap(), query["limit"].parse().unwrap());
    let Some(all) = kept.events.get(&of) else { return StatusCode::NOT_FOUND.into_response() };
    let page = all.range(after + 1..).take(limit);
    let page: Vec<Value> =
        page.map(|(sequence, event)| json!({ "sequence": sequence, "event": event })).collect();
    Json(json!({ "last_sequence": all.keys().last(), "events": page })).into_response()
}

impl Kept {
    fn check_auth(&mut self, headers: &HeaderMap) {
        let all: Vec<_> = headers.get_all("authorization").iter().collect();
        if all != [AUTH] {
            self.wrong.push(format!("another authorization: {} of them", all.len()));
        }
    }

    fn take(&mut self, headers: &HeaderMap, body: &Bytes, mood: Mood) -> Mood {
        self.check_auth(headers);
        let batch: Value = serde_json::from_slice(body).unwrap();
        let events = batch["events"].as_array().unwrap();
        let key = headers["idempotency-key"].to_str().unwrap().to_owned();
        let before = self.batches.entry(key.clone()).or_insert_with(|| body.clone());
        if before != body {
            self.wrong.push(format!("{key} has other bytes now"));
        }
        let numbers: Vec<u64> =
            events.iter().map(|one| one["sequence"].as_u64().unwrap()).collect();
        let conversation = batch["conversation"].as_str().unwrap().to_owned();
        let kept = self.events.entry(conversation.clone()).or_default();
        let last = kept.keys().last().copied().unwrap_or(0);
        let in_a_row = numbers.windows(2).all(|two| two[1] == two[0] + 1);
        let bounds = (batch["first_sequence"].as_u64(), batch["last_sequence"].as_u64());
        let said = bounds == (numbers.first().copied(), numbers.last().copied());
        if !in_a_row || !said || numbers[0] > last + 1 || batch["version"] != 1 {
            self.wrong.push(format!("{conversation} has {last}, and then comes {numbers:?}"));
        }
        match mood {
            Mood::AtMost(most) if events.len() > most => return Mood::Refuses(413),
            Mood::Refuses(_) => return mood,
            Mood::Keeps | Mood::KeepsAndFails | Mood::Late | Mood::AtMost(_) => {}
        }
        for (number, event) in numbers.into_iter().zip(events) {
            kept.entry(number).or_insert_with(|| event["event"].clone());
        }
        mood
    }
}

/// What a daemon has recorded.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    pub(super) sessions: BTreeMap<String, Vec<Value>>,
    pub(super) busy: bool,
    pub(super) task: Option<Value>,
    pub(super) ended: Option<i32>,
}

pub(super) struct Daemon {
    pub(super) recorded: Arc<Mutex<Recorded>>,
    pub(super) port: u16,
    _task: AbortOnDropHandle<()>,
}

impl Daemon {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let recorded: Arc<Mutex<Recorded>> = Arc::default();
        let routes = Router::new()
            .route("/v1/sessions", get(sessions))
            .route("/v1/sessions/{id}/events", get(recorded_events))
            .route("/v1/sessions/{id}/messages", post(async || StatusCode::NO_CONTENT))
            .route("/internal/task", put(begin).get(how))
            .with_state(Arc::clone(&recorded));
        let task = TaskTracker::new().spawn(async move {
            axum::serve(listener, routes).await.unwrap();
        });
        Self { recorded, port, _task: AbortOnDropHandle::new(task) }
    }

    /// An agent says so many things more.
    pub(super) fn records(&self, session: &str, count: usize) {
        let mut recorded = self.recorded.lock().unwrap();
        let events = recorded.sessions.entry(session.to_owned()).or_default();
        for _ in 0..count {
            let sequence = events.len() + 1;
            events.push(json!({ "event_id": format!("{session}-{sequence}"), "sequence": sequence,
                "session_id": session, "type": "item.delta", "data": { "delta": "ünïcode ☃" } }));
        }
    }

    pub(super) fn busy(&self, busy: bool) {
        self.recorded.lock().unwrap().busy = busy;
    }
}

type Shown = State<Arc<Mutex<Recorded>>>;

async fn sessions(State(recorded): Shown) -> Json<Value> {
    let recorded = recorded.lock().unwrap();
    let all = recorded.sessions.iter().map(|(id, events)| {
        json!({ "sessionId": id, "eventCount": events.len(), "busy": recorded.busy })
    });
    Json(json!({ "sessions": all.collect::<Vec<_>>() }))
}

async fn recorded_events(
    State(recorded): Shown,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, usize>>,
) -> Json<Value> {
    let recorded = recorded.lock().unwrap();
    let events = &recorded.sessions[&id];
    let page: Vec<_> = events.iter().skip(query["offset"]).take(query["limit"]).collect();
    Json(json!({ "events": page, "hasMore": false }))
}

async fn begin(State(recorded): Shown, Json(task): Json<Value>) -> Json<Value> {
    let mut recorded = recorded.lock().unwrap();
    recorded.task.get_or_insert(task);
    state(&recorded)
}

async fn how(State(recorded): Shown) -> Json<Value> {
    sleep(Duration::from_millis(50)).await;
    state(&recorded.lock().unwrap())
}

fn state(recorded: &Recorded) -> Json<Value> {
    Json(match recorded.ended {
        Some(code) => json!({ "status": "ended", "exit_code": code }),
        None => json!({ "status": "running" }),
    })
}
