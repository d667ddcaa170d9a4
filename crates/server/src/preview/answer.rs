//! An answer on its way out of a sandbox. In the path form it comes under the origin of the API, so
//! the browser is told to treat it as nobody's page, and it may set nothing that outlives it.

use axum::body::Body;
use axum::http::header::{
    ALT_SVC, CONTENT_SECURITY_POLICY, LOCATION, SET_COOKIE, STRICT_TRANSPORT_SECURITY,
    WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;

use super::place::{Form, Place};
use super::request::{drop_hop_by_hop, is_our_cookie};

/// Without `allow-same-origin`: what runs there has no origin, no cookies, no storage.
const NOBODYS_PAGE: HeaderValue =
    HeaderValue::from_static("sandbox allow-scripts allow-forms allow-popups allow-modals");

/// What a page must not say for the whole origin of the API.
const FOR_THE_ORIGIN: [HeaderName; 11] = [
    SET_COOKIE,
    STRICT_TRANSPORT_SECURITY,
    ALT_SVC,
    WWW_AUTHENTICATE,
    HeaderName::from_static("service-worker-allowed"),
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("nel"),
    HeaderName::from_static("report-to"),
    HeaderName::from_static("reporting-endpoints"),
    HeaderName::from_static("accept-ch"),
    HeaderName::from_static("public-key-pins"),
];

/// What it must not say under a host of its own either: these reach other ports and neighbours.
const FOR_THE_HOST: [HeaderName; 2] = [STRICT_TRANSPORT_SECURITY, ALT_SVC];

pub(super) fn outward(response: &mut Response<Body>, place: &Place) {
    let headers = response.headers_mut();
    drop_hop_by_hop(headers);
    match &place.form {
        Form::Host { .. } => {
            for name in &FOR_THE_HOST {
                headers.remove(name);
            }
            keep_cookies_at_home(headers);
        }
        Form::Path { prefix } => {
            for name in &FOR_THE_ORIGIN {
                headers.remove(name);
            }
            // Beside its own: of several policies a browser keeps all.
            headers.append(CONTENT_SECURITY_POLICY, NOBODYS_PAGE);
            lead_back(headers, prefix, place.port);
        }
    }
}

/// A cookie stays with the host that set it: without `Domain`, neighbours never get it. And none is
/// called as ours are.
fn keep_cookies_at_home(headers: &mut HeaderMap) {
    let cookies: Vec<HeaderValue> = headers.get_all(SET_COOKIE).iter().cloned().collect();
    headers.remove(SET_COOKIE);
    for cookie in cookies {
        let Ok(text) = cookie.to_str() else { continue };
        let name = text.split(['=', ';']).next().unwrap_or_default().trim();
        if is_our_cookie(name) {
            continue;
        }
        let is_domain = |part: &str| {
            let name = part.split('=').next().unwrap_or_default();
            name.trim().eq_ignore_ascii_case("domain")
        };
        let mut parts = text.split(';');
        let first = parts.next().unwrap_or_default();
        let kept: Vec<&str> =
            std::iter::once(first).chain(parts.filter(|part| !is_domain(part))).collect();
        if let Ok(value) = HeaderValue::try_from(kept.join(";")) {
            headers.append(SET_COOKIE, value);
        }
    }
}

/// `/login` of the sandbox is below the prefix here, and so is what it thinks its own address is.
fn lead_back(headers: &mut HeaderMap, prefix: &str, port: u16) {
    let Some(location) = headers.get(LOCATION).and_then(|value| value.to_str().ok()) else {
        return;
    };
    let own = [format!("http://localhost:{port}"), format!("http://127.0.0.1:{port}")];
    let path = own.iter().find_map(|own| location.strip_prefix(own.as_str())).unwrap_or(location);
    let is_path = path.is_empty() || (path.starts_with('/') && !path.starts_with("//"));
    if is_path && let Ok(value) = HeaderValue::try_from(format!("{prefix}{path}")) {
        headers.insert(LOCATION, value);
    }
}
