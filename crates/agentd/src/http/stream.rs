//! The routes that read events: as a list, as a stream that goes on, and as the stream of a turn. All
//! read the log, a piece at a time, so that a slow reader loses nothing and costs no memory.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body as Content, Bytes};
use axum::extract::{Path, State};
use axum::response::Response;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::extract::{Asked, Body, EventsAsked, TurnAsked};
use crate::api::{EventsResponse, MessageRequest, ProblemDetails};
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::log::{Cursor, Form, Shape};
use crate::recorder::{Progress, Recorder};
use crate::session::Begun;

/// How often a quiet stream says that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A list up to this size is answered with its length.
const WHOLE_BYTES_MAX: usize = 1024 * 1024;

#[utoipa::path(get, path = "/v1/sessions/{session_id}/events", tag = "sessions",
    operation_id = "get_events",
    params(("session_id" = String, Path, description = "Session id"), EventsAsked),
    responses(
        (status = 200, description = "What comes after the offset", body = EventsResponse),
        (status = 400, description = "Not such a query", body = ProblemDetails),
        (status = 404, description = "No such session", body = ProblemDetails),
    ))]
pub(crate) async fn events(
    State(daemon): State<Arc<Daemon>>,
    Path(id): Path<String>,
    Asked(asked): Asked<EventsAsked>,
) -> Result<Response> {
    let session = daemon.session(&id)?;
    let recorder = session.recorder()?.clone();
    let raw = asked.include_raw.unwrap_or(false);
    let end = recorder.progress().count;
    let left = end.saturating_sub(asked.offset.unwrap_or(0));
    let mut list = List {
        cursor: recorder.seek(asked.offset.unwrap_or(0)).map_err(|error| unread(&error))?,
        recorder,
        raw,
        // What is appended meanwhile does not belong to the answer, which would never end.
        left: asked.limit.unwrap_or(u64::MAX).min(left),
        has_more: asked.limit.is_some_and(|limit| limit < left),
        stage: Stage::Begin,
    };
    let mut text = Vec::new();
    while let Some(piece) = list.next().map_err(|error| unread(&error))? {
        text.extend_from_slice(&piece);
        if text.len() > WHOLE_BYTES_MAX {
            let rest = stream::unfold(list, async |mut list| {
                list.next().transpose().map(|piece| (piece.map(Bytes::from), list))
            });
            let begin = stream::iter([Ok(Bytes::from(text))]);
            let all = futures_util::StreamExt::chain(begin, rest);
            return Ok(json(Content::from_stream(all)));
        }
    }
    Ok(json(Content::from(text)))
}

struct List {
    recorder: Recorder,
    cursor: Cursor,
    raw: bool,
    left: u64,
    has_more: bool,
    stage: Stage,
}

enum Stage {
    Begin,
    More,
    End,
}

impl List {
    fn next(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let mut text = match self.stage {
            Stage::Begin => b"{\"events\":[".to_vec(),
            Stage::More => b",".to_vec(),
            Stage::End => return Ok(None),
        };
        self.stage = Stage::More;
        let shape = Shape {
            raw: self.raw,
            form: Form::Array,
            events_max: self.left,
            until_terminal: false,
        };
        let piece = self.recorder.read(&mut self.cursor, shape)?;
        self.left -= piece.count;
        text.extend_from_slice(&piece.text);
        if piece.count == 0 || self.left == 0 {
            self.stage = Stage::End;
            text.extend_from_slice(format!("],\"hasMore\":{}}}", self.has_more).as_bytes());
        }
        Ok(Some(text))
    }
}

/// What comes after the offset, and then whatever happens. It is not ended by the end of the session.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/events/sse", tag = "sessions",
    operation_id = "get_events_sse",
    params(
        ("session_id" = String, Path, description = "Session id"),
        EventsAsked,
        ("last-event-id" = Option<u64>, Header, description = "As the offset; the larger one counts"),
    ),
    responses(
        (status = 200, description = "SSE event stream", content_type = "text/event-stream",
            body = String),
        (status = 404, description = "No such session", body = ProblemDetails),
    ))]
