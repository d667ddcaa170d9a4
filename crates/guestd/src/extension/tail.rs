//! The end of a log (the rules of 000's logs endpoint).

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::Arc;

use guest_proto::{HEADER_TOTAL_BYTES, HEADER_TRUNCATED, TAIL_BYTES_MAX, TAIL_LINES_MAX};
use http::HeaderValue;

use super::path_of;
use crate::files::Query;
use crate::http::{Body, Request, Response};
use crate::refusal::{Refusal, Result};
use crate::state::State;

/// How many lines when nothing is said.
const LINES: u64 = 100;

#[derive(Debug, Clone, Copy)]
enum By {
    Lines(usize),
    Bytes(usize),
}

pub(super) async fn tail(state: &Arc<State>, request: &Request) -> Result<Response> {
    let path = path_of(request)?;
    let mut query = Query::of(request);
    let by = amount(query.number("lines")?, query.number("bytes")?)?;
    let read = state
        .tasks
        .spawn_blocking(move || read_end(&path).map_err(|error| Refusal::io(&path, &error)));
    let (window, total) =
        read.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())))?;
    let content = cut(&window, total, by);
    let truncated = (content.len() as u64) < total;
    let mut response = Response::new(Body::full(content.to_vec()));
    let headers = response.headers_mut();
    let truncated = HeaderValue::from_static(if truncated { "true" } else { "false" });
    headers.insert(HEADER_TRUNCATED, truncated);
    headers.insert(HEADER_TOTAL_BYTES, HeaderValue::from(total));
    Ok(response)
}

fn amount(lines: Option<u64>, bytes: Option<u64>) -> Result<By> {
    let clamped = |asked: u64, max: usize| usize::try_from(asked).unwrap_or(max).min(max);
    match (lines, bytes) {
        (Some(_), Some(_)) => Err(Refusal::invalid("lines and bytes exclude each other")),
        (Some(0), None) | (None, Some(0)) => Err(Refusal::invalid("zero is not an amount")),
        (None, Some(bytes)) => Ok(By::Bytes(clamped(bytes, TAIL_BYTES_MAX))),
        (lines, None) => {
            let max = usize::try_from(TAIL_LINES_MAX).unwrap_or(usize::MAX);
            Ok(By::Lines(clamped(lines.unwrap_or(LINES), max)))
        }
    }
}

/// The last bytes of the file, one more than may be answered, and its length.
fn read_end(path: &str) -> io::Result<(Vec<u8>, u64)> {
    let open = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = match open {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        Err(error) => return Err(error),
    };
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::from_raw_os_error(if meta.is_dir() {
            libc::EISDIR
        } else {
            libc::EINVAL
        }));
    }
    let total = meta.len();
    let from = total.saturating_sub(TAIL_BYTES_MAX as u64 + 1);
    let mut window = vec![0; usize::try_from(total - from).unwrap_or(0)];
    let mut filled = 0;
    while filled < window.len() {
        match file.read_at(&mut window[filled..], from + filled as u64)? {
            // It was truncated meanwhile.
            0 => break,
            len => filled += len,
        }
    }
    window.truncate(filled);
    let total = from + filled as u64;
    Ok((window, total))
}

/// `window` is the end of a file of `total` bytes. What is answered begins with a line.
fn cut(window: &[u8], total: u64, by: By) -> &[u8] {
    let whole = window.len() as u64 == total;
    let bytes = match by {
        By::Bytes(bytes) => bytes,
        By::Lines(_) => TAIL_BYTES_MAX,
    };
    let start = window.len().saturating_sub(bytes);
    let start = if start == 0 && whole { 0 } else { line_start(window, start) };
    let content = &window[start..];
    match by {
        By::Bytes(_) => content,
        By::Lines(lines) => last_lines(content, lines),
    }
}

/// The first beginning of a line at or after `start`, which is behind at least one byte.
fn line_start(window: &[u8], start: usize) -> usize {
    if start == 0 {
        return window.len();
    }
    let newline = window[start - 1..].iter().position(|byte| *byte == b'\n');
    newline.map_or(window.len(), |at| start + at)
}

/// A newline at the very end ends the last line and begins none.
fn last_lines(content: &[u8], lines: usize) -> &[u8] {
    let body = content.strip_suffix(b"\n").unwrap_or(content);
    let newlines = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    match newlines.map(|(at, _)| at).nth(lines - 1) {
        Some(at) => &content[at + 1..],
        None => content,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, by: By, expected: &str) {
        let answer = cut(text.as_bytes(), text.len() as u64, by);
        assert_eq!(String::from_utf8_lossy(answer), expected);
    }

    #[test]
    fn lines_are_counted_from_the_end() {
        check("", By::Lines(3), "");
        check("a\nb\nc\n", By::Lines(2), "b\nc\n");
        check("a\nb\nc", By::Lines(2), "b\nc");
        check("a\nb\n", By::Lines(100), "a\nb\n");
        check("\n\n\n", By::Lines(2), "\n\n");
    }

    #[test]
    fn bytes_never_begin_within_a_line() {
        check("one\ntwo\nthree\n", By::Bytes(100), "one\ntwo\nthree\n");
        check("one\ntwo\nthree\n", By::Bytes(8), "three\n");
        check("one\ntwo\nthree\n", By::Bytes(10), "two\nthree\n");
        check("one\ntwo\nthree\n", By::Bytes(6), "three\n");
        check("one\ntwo\nthree\n", By::Bytes(5), "");
        check("a single line", By::Bytes(4), "");
    }

    #[test]
    fn what_is_longer_than_the_cap_is_trimmed_to_a_line() {
        let text = "x".repeat(TAIL_BYTES_MAX) + "\nlast line\n";
        let window = &text.as_bytes()[text.len() - TAIL_BYTES_MAX - 1..];
        let answer = cut(window, text.len() as u64, By::Lines(10_000));
        assert_eq!(answer, b"last line\n");
        let answer = cut(window, text.len() as u64, By::Bytes(TAIL_BYTES_MAX));
        assert_eq!(answer, b"last line\n");
    }

    #[test]
    fn amounts_are_checked_and_clamped() {
        assert!(amount(Some(1), Some(1)).is_err());
        assert!(amount(Some(0), None).is_err());
        assert!(amount(None, Some(0)).is_err());
        assert!(matches!(amount(None, None), Ok(By::Lines(100))));
        assert!(matches!(amount(Some(u64::MAX), None), Ok(By::Lines(10_000))));
        assert!(matches!(amount(None, Some(u64::MAX)), Ok(By::Bytes(TAIL_BYTES_MAX))));
    }
}
