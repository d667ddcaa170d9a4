//! One call to a model: from a program's request to the vendor's, and the answer back, both as they come.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderName,
    SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use axum::response::IntoResponse;
use futures_util::{Stream, StreamExt, stream};
use hyper::body::Incoming;
use jiff::Timestamp;
use model::{OwnerId, SandboxId, Vendor};
use serde_json::json;
use store::Tokens;
use tokio::time::timeout;
use url::Url;

use super::tokens::Meter;
use super::{Call, Relay};
use crate::order::{ModelAccess, Order};

/// Of a request. The vendors' own limits are 32 MiB and less.
const REQUEST_BYTES_MAX: u64 = 64 << 20;
/// Of an answer.
const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// Between two pieces of a request.
const REQUEST_SILENCE_MAX: Duration = Duration::from_secs(60);
/// Until an answer begins: one that is not streamed begins when the model is done.
const ANSWER_MAX: Duration = Duration::from_secs(900);

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const API_KEY: HeaderName = HeaderName::from_static("api-key");
const X_GOOG_API_KEY: HeaderName = HeaderName::from_static("x-goog-api-key");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_AUTHENTICATE: HeaderName = HeaderName::from_static("proxy-authenticate");
const PROXY_AUTHORIZATION: HeaderName = HeaderName::from_static("proxy-authorization");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// What is of one connection and not of the request.
const HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Where programs put keys, and what else is not the vendor's to see.
const NOT_SENT: [HeaderName; 7] =
    [ACCEPT_ENCODING, API_KEY, AUTHORIZATION, COOKIE, HOST, X_API_KEY, X_GOOG_API_KEY];

/// Why a call is not made, or has no answer. Said in a form that clients of every vendor read.
struct Refused(StatusCode, String);

/// Of a body on its way through.
struct Bounds {
    bytes_max: u64,
    silence_max: Duration,
}

pub(super) async fn answer(
    relay: &Arc<Relay>,
    sandbox: SandboxId,
    request: Request<Incoming>,
) -> Response<Body> {
    forward(relay, sandbox, request).await.unwrap_or_else(Refused::into_response)
}

async fn forward(
    relay: &Arc<Relay>,
    sandbox: SandboxId,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refused> {
    if request.method() == Method::CONNECT {
        return Err(Refused(StatusCode::METHOD_NOT_ALLOWED, "this is not a proxy".into()));
    }
    let busy = || Refused(StatusCode::TOO_MANY_REQUESTS, "too many calls at a time".into());
    let call = relay.begin(sandbox).await.ok_or_else(busy)?;
    let (owner, model) = model_of(relay, sandbox).await?;
    let url = target(&model, &request)?;
    let client = relay.upstream.client(&url).await;
    let client = client
        .map_err(|why| Refused(StatusCode::FORBIDDEN, format!("the model's base URL {why}")))?;
    let (parts, body) = request.into_parts();
    let headers = outward(parts.headers, &model)?;
    if length(&headers).is_some_and(|bytes| bytes > REQUEST_BYTES_MAX) {
        let detail = format!("a request may have {REQUEST_BYTES_MAX} bytes");
        return Err(Refused(StatusCode::PAYLOAD_TOO_LARGE, detail));
    }
    let body = Body::new(body).into_data_stream();
    let bounds = Bounds { bytes_max: REQUEST_BYTES_MAX, silence_max: REQUEST_SILENCE_MAX };
    let sent = client
        .request(parts.method, url)
        .headers(headers)
        .body(reqwest::Body::wrap_stream(bounded(body, bounds)))
        .send();
    let late = |_| Refused(StatusCode::GATEWAY_TIMEOUT, "the model does not answer in time".into());
    let response = timeout(ANSWER_MAX, sent).await.map_err(late)?.map_err(|error| {
        // Never its URL: a query may say more than its reader should know.
        let error = format!("{:#}", anyhow::Error::new(error.without_url()));
        tracing::debug!(sandbox.id = %sandbox, error, "a model cannot be called");
        Refused(StatusCode::BAD_GATEWAY, format!("the model cannot be called: {error}"))
    })?;
    let meter = Meter::of(response.status(), response.headers());
    Ok(inward(response, Passing { call, owner, meter }))
}

async fn model_of(relay: &Relay, sandbox: SandboxId) -> Result<(OwnerId, ModelAccess), Refused> {
    match Order::of(&relay.vault, sandbox).await {
        Ok(Some((owner, order))) if order.relay => Ok((owner, order.model)),
        Ok(Some(_) | None) => {
            let detail = "this sandbox has no model behind the relay".into();
            Err(Refused(StatusCode::NOT_FOUND, detail))
        }
        Err(failure) => {
            let error = format!("{:#}", anyhow::Error::from(failure));
            tracing::error!(sandbox.id = %sandbox, error, "could not look up a model's key");
            let detail = "the key of the model cannot be looked up now".into();
            Err(Refused(StatusCode::SERVICE_UNAVAILABLE, detail))
        }
    }
}

/// The request's path below the base URL, without a key in the query.
fn target(model: &ModelAccess, request: &Request<Incoming>) -> Result<Url, Refused> {
    let wrong = |detail: &str| Refused(StatusCode::BAD_REQUEST, detail.to_owned());
    let mut url = Url::parse(model.base_url()).map_err(|_| wrong("the base URL is none"))?;
    let base = url.path().trim_end_matches('/').to_owned();
    let path = once(&base, request.uri().path());
    url.set_path(&format!("{base}{path}"));
    // What leads up and out is resolved by now.
    let below = url.path().strip_prefix(&base).is_some_and(|rest| rest.starts_with('/'));
    if !path.starts_with('/') || !below {
        return Err(wrong("the path leads out of the base URL"));
    }
    let kept = request.uri().query().map(|query| {
        let pairs = query.split('&').filter(|pair| !pair.is_empty() && !is_key(pair));
        pairs.collect::<Vec<_>>().join("&")
    });
    url.set_query(kept.as_deref().filter(|query| !query.is_empty()));
    Ok(url)
}

/// People write a base URL with or without the version, and their programs may add it again.
fn once<'a>(base: &str, path: &'a str) -> &'a str {
    let version = base.rsplit_once('/').map(|(_, last)| last);
    let version = version.filter(|last| matches!(*last, "v1" | "v1beta"));
    let rest = version.and_then(|version| path.strip_prefix('/')?.strip_prefix(version));
    rest.filter(|rest| rest.starts_with('/')).unwrap_or(path)
}