pub(crate) async fn events_sse(
    State(daemon): State<Arc<Daemon>>,
    Path(id): Path<String>,
    Asked(asked): Asked<EventsAsked>,
    headers: HeaderMap,
) -> Result<Response> {
    let session = daemon.session(&id)?;
    let recorder = session.recorder()?.clone();
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.trim().parse().ok());
    let after = asked.offset.unwrap_or(0).max(last.unwrap_or(0));
    let stop = daemon.host().stop.clone();
    follow(recorder, after, asked.include_raw.unwrap_or(false), None, stop)
}

/// The events of the turn that the message begins, up to the first one that ends it.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/messages/stream", tag = "sessions",
    operation_id = "post_message_stream", request_body = MessageRequest,
    params(("session_id" = String, Path, description = "Session id"), TurnAsked),
    responses(
        (status = 200, description = "SSE event stream", content_type = "text/event-stream",
            body = String),
        (status = 400, description = "The session has ended", body = ProblemDetails),
        (status = 404, description = "No such session", body = ProblemDetails),
        (status = 415, description = "Not JSON", body = ProblemDetails),
        (status = 422, description = "Another shape", body = ProblemDetails),
        (status = 500, description = "The agent is gone", body = ProblemDetails),
    ))]
pub(crate) async fn message_stream(
    State(daemon): State<Arc<Daemon>>,
    Path(id): Path<String>,
    Asked(asked): Asked<TurnAsked>,
    Body(request): Body<MessageRequest>,
) -> Result<Response> {
    let session = daemon.session(&id)?;
    let recorder = session.recorder()?.clone();
    // From now on events are kept at hand.
    let _keep = recorder.follow();
    let begun = session.message(request.message)?;
    let begun = begun.await.map_err(|_| Error::invalid("session terminated"))?;
    let stop = daemon.host().stop.clone();
    follow(recorder, begun.after, asked.include_raw.unwrap_or(false), Some(begun), stop)
}

struct Follower {
    progress: watch::Receiver<Progress>,
    recorder: Recorder,
    cursor: Cursor,
    shape: Shape,
    /// The turn whose end is the end of the stream.
    turn: Option<Begun>,
    stop: CancellationToken,
    over: bool,
}

fn follow(
    recorder: Recorder,
    after: u64,
    raw: bool,
    turn: Option<Begun>,
    stop: CancellationToken,
) -> Result<Response> {
    let until_terminal = turn.is_some();
    let follower = Follower {
        progress: recorder.follow(),
        cursor: recorder.seek(after).map_err(|error| unread(&error))?,
        recorder,
        shape: Shape { raw, form: Form::Stream, events_max: u64::MAX, until_terminal },
        turn,
        stop,
        over: false,
    };
    let frames = stream::unfold(follower, async |mut follower| {
        follower.next().await.transpose().map(|frames| (frames, follower))
    });
    let mut response = Response::new(Content::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

impl Follower {
    /// The next frames; `None` at the end of the stream.
    async fn next(&mut self) -> std::io::Result<Option<Bytes>> {
        if self.over {
            return Ok(None);
        }
        loop {
            let progress = *self.progress.borrow_and_update();
            let piece = self.recorder.read(&mut self.cursor, self.shape)?;
            if piece.count > 0 {
                self.over = piece.terminal && self.shape.until_terminal;
                return Ok(Some(piece.text.into()));
            }
            let ended = |turn: Begun| progress.closed || progress.turns_ended > turn.turns_before;
            if self.turn.is_some_and(ended) {
                return Ok(None);
            }
            tokio::select! {
                changed = self.progress.changed() => if changed.is_err() { return Ok(None) },
                () = tokio::time::sleep(KEEP_ALIVE) => {
                    return Ok(Some(Bytes::from_static(b": keep-alive\n\n")));
                }
                () = self.stop.cancelled() => return Ok(None),
            }
        }
    }
}

fn json(content: Content) -> Response {
    let mut response = Response::new(content);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn unread(error: &std::io::Error) -> Error {
    Error::stream(format!("read the log: {error}"))
}
