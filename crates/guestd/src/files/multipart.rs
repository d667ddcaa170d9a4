//! `multipart/form-data` in pieces. It holds at most one header block and one boundary.

use bytes::{Bytes, BytesMut};

use crate::refusal::{Code, Refusal, Result};

/// Of one part.
const HEADER_BYTES_MAX: usize = 16 << 10;

/// RFC 2046.
const BOUNDARY_BYTES_MAX: usize = 70;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    Begin { name: String, filename: Option<String> },
    Data(Bytes),
    End,
}

#[derive(Debug)]
pub(super) struct Form {
    /// `\r\n--boundary`. The first one lacks the line end, which is put in front of the body.
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
    /// The part before the delimiter is still to be told as ended.
    owes_end: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first delimiter.
    Preamble,
    /// Behind a delimiter: a line end, or the two dashes of the last one.
    Delimiter,
    Headers,
    Data,
    Over,
}

impl Form {
    pub(super) fn new(content_type: &str) -> Result<Self> {
        let boundary = parameter(content_type, "boundary")
            .filter(|boundary| !boundary.is_empty() && boundary.len() <= BOUNDARY_BYTES_MAX);
        let boundary = boundary.ok_or_else(|| Refusal::invalid("the form has no boundary"))?;
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        Ok(Self {
            delimiter,
            buffer: BytesMut::from(&b"\r\n"[..]),
            state: State::Preamble,
            owes_end: false,
        })
    }

    /// Call [`Form::next_part`] until it gives nothing before feeding more.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    pub(super) fn next_part(&mut self) -> Result<Option<Part>> {
        loop {
            if std::mem::take(&mut self.owes_end) {
                return Ok(Some(Part::End));
            }
            match self.state {
                State::Over => {
                    self.buffer.clear();
                    return Ok(None);
                }
                State::Preamble => {
                    let (before, found) = self.until_delimiter();
                    drop(before);
                    if !found {
                        return Ok(None);
                    }
                }
                State::Delimiter => {
                    let Some(next) = self.buffer.get(..2) else { return Ok(None) };
                    self.state = match next {
                        b"--" => State::Over,
                        b"\r\n" => State::Headers,
                        _ => return Err(malformed()),
                    };
                    // The line end stays: headers may be none at all.
                }
                State::Headers => return self.headers(),
                State::Data => {
                    let (data, found) = self.until_delimiter();
                    self.owes_end = found;
                    if !data.is_empty() {
                        return Ok(Some(Part::Data(data)));
                    }
                    if !found {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// The form came to its end.
    pub(super) fn check_whole(&self) -> Result<()> {
        if self.state == State::Over { Ok(()) } else { Err(malformed()) }
    }

    /// What is before the next delimiter, as far as it is sure; takes the delimiter too if it is
    /// there.
    fn until_delimiter(&mut self) -> (Bytes, bool) {
        if let Some(at) = find(&self.buffer, &self.delimiter) {
            let before = self.buffer.split_to(at).freeze();
            let _ = self.buffer.split_to(self.delimiter.len());
            self.state = State::Delimiter;
            return (before, true);
        }
        let sure = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
        (self.buffer.split_to(sure).freeze(), false)
    }

    fn headers(&mut self) -> Result<Option<Part>> {
        let Some(end) = find(&self.buffer, b"\r\n\r\n") else {
            if self.buffer.len() > HEADER_BYTES_MAX {
                return Err(Refusal::new(Code::TooLarge, "the headers of a part are too long"));
            }
            return Ok(None);
        };
        let block = self.buffer.split_to(end + 4);
        self.state = State::Data;
        let block = String::from_utf8_lossy(&block).into_owned();
        let disposition = block.split("\r\n").find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.trim().eq_ignore_ascii_case("content-disposition").then(|| value.trim().to_owned())
        });
        let disposition = disposition.ok_or_else(malformed)?;
        let name = parameter(&disposition, "name").unwrap_or_default();
        Ok(Some(Part::Begin { name, filename: parameter(&disposition, "filename") }))
    }
}

/// `; name=value` or `; name="value"`, with backslashes before quotes and themselves.
fn parameter(header: &str, wanted: &str) -> Option<String> {
    let mut rest = header.split_once(';')?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = value(after)?;
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = after.trim_start().strip_prefix(';')?;
    }
}

/// The value at the beginning, and what follows it.
fn value(text: &str) -> Option<(String, &str)> {
    let text = text.trim_start();
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return Some((text[..end].trim().to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => match chars.next()?.1 {
                escaped @ ('"' | '\\') => value.push(escaped),
                other => value.extend(['\\', other]),
            },
            c => value.push(c),
        }
    }
    None
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    while let Some(at) = haystack[from..].iter().position(|byte| *byte == first) {
        let at = from + at;
        if haystack[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

fn malformed() -> Refusal {
    Refusal::invalid("the form is malformed")
}

#[cfg(test)]
mod tests;
