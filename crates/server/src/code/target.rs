//! The API that code calls: our own, through this server's routes as any client would come, or another over
//! HTTP. Every check of a call is here; the caller's key is added here and is nowhere nearer to the code.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
};
use axum::http::{Method, Request};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use guest_proto::code::{Call, Outcome};
use serde_json::{Value, json};
use tower_service::Service as _;
use url::Url;

use super::guard;
use super::identity::Identity;
use crate::listen::Inside;

/// Of a request; the document's cap on bodies.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Of an answer; it must fit into the engine's memory a few times.
const ANSWER_BYTES_MAX: usize = 2 << 20;
/// Of one request. What streams without an end is cut off by it.
const REQUEST_MAX: Duration = Duration::from_secs(60);

const METHODS: [Method; 7] = [
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::HEAD,
    Method::OPTIONS,
];

/// Which API.
pub(super) enum Target {
    Ours { inside: Inside, base: Url },
    Other { client: reqwest::Client, base: Url },
}

/// One tool call's way to it.
pub(super) struct Way<'a> {
    pub(super) target: &'a Target,
    pub(super) identity: &'a Identity,
    /// Nothing but GET.
    pub(super) reads_only: bool,
    /// Where another API wants its key, if not as a bearer token.
    pub(super) key_header: Option<&'a str>,
    /// Which endpoints were called, for the log.
    pub(super) called: std::sync::atomic::AtomicU32,
}

/// A call that passed all checks.
struct Checked {
    method: Method,
    url: Url,
    content_type: Option<HeaderValue>,
    body: Bytes,
}

struct Answered {
    status: u16,
    content_type: String,
    body: Bytes,
}

impl Target {
    pub(super) fn blocked(&self) -> &'static [&'static str] {
        match self {
            Self::Ours { .. } => guard::OF_OURS,
            Self::Other { .. } => guard::OF_OTHERS,
        }
    }

    fn base(&self) -> &Url {
        match self {
            Self::Ours { base, .. } | Self::Other { base, .. } => base,
        }
    }
}

impl Way<'_> {
    /// Does what the code asks for, unless a check is against it.
    pub(super) async fn call(&self, call: Call) -> Outcome {
        let checked = match self.check(&call) {
            Ok(checked) => checked,
            Err(why) => return Outcome::Refused(why),
        };
        self.called.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let late = || format!("no answer within {} s", REQUEST_MAX.as_secs());
        let answered = tokio::time::timeout(REQUEST_MAX, self.send(checked)).await;
        match answered.unwrap_or_else(|_| Err(late())) {
            Ok(answered) => {
                let Answered { status, content_type, body } = answered;
                let data = data(&content_type, &body);
                Outcome::Answer { status, ok: (200..300).contains(&status), data }
            }
            Err(why) => Outcome::Refused(why),
        }
    }

    fn check(&self, call: &Call) -> Result<Checked, String> {
        let method = METHODS.iter().find(|known| known.as_str() == call.method);
        let method = method.ok_or_else(|| format!("no such method: {:?}", call.method))?.clone();
        if self.reads_only && method != Method::GET {
            return Err(format!("execute_read only reads: {method} is refused; use execute_write"));
        }
        let url = self.url(call)?;
        let (content_type, body) = body(call)?;
        if body.len() > REQUEST_BYTES_MAX {
            return Err(format!("the body is larger than {REQUEST_BYTES_MAX} bytes"));
        }
        if method == Method::GET && !body.is_empty() {
            return Err("a GET has no body".into());
        }
        Ok(Checked { method, url, content_type, body })
    }

    /// Where it goes: below the base, whatever the path tries.
    fn url(&self, call: &Call) -> Result<Url, String> {
        let (path, query) = call.path.split_once('?').unwrap_or((&call.path, ""));
        let blocked = self.target.blocked();
        guard::check(path, blocked)?;
        let base = self.target.base();
        let prefix = base.path().trim_end_matches('/');
        let origin = base.origin().ascii_serialization();
        let mut url =
            Url::parse(&format!("{origin}{prefix}{path}")).map_err(|_| "not a path".to_owned())?;
        let below = url.path().strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
        if url.origin() != base.origin() || !below {
            return Err("the path leaves the API".into());
        }
        // As it will be sent, too.
        guard::check(url.path(), blocked)?;
        if !query.is_empty() {
            url.set_query(Some(query));
        }
        add_query(&mut url, call.query.as_ref())?;
        Ok(url)
    }

    async fn send(&self, checked: Checked) -> Result<Answered, String> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.extend(checked.content_type.map(|kind| (CONTENT_TYPE, kind)));
        match self.target {
            Target::Ours { inside, .. } => {
                headers.extend(self.identity.credential());
                let (method, url, body) = (checked.method, checked.url, checked.body);
                self.send_inside(inside, (method, url), headers, body).await
            }
            Target::Other { client, .. } => {
                let (name, value) = self.foreign_credential()?;
                headers.insert(name, value);
                send_out(client, checked.method, checked.url, (headers, checked.body)).await
            }
        }
    }

    fn foreign_credential(&self) -> Result<(HeaderName, HeaderValue), String> {
        let secret = &self.identity.secret.0;
        let wrong = |_| "the key cannot be sent".to_owned();
        let (name, text) = match self.key_header {
            Some(name) => (name.parse().map_err(|_| "not a header".to_owned())?, secret.clone()),
            None => (AUTHORIZATION, format!("Bearer {secret}")),
        };
        let mut value = HeaderValue::try_from(text).map_err(wrong)?;
        value.set_sensitive(true);
        Ok((name, value))
    }

    async fn send_inside(
        &self,
        inside: &Inside,
        (method, url): (Method, Url),
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Answered, String> {
        let Some(mut routes) = inside.routes() else { return Err("the server is ending".into()) };
        let host = HeaderValue::try_from(url.authority()).map_err(|error| error.to_string())?;
        headers.insert(HOST, host);
        // As every client on a wire would: what has none is no upload.
        if method != Method::GET {
            headers.insert(CONTENT_LENGTH, body.len().into());
        }
        let path = &url[url::Position::BeforePath..url::Position::AfterQuery];
        let mut request = Request::builder().method(method).uri(path);
        if let Some(peer) = self.identity.peer {
            request = request.extension(peer);
        }
        let mut request = request.body(Body::from(body)).map_err(|error| error.to_string())?;
        *request.headers_mut() = headers;
        let response = match routes.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, ANSWER_BYTES_MAX).await.map_err(|_| too_large())?;
        let content_type = content_type(&parts.headers);
        Ok(Answered { status: parts.status.as_u16(), content_type, body })
    }
}

