//! As much of a TLS `ClientHello` as names the host (RFC 8446 section 4.1.2, RFC 6066 section 3).
//! Read here because it is forty lines over bytes that we do not own; a TLS library would do its
//! own handshake, and parsers of certificates are no part of this.

use super::{HEAD_MAX, Head};

const HANDSHAKE: u8 = 0x16;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// What a record may carry at most, with the slack that TLS 1.2 allows.
const RECORD_MAX: usize = (1 << 14) + 2048;

pub(super) fn read(bytes: &[u8]) -> Head {
    let hello = match client_hello(bytes) {
        Ok(Some(hello)) => hello,
        Ok(None) if bytes.len() < HEAD_MAX => return Head::More,
        Ok(None) | Err(Broken) => return Head::Unreadable,
    };
    match server_name(&hello) {
        Ok(Some(name)) => Head::Tls(name),
        Ok(None) => Head::NoSni,
        Err(Broken) => Head::Unreadable,
    }
}

struct Broken;

/// The body of the `ClientHello`, put together from the records that carry it; `None` when some of
/// it is still to come.
fn client_hello(bytes: &[u8]) -> Result<Option<Vec<u8>>, Broken> {
    let mut hello = Vec::new();
    let mut rest = bytes;
    loop {
        let Some((header, after)) = rest.split_at_checked(5) else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[0] != HANDSHAKE || header[1] != 3 || length == 0 || length > RECORD_MAX {
            return Err(Broken);
        }
        hello.extend_from_slice(&after[..length.min(after.len())]);
        if hello[..].first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(Broken);
        }
        if let [_, a, b, c, body @ ..] = hello.as_slice() {
            let whole = usize::try_from(u32::from_be_bytes([0, *a, *b, *c])).map_err(|_| Broken)?;
            if let Some(body) = body.get(..whole) {
                return Ok(Some(body.to_vec()));
            }
        }
        let Some(next) = after.get(length..) else { return Ok(None) };
        rest = next;
    }
}

fn server_name(hello: &[u8]) -> Result<Option<String>, Broken> {
    let mut hello = Reader(hello);
    hello.take(2 + 32)?; // version, random
    hello.take_prefixed_8()?; // session
    hello.take_prefixed_16()?; // cipher suites
    hello.take_prefixed_8()?; // compression
    if hello.0.is_empty() {
        return Ok(None);
    }
    let mut extensions = Reader(hello.take_prefixed_16()?);
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.take_16()?;
        let data = extensions.take_prefixed_16()?;
        if kind == SERVER_NAME {
            // A second one would leave it to the server which of them counts.
            if found.is_some() {
                return Err(Broken);
            }
            found = Some(only_host_name(data)?);
        }
    }
    Ok(found)
}

fn only_host_name(data: &[u8]) -> Result<String, Broken> {
    let mut data = Reader(data);
    let mut list = Reader(data.take_prefixed_16()?);
    let kind = list.take(1)?;
    let name = list.take_prefixed_16()?;
    if kind != [HOST_NAME] || !list.0.is_empty() || !data.0.is_empty() {
        return Err(Broken);
    }
    String::from_utf8(name.to_vec()).map_err(|_| Broken)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Broken> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Broken)?;
        self.0 = rest;
        Ok(taken)
    }

    fn take_16(&mut self) -> Result<u16, Broken> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn take_prefixed_8(&mut self) -> Result<&'a [u8], Broken> {
        let length = self.take(1)?[0];
        self.take(usize::from(length))
    }

    fn take_prefixed_16(&mut self) -> Result<&'a [u8], Broken> {
        let length = self.take_16()?;
        self.take(usize::from(length))
    }
}
