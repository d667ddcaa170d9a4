//! The Connect protocol with its JSON codec: unary calls, and streams of envelopes.

pub(crate) mod time;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use guest_proto::envelope::{self, Decoder, Envelope};
use http::{HeaderMap, HeaderValue, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::http::{Body, BodyReader, Request, Response, json as json_answer, read_all};
use crate::refusal::{Code, Refusal, Result};

const UNARY: &str = "application/json";
const STREAM: &str = "application/connect+json";

/// When a stream says that it is alive, unless the client asks for another interval.
const KEEPALIVE: Duration = Duration::from_secs(90);

/// How long a call with one message may take to end its body; then it is answered all the same.
const BODY_END_MAX: Duration = Duration::from_secs(2);

/// The message of a unary call.
pub(crate) async fn unary_request<T: DeserializeOwned>(request: Request) -> Result<T> {
    require_type(request.headers(), UNARY)?;
    let body = read_all(request.into_body(), guest_proto::JSON_BYTES_MAX).await?;
    message(&body)
}

/// The answer of a unary call.
pub(crate) fn unary<T: Serialize>(result: Result<T>) -> Response {
    match result {
        Ok(message) => json_answer(&message),
        Err(refusal) => {
            let body = json!({ "code": refusal.code.name(), "message": refusal.message });
            let mut response = json_answer(&body);
            *response.status_mut() = refusal.code.status();
            response
        }
    }
}

/// The one message of a call that is answered by a stream.
pub(crate) async fn stream_request<T: DeserializeOwned>(request: Request) -> Result<T> {
    let mut messages = Messages::new(request)?;
    let first = messages.next().await?;
    // The end of a body may come in a packet of its own. Answering before it makes the connection
    // one that cannot be used again, which its client learns too late.
    let rest = async { while let Ok(Some(_)) = messages.body.next().await {} };
    let _ = tokio::time::timeout(BODY_END_MAX, rest).await;
    first.ok_or_else(|| Refusal::invalid("there is no message"))
}

/// The messages of a call whose client streams.
pub(crate) struct Messages {
    body: BodyReader,
    decoder: Decoder,
}

impl Messages {
    pub(crate) fn new(request: Request) -> Result<Self> {
        require_type(request.headers(), STREAM)?;
        let body = BodyReader::new(request.into_body());
        Ok(Self { body, decoder: Decoder::new(guest_proto::JSON_BYTES_MAX) })
    }

    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        loop {
            let envelope = self.decoder.next_envelope().map_err(|e| match e {
                guest_proto::GuestError::TooLarge => {
                    Refusal::new(Code::TooLarge, "message too large")
                }
                other => Refusal::invalid(other.to_string()),
            })?;
            match envelope {
                Some(Envelope::Message(bytes)) => return message(&bytes).map(Some),
                Some(Envelope::End(_)) => return Ok(None),
                None => {}
            }
            match self.body.next().await? {
                Some(bytes) => self.decoder.feed(&bytes),
                None if self.decoder.is_empty() => return Ok(None),
                None => return Err(Refusal::invalid("the stream ends within a message")),
            }
        }
    }
}

/// What a stream is answered with: always 200, because errors come in its last envelope.
pub(crate) fn stream(
    messages: Result<impl Stream<Item = Result<Bytes>> + Send + Unpin + 'static>,
) -> Response {
    let body = match messages {
        Ok(messages) => Body::stream(Envelopes { messages: Some(messages) }),
        Err(refusal) if refusal.code == Code::UnsupportedMedia => return unsupported(&refusal),
        Err(refusal) => Body::full(end(Some(&refusal))),
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(STREAM));
    response
}

/// The answer to a client that streams: one message, then the end.
pub(crate) fn stream_of_one(result: Result<impl Serialize>) -> Response {
    let message =
        result.map(|message| Bytes::from(serde_json::to_vec(&message).unwrap_or_default()));
    stream(message.map(|message| futures_util::stream::iter([Ok(message)])))
}

/// How often a quiet stream says that it is alive.
pub(crate) fn keepalive(headers: &HeaderMap) -> Duration {
    let asked = number(headers, "keepalive-ping-interval").filter(|seconds| *seconds > 0);
    asked.map_or(KEEPALIVE, Duration::from_secs)
}

/// How long the call may last, if the client says.
pub(crate) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    number(headers, "connect-timeout-ms").filter(|ms| *ms > 0).map(Duration::from_millis)
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

fn message<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes)
        .map_err(|error| Refusal::invalid(format!("unmarshal message: {error}")))
}

fn require_type(headers: &HeaderMap, expected: &str) -> Result<()> {
    let sent = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = sent.unwrap_or("").split(';').next().unwrap_or("").trim();
    if !kind.eq_ignore_ascii_case(expected) {
        let message = format!("content type '{kind}' is not supported, only {expected} is");
        return Err(Refusal::new(Code::UnsupportedMedia, message));
    }
    let encoding =
        headers.get("connect-content-encoding").or(headers.get(header::CONTENT_ENCODING));
    if encoding.is_some_and(|encoding| encoding != "identity") {
        return Err(Refusal::new(Code::Unimplemented, "compression is not supported"));
    }
    Ok(())
}

fn unsupported(refusal: &Refusal) -> Response {
    let mut response = unary::<()>(Err(refusal.clone()));
    response.headers_mut().insert("accept-post", HeaderValue::from_static(STREAM));
    response
}

fn end(refusal: Option<&Refusal>) -> Bytes {
    let trailer = match refusal {
        None => Bytes::from_static(b"{}"),
        Some(refusal) => {
            let error = json!({ "code": refusal.code.name(), "message": refusal.message });
            json!({ "error": error }).to_string().into()
        }
    };
    let mut out = BytesMut::new();
    envelope::encode(&Envelope::End(trailer), &mut out);
    out.freeze()
}

/// Puts messages into envelopes, and their end or their error into the last one.
struct Envelopes<S> {
    messages: Option<S>,
}

impl<S: Stream<Item = Result<Bytes>> + Unpin> Stream for Envelopes<S> {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(messages) = &mut self.messages else { return Poll::Ready(None) };
        let Poll::Ready(message) = Pin::new(messages).poll_next(cx) else { return Poll::Pending };
        let bytes = match message {
            Some(Ok(message)) => {
                let mut out = BytesMut::new();
                envelope::encode(&Envelope::Message(message), &mut out);
                out.freeze()
            }
            Some(Err(refusal)) => {
                self.messages = None;
                end(Some(&refusal))
            }
            None => {
                self.messages = None;
                end(None)
            }
        };
        Poll::Ready(Some(Ok(bytes)))
    }
}