async fn send_out(
    client: &reqwest::Client,
    method: Method,
    url: Url,
    (headers, body): (HeaderMap, Bytes),
) -> Result<Answered, String> {
    let request = client.request(method, url).headers(headers).body(body);
    // Its own words would name the URL and nothing that the code can change.
    let gone = |_| "the API does not answer".to_owned();
    let mut response = request.send().await.map_err(gone)?;
    let status = response.status().as_u16();
    let content_type = content_type(response.headers());
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(gone)? {
        if body.len() + piece.len() > ANSWER_BYTES_MAX {
            return Err(too_large());
        }
        body.extend_from_slice(&piece);
    }
    Ok(Answered { status, content_type, body: body.into() })
}

fn add_query(url: &mut Url, query: Option<&Value>) -> Result<(), String> {
    let Some(query) = query.filter(|query| !query.is_null()) else { return Ok(()) };
    let Value::Object(query) = query else { return Err("query must be an object".into()) };
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    let mut added = Vec::new();
    for (name, value) in query {
        match value {
            Value::Null => {}
            Value::Array(items) => {
                let texts = items.iter().filter_map(text);
                added.extend(texts.map(|text| (name, text)));
            }
            other => {
                let wrong = || format!("query.{name} must be a string, number, boolean or array");
                added.push((name, text(other).ok_or_else(wrong)?));
            }
        }
    }
    if !added.is_empty() {
        url.query_pairs_mut().extend_pairs(added);
    }
    Ok(())
}

fn body(call: &Call) -> Result<(Option<HeaderValue>, Bytes), String> {
    let (default, body) = match (&call.body, &call.raw_body, &call.raw_base64) {
        (None, None, None) => return Ok((None, Bytes::new())),
        (Some(body), None, None) => ("application/json", Bytes::from(body.to_string())),
        (None, Some(text), None) => ("text/plain; charset=utf-8", Bytes::from(text.clone())),
        (None, None, Some(base64)) => {
            let bytes = STANDARD.decode(base64).map_err(|_| "rawBody is not base64".to_owned())?;
            ("application/octet-stream", Bytes::from(bytes))
        }
        _ => return Err("give body or rawBody, not both".into()),
    };
    let kind = call.content_type.as_deref().unwrap_or(default);
    let kind = HeaderValue::try_from(kind).map_err(|_| "contentType is no header".to_owned())?;
    Ok((Some(kind), body))
}

fn content_type(headers: &HeaderMap) -> String {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.unwrap_or_default().to_ascii_lowercase()
}

/// As code wants it: parsed JSON, else text, else bytes as base64.
fn data(content_type: &str, body: &[u8]) -> Value {
    if body.is_empty() {
        return Value::Null;
    }
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    let is_json = kind == "application/json" || kind.ends_with("+json");
    if let (true, Ok(value)) = (is_json, serde_json::from_slice(body)) {
        return value;
    }
    match std::str::from_utf8(body) {
        Ok(text) => text.into(),
        Err(_) => json!({ "base64": STANDARD.encode(body) }),
    }
}

fn too_large() -> String {
    format!(
        "the answer is larger than {ANSWER_BYTES_MAX} bytes, or ended early; ask for less of it"
    )
}
