//! Bodies that come in: JSON read whole within a limit, files passed on as they come.
//!
//! Both end when the client stops sending for too long. A file is never held in memory.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use model::Error;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::app::App;
use crate::refusal::Refusal;

/// A JSON body, with its bytes.
pub(crate) struct Json<T> {
    pub(crate) value: T,
    pub(crate) bytes: Bytes,
}

/// A JSON body that may be left out.
pub(crate) struct OptionalJson<T>(pub(crate) T);

/// Why an upload ended early; the stream itself can only say "broken".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    TooLarge { bytes_max: u64 },
    TooSlow,
    Gone,
}

/// Tells afterwards what happened to an upload.
#[derive(Debug, Clone, Default)]
pub(crate) struct Verdict(Arc<OnceLock<Broken>>);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refusal> {
        let bytes = read(request, app).await?;
        let value = api::json::parse(&bytes)?;
        Ok(Self { value, bytes })
    }
}

impl<T: DeserializeOwned + Default> FromRequest<App> for OptionalJson<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refusal> {
        let bytes = read(request, app).await?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self(T::default()));
        }
        Ok(Self(api::json::parse(&bytes)?))
    }
}

impl Verdict {
    /// The better answer, when the body is why `error` came about.
    pub(crate) fn or(&self, error: Error) -> Refusal {
        match self.0.get() {
            Some(Broken::TooLarge { bytes_max }) => Refusal::TooLarge { bytes_max: *bytes_max },
            Some(Broken::TooSlow) => Refusal::TooSlow,
            Some(Broken::Gone) => Error::invalid("body", "ended before it was complete").into(),
            None => error.into(),
        }
    }
}

/// The body as a stream of at most `bytes_max`. Refuses a request that has no body at all.
pub(crate) fn upload(
    request: Request,
    bytes_max: u64,
    patience: Duration,
) -> Result<(impl Stream<Item = io::Result<Bytes>> + Send + 'static, Verdict), Refusal> {
    match content_length(request.headers()) {
        Some(length) if length > bytes_max => return Err(Refusal::TooLarge { bytes_max }),
        None if !request.headers().contains_key(TRANSFER_ENCODING) => {
            let detail = "missing: send the bytes, or Content-Length: 0 for an empty file";
            return Err(Error::invalid("body", detail).into());
        }
        Some(_) | None => {}
    }
    let verdict = Verdict::default();
    let told = verdict.clone();
    let body = request.into_body().into_data_stream();
    let chunks = stream::unfold(Some((body, bytes_max)), move |state| {
        let told = told.clone();
        async move {
            let (mut body, left) = state?;
            let broken = match timeout(patience, body.next()).await {
                Ok(None) => return None,
                Ok(Some(Ok(bytes))) => match left.checked_sub(bytes.len() as u64) {
                    Some(left) => return Some((Ok(bytes), Some((body, left)))),
                    None => Broken::TooLarge { bytes_max },
                },
                Ok(Some(Err(_))) => Broken::Gone,
                Err(_) => Broken::TooSlow,
            };
            let _ = told.0.set(broken);
            Some((Err(io::Error::other("the upload broke off")), None))
        }
    });
    // The guest's client may ask once more after the end.
    Ok((chunks.fuse(), verdict))
}

/// A small body, read whole.
pub(crate) async fn read(request: Request, app: &App) -> Result<Bytes, Refusal> {
    read_up_to(request, app, app.limits.json_bytes).await
}

/// The same, with a limit of its own.
pub(crate) async fn read_up_to(
    request: Request,
    app: &App,
    bytes_max: u64,
) -> Result<Bytes, Refusal> {
    let patience = Duration::from_secs(app.limits.body_timeout_seconds);
    let announced = content_length(request.headers()).unwrap_or(0);
    if announced > bytes_max {
        return Err(Refusal::TooLarge { bytes_max });
    }
    collect(request.into_body(), bytes_max, patience).await
}

async fn collect(body: Body, bytes_max: u64, patience: Duration) -> Result<Bytes, Refusal> {
    let mut chunks = body.into_data_stream();
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    loop {
        let next = timeout(patience, chunks.next()).await.map_err(|_| Refusal::TooSlow)?;
        let Some(chunk) = next else { break };
        let chunk = chunk.map_err(|_| Error::invalid("body", "ended before it was complete"))?;
        if (first.len() + whole.len() + chunk.len()) as u64 > bytes_max {
            return Err(Refusal::TooLarge { bytes_max });
        }
        // Nearly every body comes in one piece, which then is not copied.
        if first.is_empty() && whole.is_empty() {
            first = chunk;
            continue;
        }
        if !first.is_empty() {
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
