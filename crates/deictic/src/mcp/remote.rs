//! A tool server behind an address: the streamable form of the protocol, over our own HTTP and with our own
//! bounds.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::{Error as SseError, Sse};

use crate::fault::Fault;
use crate::limits::Limits;
use crate::model::http::{Http, Patience, next_piece, read_up_to};
use crate::model::sse::{Event, Events};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";

/// One answer that is not a stream.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A stream in which the server may say something one day.
const STREAM_MAX: Duration = Duration::from_secs(24 * 3600);

type Error = StreamableHttpError<Fault>;
type EventStream = BoxStream<'static, Result<Sse, SseError>>;

#[derive(Debug, Clone)]
pub(super) struct Client {
    http: Arc<Http>,
    wait: Duration,
}

pub(super) fn transport(
    url: &str,
    headers: &BTreeMap<String, String>,
    limits: &Limits,
) -> Result<StreamableHttpClientTransport<Client>, String> {
    let mut config = StreamableHttpClientTransportConfig::with_uri(url);
    let mut all = HashMap::new();
    for (name, value) in headers {
        let wrong = || format!("headers: not a header: {name}");
        let header = name.parse::<HeaderName>().map_err(|_| wrong())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        all.insert(header, value);
    }
    config.custom_headers = all;
    let http = Arc::new(Http::new(limits.connect));
    let client = Client { http, wait: limits.mcp_call };
    Ok(StreamableHttpClientTransport::with_client(client, config))
}

/// What goes with every request.
struct With {
    session: Option<Arc<str>>,
    auth: Option<String>,
    custom: HashMap<HeaderName, HeaderValue>,
}

impl Client {
    fn request(
        method: Method,
        uri: &str,
        with: With,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, Error> {
        let unusable = |error: http::Error| Error::Client(Fault::Unusable(error.to_string()));
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(session) = &with.session {
            request = request.header(SESSION, session.as_ref());
        }
        if let Some(token) = &with.auth {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in with.custom {
            request = request.header(name, value);
        }
        request.body(Full::new(body)).map_err(unusable)
    }

    async fn send(
        &self,
        request: Request<Full<Bytes>>,
        patience: &Patience,
    ) -> Result<Response<Incoming>, Error> {
        self.http.send(request, patience).await.map_err(Error::Client)
    }
}

impl StreamableHttpClient for Client {
    type Error = Fault;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let had_session = session_id.is_some();
        let body = Bytes::from(serde_json::to_vec(&message)?);
        let with = With { session: session_id, auth: auth_header, custom: custom_headers };
        let mut request = Self::request(Method::POST, &uri, with, body)?;
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("text/event-stream, application/json"),
        );
        let patience = Patience::new(self.wait, self.wait);
        let response = self.send(request, &patience).await?;
        let (head, mut body) = response.into_parts();
        if matches!(head.status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if head.status == StatusCode::NOT_FOUND && had_session {
            return Err(Error::SessionExpired);
        }
        if !head.status.is_success() {
            let message = format!("it answered {}", head.status);
            return Err(Error::UnexpectedServerResponse(Cow::Owned(message)));
        }
        let text = |name: HeaderName| {
            head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let session = text(SESSION);
        let kind = text(header::CONTENT_TYPE).unwrap_or_default().to_lowercase();
        if kind.starts_with(EVENTS) {
            return Ok(StreamableHttpPostResponse::Sse(events(body, patience), session));
        }
        let read = read_up_to(&mut body, ANSWER_BYTES_MAX, &patience).await;
        let read = read.map_err(Error::Client)?;
        match serde_json::from_slice::<ServerJsonRpcMessage>(&read) {
            Ok(answer) => Ok(StreamableHttpPostResponse::Json(answer, session)),
            // Nothing was asked.
            Err(_) if !matches!(message, ClientJsonRpcMessage::Request(_)) => {
                Ok(StreamableHttpPostResponse::Accepted)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Error> {
        let with = With { session: Some(session_id), auth: auth_header, custom: custom_headers };
        let request = Self::request(Method::DELETE, &uri, with, Bytes::new())?;
        let patience = Patience::new(self.wait, self.wait);
        self.send(request, &patience).await.map(drop)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<EventStream, Error> {
        let with = With { session: session_id, auth: auth_header, custom: custom_headers };
        let mut request = Self::request(Method::GET, &uri, with, Bytes::new())?;
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(EVENTS));
        if let Some(id) = last_event_id.and_then(|id| HeaderValue::from_str(&id).ok()) {
            request.headers_mut().insert(LAST_EVENT, id);
        }
        let patience = Patience::new(STREAM_MAX, STREAM_MAX);
        let response = self.send(request, &patience).await?;
        if !response.status().is_success() {
            return Err(Error::ServerDoesNotSupportSse);
        }
        Ok(events(response.into_body(), patience))
    }
}

struct Reading {
    body: Incoming,
    patience: Patience,
    events: Events,
    ready: VecDeque<Event>,
}

/// Bounded as those of models are.
fn events(body: Incoming, patience: Patience) -> EventStream {
    let reading = Reading { body, patience, events: Events::default(), ready: VecDeque::new() };
    let all = stream::try_unfold(reading, |mut reading| async move {
        loop {
            if let Some(event) = reading.ready.pop_front() {
                let name = Some(event.name).filter(|name| !name.is_empty());
                let id = Some(event.id).filter(|id| !id.is_empty());
                let sse = Sse { event: name, data: Some(event.data), id, retry: None };
                return Ok(Some((sse, reading)));
            }
            let piece = next_piece(&mut reading.body, &reading.patience).await;
            let Some(piece) = piece.map_err(|fault| SseError::Body(Box::new(fault)))? else {
                return Ok(None);
            };
            let mut ready = Vec::new();
            let pushed = reading.events.push(&piece, &mut ready);
            pushed.map_err(|fault| SseError::Body(Box::new(fault)))?;
            reading.ready.extend(ready);
        }
    });
    all.boxed()
}
