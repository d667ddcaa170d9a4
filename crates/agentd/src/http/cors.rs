//! Calls from pages of other origins, if the operator wants them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD,
    ALLOW, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

/// What is allowed. An empty list allows everything.
#[derive(Debug, Clone, Default)]
pub struct Cors {
    pub origins: Vec<HeaderValue>,
    pub methods: Vec<HeaderValue>,
    pub headers: Vec<HeaderValue>,
    pub credentials: bool,
}

impl Cors {
    /// Whether anything was asked for: without that there are no such headers at all.
    pub fn is_wanted(&self) -> bool {
        self.credentials
            || !self.origins.is_empty()
            || !self.methods.is_empty()
            || !self.headers.is_empty()
    }

    fn origin(&self, sent: Option<&HeaderValue>) -> Option<HeaderValue> {
        if self.origins.is_empty() {
            return self.any(sent);
        }
        sent.filter(|sent| self.origins.contains(sent)).cloned()
    }

    /// With credentials a browser takes no `*`: then what was asked for is allowed by name.
    fn any(&self, asked: Option<&HeaderValue>) -> Option<HeaderValue> {
        if self.credentials { asked.cloned() } else { Some(HeaderValue::from_static("*")) }
    }

    fn list(&self, allowed: &[HeaderValue], asked: Option<&HeaderValue>) -> Option<HeaderValue> {
        if allowed.is_empty() {
            return self.any(asked);
        }
        let names: Vec<&[u8]> = allowed.iter().map(HeaderValue::as_bytes).collect();
        HeaderValue::from_bytes(&names.join(&b',')).ok()
    }
}

pub(super) async fn apply(State(cors): State<Arc<Cors>>, request: Request, next: Next) -> Response {
    let asked = request.headers().clone();
    let preflight = request.method() == Method::OPTIONS;
    let mut response = next.run(request).await;
    if preflight {
        let allow = response.headers_mut().remove(ALLOW);
        response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::OK;
        insert(response.headers_mut(), ALLOW, allow);
        let methods = cors.list(&cors.methods, asked.get(ACCESS_CONTROL_REQUEST_METHOD));
        insert(response.headers_mut(), ACCESS_CONTROL_ALLOW_METHODS, methods);
        let headers = cors.list(&cors.headers, asked.get(ACCESS_CONTROL_REQUEST_HEADERS));
        insert(response.headers_mut(), ACCESS_CONTROL_ALLOW_HEADERS, headers);
    }
    let headers = response.headers_mut();
    insert(headers, ACCESS_CONTROL_ALLOW_ORIGIN, cors.origin(asked.get(ORIGIN)));
    if cors.credentials {
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
    let vary = "origin, access-control-request-method, access-control-request-headers";
    headers.insert(VARY, HeaderValue::from_static(vary));
    response
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    if let Some(value) = value {
        headers.insert(name, value);
    }
}
