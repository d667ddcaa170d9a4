//! `GET /files`: one file, whole or a range of it, compressed when the client asks for that.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use guest_proto::pieces::FileStream;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::encoding::{Compressor, Encoding, negotiate};
use super::query::Query;
use super::signature::{self, Signed};
use crate::connect::time;
use crate::http::{Body, Request, Response};
use crate::paths;
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;

pub(crate) async fn download(state: Arc<State>, request: Request) -> Result<Response> {
    let mut query = Query::of(&request);
    let path = query.take("path").unwrap_or_default();
    let username = query.take("username");
    signature::check(
        &state,
        &request,
        &Signed {
            operation: "read",
            path: &path,
            username: username.as_deref(),
            signature: query.take("signature").as_deref(),
            expiration: query.take("signature_expiration").as_deref(),
        },
    )?;
    let account = account(&state, &request, username.as_deref())?;
    let resolved = state.resolve(&path, &account);
    let opened = {
        let resolved = resolved.clone();
        state.tasks.spawn_blocking(move || open(&resolved))
    };
    let (file, meta) =
        opened.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())))?;
    let mut response = contents(request.headers(), file, &meta)?;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_DISPOSITION, disposition(paths::split(&resolved).1));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    Ok(response)
}

/// Who a request of `/files` runs as; the words are envd's.
pub(super) fn account(
    state: &State,
    request: &Request,
    username: Option<&str>,
) -> Result<crate::accounts::Account> {
    let named = username.filter(|name| !name.is_empty()).map(str::to_owned);
    let named = match named {
        Some(named) => Some(named),
        None => crate::rpc::user_of(request)?,
    };
    state.account(named.as_deref()).map_err(|refusal| {
        let name = named.unwrap_or_else(|| state.settings().user.clone());
        let message = format!("error looking up user '{name}': user: unknown user {name}");
        Refusal::new(refusal.code, message)
    })
}

fn open(path: &str) -> Result<(File, Metadata)> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Refusal::not_found(format!("path '{path}' does not exist")),
        _ => Refusal::io(path, &error),
    };
    let meta = fs::metadata(path).map_err(failed)?;
    if meta.is_dir() {
        return Err(Refusal::invalid(format!("path '{path}' is a directory")));
    }
    if !meta.is_file() {
        return Err(Refusal::invalid(format!("path '{path}' is not a regular file")));
    }
    let file =
        File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    Ok((file, meta))
}

