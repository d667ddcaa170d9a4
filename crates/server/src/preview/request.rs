//! A request on its way into a sandbox: nothing in it may be worth stealing, and nothing that says
//! where it comes from may be the client's own invention.

use std::net::IpAddr;

use axum::http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST,
    PROXY_AUTHORIZATION, REFERER, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, Version};
use model::Error;
use url::form_urlencoded;

use super::place::{Form, Place};
use crate::app::PublicAddress;

/// The parameter that holds a signed link.
pub(super) const LINK: &str = "bastide_link";

/// Parameters that may hold a credential of ours.
const SECRET_PARAMETERS: [&str; 2] = [LINK, "token"];

/// Headers that may hold a credential of the caller's, or that only we may write.
const NEVER_PASSED: [HeaderName; 7] = [
    AUTHORIZATION,
    PROXY_AUTHORIZATION,
    FORWARDED,
    EXPECT,
    CONTENT_LENGTH,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-real-ip"),
];

/// Between us and whoever is next, not beyond (RFC 9110 section 7.6.1).
pub(super) const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// As the sandbox gets it. The body stays as it is.
pub(super) fn inward<B>(
    request: Request<B>,
    place: &Place,
    address: &PublicAddress,
    peer: Option<IpAddr>,
) -> Result<Request<B>, Error> {
    let (mut parts, body) = request.into_parts();
    let host = parts.headers.get(HOST).cloned();
    parts.uri = inner_uri(&parts, place)?;
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
    let upgrade = parts.headers.get(UPGRADE).cloned().filter(|_| wants_upgrade(&parts.headers));
    let headers = &mut parts.headers;
    drop_hop_by_hop(headers);
    for name in &NEVER_PASSED {
        headers.remove(name);
    }
    let forged: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("x-forwarded-")).cloned().collect();
    for name in forged {
        headers.remove(name);
    }
    if headers.get(REFERER).is_some_and(|from| holds(from.as_bytes(), LINK.as_bytes())) {
        headers.remove(REFERER);
    }
    keep_its_cookies(headers, place);
    tell_where_from(headers, place, address, (host, peer));
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, upgrade);
    }
    Ok(Request::from_parts(parts, body))
}

/// Those headers, and the ones that `Connection` calls so.
pub(super) fn drop_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.to_str().unwrap_or_default().split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// `Connection: upgrade` with an `Upgrade`.
pub(super) fn wants_upgrade(headers: &HeaderMap) -> bool {
    let words = headers.get_all(CONNECTION).iter();
    let mut words = words.flat_map(|value| value.to_str().unwrap_or_default().split(','));
    headers.contains_key(UPGRADE) && words.any(|word| word.trim().eq_ignore_ascii_case("upgrade"))
}

/// The signed link in a query.
pub(super) fn link_of(query: Option<&str>) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query?.as_bytes());
    pairs.find(|(name, _)| name == LINK).map(|(_, value)| value.into_owned())
}

/// The query as it was written, without what may be a credential; `None` when nothing is left.
pub(super) fn clean_query(query: Option<&str>) -> Option<String> {
    let is_secret = |pair: &&str| {
        let name = form_urlencoded::parse(pair.as_bytes()).next();
        name.is_some_and(|(name, _)| SECRET_PARAMETERS.contains(&&*name))
    };
    let query = query?;
    if query.is_empty() || !query.split('&').any(|pair| is_secret(&pair)) {
        return Some(query.to_owned());
    }
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_secret(pair)).collect();
    (!kept.is_empty()).then(|| kept.join("&"))
}

/// Names and values of all cookies, as they are written.
pub(super) fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='))
}

fn inner_uri(parts: &Parts, place: &Place) -> Result<Uri, Error> {
    let path = place.inner_path(parts.uri.path());
    let query = clean_query(parts.uri.query()).map(|query| format!("?{query}")).unwrap_or_default();
    let uri = Uri::builder().path_and_query(format!("{path}{query}")).build();
    uri.map_err(|_| Error::invalid("path", "not a path"))
}

/// Under a host of its own a sandbox has cookies of its own; under the API's host it has none.
fn keep_its_cookies(headers: &mut HeaderMap, place: &Place) {
    let kept: Vec<String> = match place.form {
        Form::Path { .. } => Vec::new(),
        Form::Host { .. } => cookies(headers)
            .filter(|(name, _)| !is_our_cookie(name))
            .map(|(name, value)| format!("{name}={value}"))
            .collect(),
    };
    headers.remove(COOKIE);
    if !kept.is_empty()
        && let Ok(value) = HeaderValue::try_from(kept.join("; "))
    {
        headers.insert(COOKIE, value);
    }
}

pub(super) fn is_our_cookie(name: &str) -> bool {
    let name = name.strip_prefix("__Host-").unwrap_or(name);
    name.strip_prefix("__Secure-").unwrap_or(name) == "bastide-port"
}

fn tell_where_from(
    headers: &mut HeaderMap,
    place: &Place,
    address: &PublicAddress,
    (host, peer): (Option<HeaderValue>, Option<IpAddr>),
) {
    let local = || HeaderValue::try_from(format!("localhost:{}", place.port)).ok();
    let (inner_host, prefix) = match &place.form {
        Form::Host { .. } => (host.clone(), None),
        Form::Path { prefix } => (local(), HeaderValue::try_from(prefix.as_str()).ok()),
    };
    headers.remove(HOST);
    let told = [
        ("host", inner_host),
        ("x-forwarded-host", host),
        ("x-forwarded-proto", HeaderValue::try_from(address.scheme()).ok()),
        ("x-forwarded-for", peer.and_then(|peer| HeaderValue::try_from(peer.to_string()).ok())),
        ("x-forwarded-prefix", prefix),
    ];
    for (name, value) in told {
        if let Some(value) = value {
            headers.insert(name, value);
        }
    }
}

fn holds(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_loses_what_may_be_a_credential_and_nothing_else() {
        for (query, clean) in [
            ("a=1&b=%20&c", Some("a=1&b=%20&c")),
            ("token=x", None),
            ("a=1&token=x&b=2&bastide_link=y", Some("a=1&b=2")),
            ("%74oken=x&tokens=1", Some("tokens=1")),
            ("", Some("")),
        ] {
            assert_eq!(clean_query(Some(query)).as_deref(), clean, "{query}");
        }
    }
}
