//! The log of a session: by range, as it grows, and as a transcript.

use std::sync::Arc;

use api::query::Query;
use api::session::LoggedEvents;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use axum::response::sse::Event;
use events::transcript::{Entry, Transcript};
use futures_util::{Stream, StreamExt, stream};
use model::{Error, SessionId};
use tokio::sync::watch;

use crate::app::App;
use crate::auth::Who;
use crate::limits::{SESSION_BATCH, SESSION_PAGE_DEFAULT, SESSION_PAGE_MAX};
use crate::refusal::Refusal;
use crate::sessions::{Page, Sessions, wire};
use crate::sse;
use crate::target::{RawQuery, SessionTarget};

const JSON_LINES: &str = "application/jsonl";
const MARKDOWN: &str = "text/markdown; charset=utf-8";

/// Read a session's log
///
/// The universal events after `from`, in order. With `Accept: text/event-stream` they come as server-sent
/// events as the log grows, also from a session that somebody else is connected to; the id of each is its sequence, so
/// that `Last-Event-ID` continues where a connection broke.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/events", tag = "Sessions", operation_id = "session_events",
    params(
        ("id" = String, Path, description = "Its `chat_session_id`"),
        ("from" = Option<u64>, Query, description = "The event before the first one wanted; 0 or absent: from the beginning"),
        ("to" = Option<u64>, Query, description = "The last one wanted; not with a stream"),
        ("limit" = Option<u64>, Query, description = "At most so many: 1000 if absent, at most 10000; not with a stream"),
        ("Last-Event-ID" = Option<String>, Header, description = "For a stream, instead of `from`"),
    ),
    responses(
        (status = 200, description = "A part of the log, or the stream of it", content(
            (LoggedEvents = "application/json"), (String = "text/event-stream"),
        )),
        (status = 404, description = "No such session, or another owner's"),
    )
)]
pub(crate) async fn events(
    State(app): State<App>,
    Who(caller): Who,
    SessionTarget(id): SessionTarget,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let streams = accepts(&headers, "text/event-stream");
    let known: &[&str] = if streams { &["from"] } else { &["from", "to", "limit"] };
    let mut query = Query::parse(query.as_deref(), known)?;
    let from = query.whole("from")?;
    if streams {
        let from = last_event_id(&headers)?.or(from).unwrap_or(0);
        Sessions::get(&app, &caller, id).await?;
        return Ok(follow(&app, id, from));
    }
    let to = query.whole("to")?.unwrap_or(u64::MAX);
    let limit = query.whole("limit")?.unwrap_or(SESSION_PAGE_DEFAULT as u64);
    if limit == 0 {
        return Err(Error::invalid("limit", "must be at least 1").into());
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(SESSION_PAGE_MAX);
    Sessions::get(&app, &caller, id).await?;
    let mut page = Sessions::page(&app, id, from.unwrap_or(0), limit).await?;
    page.events.retain(|(sequence, _)| *sequence <= to);
    Ok(answer("application/json", Body::from(ranged(&page, from.unwrap_or(0), to))))
}

/// Read a session's transcript
///
/// What was said and done, without the deltas: as Markdown, or with `Accept: application/jsonl` an entry a line.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/transcript", tag = "Sessions", operation_id = "session_transcript",
    params(("id" = String, Path, description = "Its `chat_session_id`")),
    responses(
        (status = 200, description = "All of it", content(
            (String = "text/markdown"), (String = "application/jsonl"),
        )),
        (status = 404, description = "No such session, or another owner's"),
    )
)]
pub(crate) async fn transcript(
    State(app): State<App>,
    Who(caller): Who,
    SessionTarget(id): SessionTarget,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    Query::parse(query.as_deref(), &[])?;
    Sessions::get(&app, &caller, id).await?;
    let json = accepts(&headers, JSON_LINES);
    let state = (app, Some(0), Transcript::default());
    let parts = stream::try_unfold(state, move |(app, after, mut transcript)| async move {
        let Some(after) = after else { return Ok(None) };
        let page = Sessions::page(&app, id, after, SESSION_BATCH).await?;
        let read = page.events.iter().filter_map(|(_, event)| wire::read(event));
        let mut entries: Vec<Entry> = read.flat_map(|event| transcript.read(&event)).collect();
        let next = page.events.last().map(|(sequence, _)| *sequence);
        if next.is_none() {
            entries.extend(transcript.unfinished());
        }
        let text: String = entries.iter().map(|entry| written(entry, json)).collect();
        Ok::<_, Error>(Some((text, (app, next, transcript))))
    });
    let kind = if json { JSON_LINES } else { MARKDOWN };
    Ok(answer(kind, Body::from_stream(parts)))
}

fn written(entry: &Entry, json: bool) -> String {
    if json {
        let line = serde_json::to_string(entry).expect("an entry is JSON");
        return format!("{line}\n");
    }
    format!("{}\n", entry.markdown())
}

/// Written by hand: the events are JSON already.
fn ranged(page: &Page, from: u64, to: u64) -> String {
    let events: Vec<&str> = page.events.iter().map(|(_, event)| &**event).collect();
    let last = page.events.last().map_or(from, |(sequence, _)| *sequence);
    let has_more = last < page.head.min(to);
    let (events, head) = (events.join(","), page.head);
    format!(r#"{{"events":[{events}],"has_more":{has_more},"last_sequence":{head}}}"#)
}

/// The log from there on, and what is added while the session runs.
fn follow(app: &App, id: SessionId, from: u64) -> Response {
    let head = Sessions::watch(app, id);
    let pages = stream::unfold(Some((Arc::clone(app), from, head)), move |state| async move {
        let (app, after, mut head) = state?;
        loop {
            let page = match Sessions::page(&app, id, after, SESSION_BATCH).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "a stream of a log broke off");
                    return None;
                }
            };
            if let Some((last, _)) = page.events.last() {
                let last = *last;
                return Some((page.events, Some((app, last, head))));
            }
            // Nothing more comes of a session that does not run.
            grown(head.as_mut()?, after).await?;
        }
    });
    sse::answer(app, named(pages))
}

fn named(
    pages: impl Stream<Item = Vec<(u64, Arc<str>)>> + Send,
) -> impl Stream<Item = Event> + Send {
    let event = |(sequence, event): (u64, Arc<str>)| {
        Event::default().event("message").id(sequence.to_string()).data(&*event)
    };
    pages.flat_map(move |events| stream::iter(events.into_iter().map(event)))
}

async fn grown(head: &mut watch::Receiver<u64>, after: u64) -> Option<()> {
    head.wait_for(|head| *head > after).await.ok().map(drop)
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Error> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| Error::invalid("Last-Event-ID", "not the sequence of an event"))
}

/// Whether it is named; what is wanted more does not matter with two forms.
fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    headers.get_all(ACCEPT).iter().any(|value| {
        let kinds = value.to_str().unwrap_or_default().split(',');
        kinds.map(|one| one.split(';').next().unwrap_or_default().trim()).any(|one| one == kind)
    })
}

fn answer(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
