//! What every request passes: an id, a span, a log line, a count, and a net under panics.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::Instrument;

use crate::app::{App, Standing};
use crate::code;
use crate::limits::REQUEST_ID_BYTES_MAX;
use crate::preview::Foreign;
use crate::refusal::Refusal;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Counted down also when the client goes away in the middle.
struct InFlight(App);

impl InFlight {
    fn new(app: &App) -> Self {
        app.metrics.request_began();
        Self(Arc::clone(app))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.metrics.request_ended();
    }
}

pub(crate) async fn pass(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let in_flight = InFlight::new(&app);
    let id = request_id(request.headers());
    let method = request.method().clone();
    // Without the query, which may hold what a log should not.
    let path = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().cloned();
    // So that it is there whatever level is logged.
    let span = tracing::error_span!("request", request.id = id.to_str().unwrap_or_default());
    if matches!(app.standing, Standing::Follows(_)) {
        // The other server's log has the same.
        request.headers_mut().insert(REQUEST_ID.clone(), id.clone());
    }
    let mut response = caught(next.run(request)).instrument(span.clone()).await;
    drop(in_flight);
    let took = began.elapsed();
    let status = response.status().as_u16();
    let foreign = response.extensions().get::<Foreign>().is_some();
    let route = route.as_ref().filter(|_| !foreign).map(MatchedPath::as_str);
    app.metrics.answered(&method, route, status, took);
    let latency_us = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
    let latency_ms = f64::from(latency_us) / 1000.0;
    // What a model's client gets wrong is for whoever set it up (002); the rest is between API and caller.
    let told = route.is_some_and(|route| code::PATHS.contains(&route));
    span.in_scope(|| match status {
        500.. if told => {
            tracing::error!(target: "access", %method, path, status, latency_ms, "answered");
        }
        400.. if told => {
            tracing::warn!(target: "access", %method, path, status, latency_ms, "answered");
        }
        _ => tracing::info!(target: "access", %method, path, status, latency_ms, "answered"),
    });
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID.clone(), id);
    if !foreign {
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
    response
}

/// A bug in a handler is one request's 500, and nobody else's.
async fn caught(answer: impl Future<Output = Response>) -> Response {
    AssertUnwindSafe(answer).catch_unwind().await.unwrap_or_else(|panic| {
        tracing::error!(panic = panic_text(&*panic), "a handler panicked");
        Refusal::Panicked.into_response()
    })
}

/// The client's own, if it is harmless; else the next of ours.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let good = |c: &u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    if let Some(sent) = headers.get(&REQUEST_ID) {
        let bytes = sent.as_bytes();
        let fits = !bytes.is_empty() && bytes.len() <= REQUEST_ID_BYTES_MAX;
        if fits && bytes.iter().all(good) {
            return sent.clone();
        }
    }
    // Unique over restarts by the time at which this process began to answer.
    static BEGAN: LazyLock<i64> = LazyLock::new(|| jiff::Timestamp::now().as_millisecond());
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    HeaderValue::try_from(format!("req-{:x}-{next:x}", *BEGAN)).expect("hexadecimal digits")
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no text)")
}

#[cfg(test)]
mod tests;
