//! The calls that watch a directory: as a stream, or by asking now and then.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};

use super::filesystem::missing;
use super::{Nothing, caller, of_path};
use crate::connect;
use crate::http::{Request, Response};
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;
use crate::watch::{Event, Kind, Watcher};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatchRequest {
    #[serde(default)]
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default, alias = "include_entry")]
    include_entry: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatcherRequest {
    #[serde(default, alias = "watcher_id")]
    watcher_id: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    watcher_id: String,
}

#[derive(Debug, Serialize)]
struct Events {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<Value>,
}

pub(super) async fn watch_dir(state: &Arc<State>, request: Request) -> Response {
    connect::stream(start_stream(state, request).await)
}

pub(super) async fn create(state: &Arc<State>, request: Request) -> Response {
    let create = async {
        let account = caller(state, &request)?;
        let request: WatchRequest = connect::unary_request(request).await?;
        let watcher = open(state, &request, &account)?;
        let watcher_id = state.watchers.add(&state.tasks, watcher, request.include_entry)?;
        Ok(Created { watcher_id })
    };
    connect::unary(create.await)
}

pub(super) async fn events(state: &State, request: Request) -> Response {
    let events = async {
        let request: WatcherRequest = connect::unary_request(request).await?;
        let (events, include_entry) = state.watchers.take(&request.watcher_id)?;
        let events = events.iter().map(|event| message(state, event, include_entry)).collect();
        Ok(Events { events })
    };
    connect::unary(events.await)
}

pub(super) async fn remove(state: &State, request: Request) -> Response {
    let remove = async {
        let request: WatcherRequest = connect::unary_request(request).await?;
        state.watchers.remove(&request.watcher_id)?;
        Ok(Nothing {})
    };
    connect::unary(remove.await)
}

fn open(
    state: &State,
    request: &WatchRequest,
    account: &crate::accounts::Account,
) -> Result<Watcher> {
    let path = state.resolve(&request.path, account);
    let meta = std::fs::metadata(&path).map_err(|error| missing(&path, &error))?;
    if !meta.is_dir() {
        return Err(Refusal::invalid(format!("path is not a directory: {path}")));
    }
    Watcher::new(&path, request.recursive)
}

/// A stream in the making.
struct Stage {
    state: Arc<State>,
    watcher: Watcher,
    include_entry: bool,
    keepalive: Duration,
    deadline: Option<Instant>,
    waiting: std::vec::IntoIter<Event>,
}

async fn start_stream(
    state: &Arc<State>,
    request: Request,
) -> Result<impl Stream<Item = Result<Bytes>> + Send + Unpin + 'static> {
    let account = caller(state, &request)?;
    let keepalive = connect::keepalive(request.headers());
    let deadline = connect::timeout(request.headers()).map(|timeout| Instant::now() + timeout);
    let request: WatchRequest = connect::stream_request(request).await?;
    let stage = Stage {
        watcher: open(state, &request, &account)?,
        state: Arc::clone(state),
        include_entry: request.include_entry,
        keepalive,
        deadline,
        waiting: Vec::new().into_iter(),
    };
    let start = Bytes::from_static(br#"{"start":{}}"#);
    let stream = futures_util::stream::unfold((Some(start), Some(stage)), |(start, stage)| async {
        if let Some(start) = start {
            return Some((Ok(start), (None, stage)));
        }
        let mut stage = stage?;
        let message = next(&mut stage).await;
        let stage = message.is_ok().then_some(stage);
        Some((message, (None, stage)))
    });
    Ok(Box::pin(stream))
}

async fn next(stage: &mut Stage) -> Result<Bytes> {
    let quiet = Instant::now() + stage.keepalive;
    loop {
        if let Some(event) = stage.waiting.next() {
            let event = message(&stage.state, &event, stage.include_entry);
            return Ok(json!({ "filesystem": event }).to_string().into());
        }
        let until = stage.deadline.map_or(quiet, |deadline| deadline.min(quiet));
        match timeout_at(until, stage.watcher.next()).await {
            Ok(events) => stage.waiting = events?.into_iter(),
            Err(_) if stage.deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                let over = "the timeout of the stream has passed";
                return Err(Refusal::new(Code::DeadlineExceeded, over));
            }
            Err(_) => return Ok(Bytes::from_static(br#"{"keepalive":{}}"#)),
        }
    }
}

fn message(state: &State, event: &Event, include_entry: bool) -> Value {
    let kind = match event.kind {
        Kind::Create => "EVENT_TYPE_CREATE",
        Kind::Write => "EVENT_TYPE_WRITE",
        Kind::Remove => "EVENT_TYPE_REMOVE",
        Kind::Rename => "EVENT_TYPE_RENAME",
        Kind::Chmod => "EVENT_TYPE_CHMOD",
    };
    let mut message = Map::new();
    message.insert("name".into(), event.name.clone().into());
    message.insert("type".into(), kind.into());
    let has_entry = include_entry && matches!(event.kind, Kind::Create | Kind::Write | Kind::Chmod);
    // What is gone already has none.
    if has_entry
        && let Ok(entry) = of_path(&event.path, &state.accounts)
        && let Ok(entry) = serde_json::to_value(entry)
    {
        message.insert("entry".into(), entry);
    }
    Value::Object(message)
}