/// Google's clients may put their key there.
fn is_key(pair: &str) -> bool {
    pair == "key" || pair.starts_with("key=")
}

/// The program's own headers with the real key in the place of any other.
fn outward(mut headers: HeaderMap, model: &ModelAccess) -> Result<HeaderMap, Refused> {
    drop_hop(&mut headers);
    for name in NOT_SENT {
        headers.remove(name);
    }
    // What is counted has to be read.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let key = &model.key.0;
    let (name, text) = match model.vendor {
        Vendor::Anthropic => (X_API_KEY, key.clone()),
        Vendor::OpenAi | Vendor::DeepSeek => (AUTHORIZATION, format!("Bearer {key}")),
        Vendor::Google => (X_GOOG_API_KEY, key.clone()),
    };
    let wrong = |_| Refused(StatusCode::BAD_GATEWAY, "the model's key cannot be sent".into());
    let mut value = HeaderValue::from_str(&text).map_err(wrong)?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(headers)
}

/// And those that the connection names as its own.
fn drop_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.into_iter().chain(HOP) {
        headers.remove(name);
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// What lives as long as the answer.
struct Passing {
    call: Call,
    owner: OwnerId,
    meter: Meter,
}

fn inward(response: reqwest::Response, mut passing: Passing) -> Response<Body> {
    let status = response.status();
    let mut headers = response.headers().clone();
    drop_hop(&mut headers);
    headers.remove(SET_COOKIE);
    let bounds = Bounds { bytes_max: ANSWER_BYTES_MAX, silence_max: ANSWER_MAX };
    let body = Body::from_stream(response.bytes_stream()).into_data_stream();
    let body = bounded(body, bounds).inspect(move |piece| {
        if let Ok(piece) = piece {
            passing.meter.see(piece);
        }
    });
    let mut answer = Response::new(Body::from_stream(body));
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    answer
}

impl Drop for Passing {
    /// Also when the program goes away in the middle: what it used, it used.
    fn drop(&mut self) {
        let tokens = self.meter.finish();
        if tokens == Tokens::default() {
            return;
        }
        let relay = &self.call.relay;
        let counted = relay.store.count_tokens(self.owner.clone(), Timestamp::now(), tokens);
        relay.tasks.spawn(async move {
            if let Err(failure) = counted.await {
                let error = format!("{:#}", anyhow::Error::from(failure));
                tracing::warn!(error, "could not count tokens");
            }
        });
    }
}

/// Ends with an error when it is too long or too slow.
fn bounded(
    body: BodyDataStream,
    bounds: Bounds,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::unfold(Some((body, bounds)), async |state| {
        let (mut body, mut bounds) = state?;
        let error = match timeout(bounds.silence_max, body.next()).await {
            Ok(None) => return None,
            Ok(Some(Ok(piece))) => {
                let bytes = piece.len() as u64;
                if bytes <= bounds.bytes_max {
                    bounds.bytes_max -= bytes;
                    return Some((Ok(piece), Some((body, bounds))));
                }
                io::Error::other("the body is too large")
            }
            Ok(Some(Err(error))) => io::Error::other(error),
            Err(_) => io::Error::new(io::ErrorKind::TimedOut, "the body does not go on"),
        };
        Some((Err(error), None))
    })
}

impl Refused {
    fn into_response(self) -> Response<Body> {
        let Self(status, message) = self;
        let error = json!({ "type": "relay_error", "code": "relay_error", "message": message });
        (status, Json(json!({ "type": "error", "error": error }))).into_response()
    }
}
