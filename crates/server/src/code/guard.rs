//! Which paths of an API code may call: everything but what hands out or changes credentials and who may
//! do what (ruling 46). A path is looked at in every form that a server could make of it; a refusal too
//! many is no harm.

use std::borrow::Cow;

/// Ours.
pub(super) const OF_OURS: &[&str] = &[
    "api-keys",
    "access-tokens",
    "teams",
    "admin",
    "tenants",
    "auth",
    "secrets",
    "billing",
    "audit",
    "mcp",
];

/// Of any other API (002).
pub(super) const OF_OTHERS: &[&str] = &["api-keys", "access-tokens", "teams", "admin"];

const PATH_BYTES_MAX: usize = 4096;
/// Nobody encodes a path more often than that without meaning ill.
const ROUNDS_MAX: usize = 16;

/// Refuses a path that names one of `blocked` as a segment, however it is written.
pub(super) fn check(path: &str, blocked: &[&str]) -> Result<(), String> {
    if !path.starts_with('/') {
        return Err("path must begin with /".into());
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(format!("path is longer than {PATH_BYTES_MAX} bytes"));
    }
    let mut current = Cow::Borrowed(path);
    for _ in 0..ROUNDS_MAX {
        if current.chars().any(char::is_control) || current.contains('#') {
            return Err("path must not contain # or control characters".into());
        }
        // Before dots are resolved too: not every server resolves what it decodes.
        let segments: Vec<&str> = current.split(['/', '\\']).collect();
        if let Some(name) = segments.iter().find_map(|segment| named(segment, blocked)) {
            return Err(format!("paths with {name} are not open to code: {path}"));
        }
        let next = normal(&segments);
        if next == current {
            return Ok(());
        }
        current = Cow::Owned(next);
    }
    Err("path is encoded too often".into())
}

fn named<'a>(segment: &str, blocked: &[&'a str]) -> Option<&'a str> {
    // Some servers take what follows a semicolon, or a dot or space at the end, for nothing.
    let bare = segment.split([';', '?']).next().unwrap_or_default();
    let bare = bare.trim_matches(|c: char| c.is_whitespace() || c == '.');
    blocked.iter().copied().find(|name| bare.eq_ignore_ascii_case(name))
}

/// One step: dots resolved, slashes collapsed, lower case, one layer of encoding taken off.
fn normal(segments: &[&str]) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in segments {
        match *segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            other => kept.push(other),
        }
    }
    let path = format!("/{}", kept.join("/"));
    percent_decoded(&path).to_lowercase()
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| bytes[at] == b'%').map(|hex| u8::from_str_radix(hex, 16)) {
            Some(Ok(byte)) => {
                decoded.push(byte);
                at += 3;
            }
            Some(Err(_)) | None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_blocked_segment_is_refused() {
        for path in [
            "/api-keys",
            "/v1/api-keys",
            "/v1/api-keys/",
            "/%61pi-keys",
            "/%2561pi-keys",
            "/%252561pi-keys",
            "//access-tokens",
            "/x%2F..%2Fteams",
            "/x%252F..%252Fteams",
            "/TEAMS",
            "/Teams/",
            "/teams/x",
            "/./teams",
            "/x/../teams",
            "/x\\..\\teams",
            "/x%5C..%5Cteams",
            "/%2e%2e/teams",
            "/teams/..%2Fsandboxes",
            "/teams/%2e%2e/sandboxes",
            "/teams;x=1",
            "/teams%3Bx",
            "/teams?x",
            "/teams%3Fx",
            "/teams%20",
            "/teams%2e",
            "/%74%65%61%6d%73",
            "/admin/teams/1/api-keys",
            "/sandboxes/%2e%2e/%61dmin",
            "/v1//admin",
            "/v1/sandboxes/..%2f..%2fv1%2fadmin",
        ] {
            assert!(check(path, OF_OTHERS).is_err(), "{path}");
            assert!(check(path, OF_OURS).is_err(), "{path}");
        }
        for path in
            ["/v1/tenants/me", "/v1/auth/login", "/v1/secrets", "/v1/billing/balance", "/mcp"]
        {
            assert!(check(path, OF_OURS).is_err(), "{path}");
        }
    }

    #[test]
    fn what_is_no_path_is_refused() {
        let endless = format!("/%{}61pi-keys", "25".repeat(40));
        for path in ["", "v1", "http://x/", "/a#b", "/a\nb", "/a%0ab", "/a%00", &endless] {
            assert!(check(path, OF_OTHERS).is_err(), "{path}");
        }
        assert!(check(&format!("/{}", "x".repeat(5000)), OF_OTHERS).is_err());
    }

    #[test]
    fn everything_else_passes() {
        for path in [
            "/",
            "/sandboxes",
            "/v1/sandboxes/sb-1/exec",
            "/v1/sandboxes/fragrant-bird-7x2/files",
            "/my-teams",
            "/api-keys-of-mine",
            "/100%",
            "/%zz",
            "/caf%C3%A9",
        ] {
            assert_eq!(check(path, OF_OTHERS), Ok(()), "{path}");
        }
    }
}
