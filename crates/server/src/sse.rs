//! Server-sent events: streams that end when the server does.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, future, stream};
use serde::Serialize;

use crate::app::App;
use crate::limits::KEEPALIVE_EVERY;

/// How long a client should wait before it connects again.
const RETRY: Duration = Duration::from_secs(1);

/// Answers with `events`, keeping the connection alive, until they end or the server drains.
pub(crate) fn answer<S>(app: &App, events: S) -> Response
where
    S: Stream<Item = Event> + Send + 'static,
{
    let draining = app.draining.clone().cancelled_owned();
    // Said once, and so the head of the answer goes out at once too.
    let hello = Event::default().retry(RETRY).comment("connected");
    let events = stream::once(future::ready(hello)).chain(events);
    let until_drained = events.map(Ok::<_, Infallible>).take_until(draining);
    let keep_alive = KeepAlive::new().interval(KEEPALIVE_EVERY);
    let mut response = Sse::new(until_drained).keep_alive(keep_alive).into_response();
    // Proxies that buffer would hold events back.
    response.headers_mut().insert("x-accel-buffering", "no".parse().expect("a constant header"));
    response
}

/// An event of this name whose data is `value` as one line of JSON.
pub(crate) fn event(name: &str, value: &impl Serialize) -> Event {
    let data = serde_json::to_string(value).expect("our own bodies are JSON");
    Event::default().event(name).data(data)
}