fn contents(asked: &HeaderMap, file: File, meta: &Metadata) -> Result<Response> {
    let text = |name| asked.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let encoding = negotiate(text(header::ACCEPT_ENCODING)).ok_or_else(|| {
        Refusal::new(Code::NotAcceptable, "no acceptable encoding: gzip and identity are offered")
    })?;
    let size = meta.len();
    let modified = http_date(meta.mtime());
    let unchanged = text(header::IF_MODIFIED_SINCE) == Some(modified.as_str());
    let mut response = if unchanged && text(header::IF_NONE_MATCH).is_none() {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else if let Some(range) = text(header::RANGE).filter(|_| fresh(asked, &modified)) {
        ranged(file, size, range)?
    } else if encoding == Encoding::Gzip && size > 0 {
        compressed(file, size)
    } else {
        Response::new(Body::sized(FileStream::new(file, 0, size), size))
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Ok(modified) = HeaderValue::from_str(&modified) {
        headers.insert(header::LAST_MODIFIED, modified);
    }
    Ok(response)
}

/// A range is only for the version of the file that the client knows.
fn fresh(asked: &HeaderMap, modified: &str) -> bool {
    asked.get(header::IF_RANGE).is_none_or(|known| known.as_bytes() == modified.as_bytes())
}

fn ranged(file: File, size: u64, range: &str) -> Result<Response> {
    let Some((start, end)) = parse_range(range, size) else {
        // Several ranges, or another unit: the whole file is a right answer.
        let all = FileStream::new(file, 0, size);
        return Ok(Response::new(Body::sized(all, size)));
    };
    if start >= end {
        let message = format!("the file is {size} bytes long");
        return Err(Refusal::new(Code::RangeNotSatisfiable, message));
    }
    let body = FileStream::new(file, start, end);
    let mut response = Response::new(Body::sized(body, end - start));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    if let Ok(range) = HeaderValue::from_str(&format!("bytes {start}-{}/{size}", end - 1)) {
        response.headers_mut().insert(header::CONTENT_RANGE, range);
    }
    Ok(response)
}

/// First byte and the one behind the last. An empty range cannot be satisfied.
fn parse_range(range: &str, size: u64) -> Option<(u64, u64)> {
    let (first, last) = range.trim().strip_prefix("bytes=")?.split_once('-')?;
    let (first, last) = (first.trim(), last.trim());
    if first.is_empty() {
        let length: u64 = last.parse().ok()?;
        return Some((size.saturating_sub(length), if length == 0 { 0 } else { size }));
    }
    let start: u64 = first.parse().ok()?;
    if last.is_empty() {
        return Some((start, size));
    }
    let last: u64 = last.parse().ok()?;
    (start <= last).then(|| (start, last.saturating_add(1).min(size)))
}

fn compressed(file: File, size: u64) -> Response {
    let plain = FileStream::new(file, 0, size);
    let pieces = futures_util::stream::unfold(Some((plain, Compressor::new())), |next| async {
        let (mut plain, mut compressor) = next?;
        loop {
            let compressed: io::Result<Bytes> = match plain.next().await {
                None => return Some((compressor.finish(), None)),
                Some(piece) => piece.and_then(|piece| compressor.feed(&piece)),
            };
            match compressed {
                // The compressor keeps it for now.
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => return Some((Ok(bytes), Some((plain, compressor)))),
                Err(error) => return Some((Err(error), None)),
            }
        }
    });
    let mut response = Response::new(Body::stream(pieces));
    response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response
}

/// `inline; filename=…`, quoted where it must be; what is not ASCII is percent-encoded.
fn disposition(name: &str) -> HeaderValue {
    let plain = |c: char| c.is_ascii_alphanumeric() || "!#$&+-.^_`|~".contains(c);
    let text = if !name.is_empty() && name.chars().all(plain) {
        format!("inline; filename={name}")
    } else if name.is_ascii() && !name.contains(|c: char| c.is_ascii_control()) {
        format!("inline; filename=\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        let encoded: String = form_urlencoded::byte_serialize(name.as_bytes()).collect();
        format!("inline; filename*=utf-8''{}", encoded.replace('+', "%20"))
    };
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("inline"))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(seconds: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let iso = time::format(seconds, 0);
    let day = usize::try_from(seconds.div_euclid(86_400).rem_euclid(7)).unwrap_or(0);
    let part = |range: std::ops::Range<usize>| iso.get(range).unwrap_or("");
    let month =
        part(5..7).parse::<usize>().ok().and_then(|month| MONTHS.get(month.checked_sub(1)?));
    let (weekday, month) = (DAYS[day], month.unwrap_or(&"Jan"));
    format!("{weekday}, {} {month} {} {} GMT", part(8..10), part(0..4), part(11..19))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_understood() {
        assert_eq!(parse_range("bytes=0-4", 10), Some((0, 5)));
        assert_eq!(parse_range("bytes=4-", 10), Some((4, 10)));
        assert_eq!(parse_range("bytes=-3", 10), Some((7, 10)));
        assert_eq!(parse_range("bytes=-30", 10), Some((0, 10)));
        assert_eq!(parse_range("bytes=5-100", 10), Some((5, 10)));
        assert_eq!(parse_range("bytes=10-", 10), Some((10, 10)));
        assert_eq!(parse_range("bytes=-0", 10), Some((10, 0)));
        assert_eq!(parse_range("bytes=0-1,3-4", 10), None);
        assert_eq!(parse_range("lines=0-1", 10), None);
        assert_eq!(parse_range("bytes=3-1", 10), None);
    }

    #[test]
    fn dates_are_those_of_http() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
    }

    #[test]
    fn names_cannot_break_out_of_their_header() {
        assert_eq!(disposition("a.txt"), "inline; filename=a.txt");
        assert_eq!(disposition("a b\".txt"), "inline; filename=\"a b\\\".txt\"");
        assert_eq!(disposition("ü\r\nx"), "inline; filename*=utf-8''%C3%BC%0D%0Ax");
    }
}
