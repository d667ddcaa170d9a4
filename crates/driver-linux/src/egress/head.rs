//! The first bytes that a program sends: do they speak to the host whose name was allowed?
//!
//! Many hosts share an address, so a checked address alone would let a program talk to any of them:
//! TLS names its host in the `ClientHello`, HTTP/1 in the request. Other protocols name none.
//! What begins like TLS or HTTP but cannot be read to that point is refused, not waved through.
//!
//! HTTP/2 without TLS is such a case.
//!
//! What this cannot see: names inside encryption (a `Host` after the handshake, TLS begun later
//! by `STARTTLS`), and later requests on one unencrypted HTTP connection.

mod tls;

use super::log::Verdict;

/// Longer heads are refused.
pub(super) const HEAD_MAX: usize = 16 << 10;

const HEADERS_MAX: usize = 128;

/// What the bytes so far say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Head {
    /// Too few to tell.
    More,
    /// A protocol that names no host, or does not do so in the first bytes.
    Nameless,
    /// TLS to this host.
    Tls(String),
    /// HTTP to these hosts (in the request line, in `Host`).
    Http(Vec<String>),
    /// Like TLS or HTTP, but broken.
    Unreadable,
}

impl Head {
    pub(super) fn read(bytes: &[u8]) -> Self {
        match bytes {
            [] | [0x16] => Self::More,
            [0x16, 0x03, ..] => tls::read(bytes),
            _ => read_http(bytes),
        }
    }

    /// `None` when it speaks to `name`, or to nobody by name. Asked of complete heads only.
    pub(super) fn differs_from(&self, name: &str) -> Option<Verdict> {
        match self {
            Self::Nameless => None,
            Self::Tls(host) => (!same(host, name)).then_some(Verdict::SniDiffers),
            Self::Http(hosts) => {
                let all_same = hosts.iter().all(|host| same(without_port(host), name));
                (!all_same).then_some(Verdict::HostDiffers)
            }
            Self::More | Self::Unreadable => Some(Verdict::Unreadable),
        }
    }
}

fn read_http(bytes: &[u8]) -> Head {
    let more = if bytes.len() < HEAD_MAX { Head::More } else { Head::Unreadable };
    // Servers skip empty lines before a request.
    let request = bytes.trim_ascii_start();
    let method = request.iter().take_while(|c| is_token(**c)).count();
    match request.get(method) {
        None => return more,
        Some(b' ' | b'\t' | 0x0b | 0x0c) if method > 0 => {}
        Some(_) => return Head::Nameless,
    }
    let Some(end) = request.iter().position(|c| *c == b'\n') else { return more };
    if !claims_http(&request[..end]) {
        return Head::Nameless;
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Complete(_)) => hosts(&parsed),
        Ok(httparse::Status::Partial) => more,
        Err(_) => Head::Unreadable,
    }
}

/// RFC 9110 section 5.6.2: any of these may be in a method, and servers take methods they do not know.
fn is_token(c: u8) -> bool {
    c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c)
}

/// Whether the first line mentions HTTP, however a lenient server might read the rest of it.
fn claims_http(line: &[u8]) -> bool {
    line.windows(5).any(|word| word.eq_ignore_ascii_case(b"HTTP/"))
}

fn hosts(request: &httparse::Request<'_, '_>) -> Head {
    let mut hosts = Vec::new();
    let target = request.path.unwrap_or_default();
    if let Some((_, rest)) = target.split_once("://") {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        hosts.push(authority.rsplit('@').next().unwrap_or_default().to_owned());
    } else if request.method.is_some_and(|method| method.eq_ignore_ascii_case("connect")) {
        hosts.push(target.to_owned());
    }
    for header in request.headers.iter().filter(|h| h.name.eq_ignore_ascii_case("host")) {
        let Ok(host) = std::str::from_utf8(header.value) else { return Head::Unreadable };
        hosts.push(host.trim().to_owned());
    }
    if hosts.is_empty() { Head::Nameless } else { Head::Http(hosts) }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) => name,
        Some(_) | None => host,
    }
}

fn same(host: &str, name: &str) -> bool {
    host.strip_suffix('.').unwrap_or(host).eq_ignore_ascii_case(name)
}

#[cfg(test)]
mod tests;
