//! Asking a model: the request of its vendor out, its events in, each wait and each size bounded.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::Value;
use url::Url;

use super::answer::{Answer, Piece};
use super::endpoint::{Endpoint, Vendor};
use super::http::{Http, Patience, next_piece, read_up_to};
use super::refusal::fault_of;
use super::sse::{Event, Events};
use super::{Request, anthropic, chat, google, responses};
use crate::fault::Fault;
use crate::limits::Limits;

/// Of an answer that is an error.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// After the last event of an answer, until its connection may be used again.
const END_WAIT: Duration = Duration::from_secs(1);

/// A model that can be asked, again and again.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) endpoint: Endpoint,
    http: Http,
    idle: Duration,
    answer: Duration,
}

impl Client {
    pub(crate) fn new(endpoint: Endpoint, limits: &Limits) -> Self {
        let http = Http::new(limits.connect);
        Self { endpoint, http, idle: limits.idle, answer: limits.answer }
    }

    /// Until the model begins to answer. Dropping what comes of it ends the connection.
    pub(crate) async fn ask(&self, request: &Request<'_>) -> Result<Stream, Fault> {
        let endpoint = &self.endpoint;
        let body = Decoder::body(endpoint, request).to_string();
        let url = Decoder::url(endpoint);
        let mut sent = http::Request::builder()
            .method(Method::POST)
            .uri(url.as_str())
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Fault::Unusable(format!("base_url: {error}")))?;
        let headers = sent.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static("bastide-deictic"));
        headers.extend(Decoder::headers(endpoint));
        let patience = Patience::new(self.idle, self.answer);
        let response = self.http.send(sent, &patience).await?;
        let (head, mut body) = response.into_parts();
        if !head.status.is_success() {
            let said = read_up_to(&mut body, REFUSAL_BYTES_MAX, &patience).await;
            let said = said.unwrap_or_default();
            return Err(fault_of(head.status.as_u16(), &head.headers, &said));
        }
        if !is_stream(&head.headers) {
            return Err(Fault::Garbage("it is not a stream of events".to_owned()));
        }
        let decoder = Decoder::new(endpoint.vendor);
        let (events, pieces) = (Events::default(), VecDeque::new());
        Ok(Stream { body, patience, events, decoder, pieces, over: false })
    }
}

fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().to_lowercase().starts_with("text/event-stream"))
}

/// An answer while it comes.
#[derive(Debug)]
pub(crate) struct Stream {
    body: Incoming,
    patience: Patience,
    events: Events,
    decoder: Decoder,
    pieces: VecDeque<Piece>,
    over: bool,
}

impl Stream {
    /// The next thing to show; `None` when the model has said all.
    pub(crate) async fn next(&mut self) -> Result<Option<Piece>, Fault> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Ok(Some(piece));
            }
            if self.over {
                return Ok(None);
            }
            let mut patience = self.patience;
            if self.decoder.is_over() {
                patience.idle = END_WAIT;
            }
            let bytes = match next_piece(&mut self.body, &patience).await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => {
                    self.over = true;
                    continue;
                }
                // It has said all; how it ends does not matter.
                Err(_) if self.decoder.is_over() => {
                    self.over = true;
                    continue;
                }
                Err(fault) => return Err(fault),
            };
            let (mut events, mut pieces) = (Vec::new(), Vec::new());
            self.events.push(&bytes, &mut events)?;
            for event in &events {
                self.decoder.event(event, &mut pieces)?;
            }
            self.pieces.extend(pieces);
        }
    }

    /// All of it. Call it when there is no next piece.
    pub(crate) fn answer(self) -> Result<Answer, Fault> {
        self.decoder.end()
    }
}

/// One wire format.
#[derive(Debug)]
pub(super) enum Decoder {
    Anthropic(anthropic::Decoder),
    Responses(responses::Decoder),
    Chat(chat::Decoder),
    Google(google::Decoder),
}

impl Decoder {
    pub(super) fn new(vendor: Vendor) -> Self {
        match vendor {
            Vendor::Anthropic => Self::Anthropic(anthropic::Decoder::default()),
            Vendor::OpenAi => Self::Responses(responses::Decoder::default()),
            Vendor::OpenAiChat | Vendor::DeepSeek => Self::Chat(chat::Decoder::default()),
            Vendor::Google => Self::Google(google::Decoder::default()),
        }
    }

    pub(super) fn event(&mut self, event: &Event, out: &mut Vec<Piece>) -> Result<(), Fault> {
        match self {
            Self::Anthropic(decoder) => decoder.event(event, out),
            Self::Responses(decoder) => decoder.event(event, out),
            Self::Chat(decoder) => decoder.event(event, out),
            Self::Google(decoder) => decoder.event(event, out),
        }
    }

    /// The end was said.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Anthropic(decoder) => decoder.is_over(),
            Self::Responses(decoder) => decoder.is_over(),
            Self::Chat(decoder) => decoder.is_over(),
            Self::Google(decoder) => decoder.is_over(),
        }
    }

    pub(super) fn end(self) -> Result<Answer, Fault> {
        match self {
            Self::Anthropic(decoder) => decoder.end(),
            Self::Responses(decoder) => decoder.end(),
            Self::Chat(decoder) => decoder.end(),
            Self::Google(decoder) => decoder.end(),
        }
    }

    pub(super) fn body(endpoint: &Endpoint, request: &Request<'_>) -> Value {
        match endpoint.vendor {
            Vendor::Anthropic => anthropic::body(endpoint, request),
            Vendor::OpenAi => responses::body(endpoint, request),
            Vendor::OpenAiChat | Vendor::DeepSeek => chat::body(endpoint, request),
            Vendor::Google => google::body(endpoint, request),
        }
    }

    fn url(endpoint: &Endpoint) -> Url {
        match endpoint.vendor {
            Vendor::Anthropic => endpoint.url("messages"),
            Vendor::OpenAi => endpoint.url("responses"),
            Vendor::OpenAiChat | Vendor::DeepSeek => endpoint.url("chat/completions"),
            Vendor::Google => {
                let model = &endpoint.model;
                let mut url = endpoint.url(&format!("models/{model}:streamGenerateContent"));
                url.set_query(Some("alt=sse"));
                url
            }
        }
    }

    fn headers(endpoint: &Endpoint) -> Vec<(HeaderName, HeaderValue)> {
        match endpoint.vendor {
            Vendor::Anthropic => anthropic::headers(endpoint),
            Vendor::OpenAi => responses::headers(endpoint),
            Vendor::OpenAiChat | Vendor::DeepSeek => chat::headers(endpoint),
            Vendor::Google => google::headers(endpoint),
        }
    }
}
