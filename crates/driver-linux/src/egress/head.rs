//! The first bytes that a program sends: do they speak to the host whose name was allowed?
//!
//! Many hosts share an address, so a checked address alone would let a program talk to any of them:
//! TLS names its host in the `ClientHello`, HTTP/1 in the request. Other protocols name none.
//! What begins like TLS or HTTP but cannot be read to that point is refused, not waved through.
//!
//! HTTP/2 without TLS is such a case. TLS that names nobody is refused too: whoever answers would.
//!
//! What this cannot see: names inside encryption (a `Host` after the handshake, an encrypted
//! `ClientHello` behind an allowed outer name, TLS begun later by `STARTTLS`).

mod tls;

use model::Verdict;

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
    /// TLS to whoever is at the address.
    NoSni,
    /// HTTP.
    Http(Request),
    /// Git's own protocol, for this host.
    Git(String),
    /// Like TLS or HTTP, but broken.
    Unreadable,
}

/// The head of an HTTP request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// Bytes of it, with what is before it.
    pub(super) length: usize,
    /// Whom it is for: in the request line, in `Host`.
    hosts: Vec<String>,
    pub(super) framing: Framing,
    /// It asks for another protocol, one that names no hosts.
    pub(super) upgrade: bool,
}

/// Where its body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Nothing,
    Sized(u64),
    Chunked,
}

impl Head {
    pub(super) fn read(bytes: &[u8]) -> Self {
        match bytes {
            [] | [0x16] => Self::More,
            [0x16, 0x03, ..] => tls::read(bytes),
            // A `ClientHello` in the form of SSL 2, which servers still read; it can name nobody.
            [first, _, 1, 0 | 2 | 3, ..] if first & 0x80 != 0 => Self::NoSni,
            [first, ..] if first & 0x80 != 0 && bytes.len() < 4 => Self::More,
            _ => read_git(bytes).unwrap_or_else(|| read_http(bytes)),
        }
    }

    /// `None` when it speaks to `name`, or to nobody by name. Asked of complete heads only.
    pub(super) fn differs_from(&self, name: &str) -> Option<Verdict> {
        match self {
            Self::Nameless => None,
            Self::Tls(host) => (!same(host, name)).then_some(Verdict::SniDiffers),
            Self::NoSni => Some(Verdict::NoSni),
            Self::Git(host) => (!same(without_port(host), name)).then_some(Verdict::HostDiffers),
            Self::Http(request) => {
                let all_same = request.hosts.iter().all(|host| same(without_port(host), name));
                (!all_same).then_some(Verdict::HostDiffers)
            }
            Self::More | Self::Unreadable => Some(Verdict::Unreadable),
        }
    }
}

/// A request of git's own protocol has no end of line, so it would be waited for: four digits of its
/// length, what is asked for, zeros between the rest. A zero is what no HTTP server takes in a line.
fn read_git(bytes: &[u8]) -> Option<Head> {
    const ASKED: [&[u8]; 3] = [b"git-upload-pack ", b"git-receive-pack ", b"git-upload-archive "];
    let (digits, rest) = bytes.split_at_checked(4)?;
    let length = usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    if !ASKED.iter().any(|asked| rest.starts_with(asked)) || length > HEAD_MAX {
        return None;
    }
    if bytes[..bytes.len().min(length)].contains(&b'\n') {
        return None;
    }
    let Some(packet) = bytes.get(4..length) else { return Some(Head::More) };
    let mut words = packet.split(|byte| *byte == 0).skip(1);
    let host = words.find_map(|word| word.strip_prefix(b"host="))?;
    String::from_utf8(host.to_vec()).ok().map(Head::Git)
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
        Ok(httparse::Status::Complete(length)) => {
            let before = bytes.len() - request.len();
            whole(&parsed, before + length).map_or(Head::Unreadable, Head::Http)
        }
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

/// `None` when it could be read in two ways.
fn whole(request: &httparse::Request<'_, '_>, length: usize) -> Option<Request> {
    let hosts = hosts(request)?;
    let framing = framing(request)?;
    let upgrade = values(request, "upgrade").next();
    // HTTP/2 names hosts where nobody here reads them.
    let upgrade = upgrade.is_some_and(|protocol| !protocol.eq_ignore_ascii_case(b"h2c"));
    Some(Request { length, hosts, framing, upgrade })
}

fn values<'a>(
    request: &'a httparse::Request<'_, '_>,
    name: &'static str,
) -> impl Iterator<Item = &'a [u8]> {
    let named = request.headers.iter().filter(move |h| h.name.eq_ignore_ascii_case(name));
    named.map(|header| header.value.trim_ascii())
}

/// Strict: what a server might take for something else is nothing.
fn framing(request: &httparse::Request<'_, '_>) -> Option<Framing> {
    let mut lengths = values(request, "content-length");
    let mut codings = values(request, "transfer-encoding");
    match (lengths.next(), codings.next()) {
        (None, None) => Some(Framing::Nothing),
        (Some(length), None) if lengths.next().is_none() => {
            let digits = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(length).ok().filter(|_| digits)?;
            text.parse().ok().map(Framing::Sized)
        }
        (None, Some(coding)) if codings.next().is_none() => {
            let good = coding.eq_ignore_ascii_case(b"chunked") && request.version == Some(1);
            good.then_some(Framing::Chunked)
        }
        _ => None,
    }
}

fn hosts(request: &httparse::Request<'_, '_>) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    let target = request.path.unwrap_or_default();
    if let Some((_, rest)) = target.split_once("://") {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        hosts.push(authority.rsplit('@').next().unwrap_or_default().to_owned());
    } else if request.method.is_some_and(|method| method.eq_ignore_ascii_case("connect")) {
        hosts.push(target.to_owned());
    }
    for header in request.headers.iter().filter(|h| h.name.eq_ignore_ascii_case("host")) {
        hosts.push(std::str::from_utf8(header.value).ok()?.trim().to_owned());
    }
    Some(hosts)
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
