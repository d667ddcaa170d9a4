//! The requests of one HTTP/1 connection without TLS, one after the other: each must speak to the host
//! whose name was allowed, the last as the first. Servers that share an address choose by `Host`, so
//! a connection that begins well must not go on to somebody else.
//!
//! ```text
//!            whole head                 no body
//!   Head ───────────────▶ (checked) ───────────────▶ Head
//!                             │ Content-Length: n ─▶ Sized(n) ─▶ Head
//!                             │ chunked ───────────▶ Chunks ───▶ Head
//!                             │ Upgrade ───────────▶ Waiting ──▶ Open (101) or Head
//! ```
//!
//! Strict where others are lenient: a body whose end two readers could see in two places hides a
//! request in it, so it is refused. A head goes on only when it is whole and good.

use model::Verdict;

use super::head::{Framing, HEAD_MAX, Head, Request};

/// A line of a chunk's size, with extensions.
const SIZE_LINE_MAX: usize = 256;

/// How an answer to an upgrade begins when it is granted.
const SWITCHED: [&[u8]; 2] = [b"HTTP/1.1 101", b"HTTP/1.0 101"];

/// Reads along with what a program sends.
#[derive(Debug)]
pub(super) struct Requests {
    name: String,
    state: State,
    /// A head, or a line, that is not whole yet.
    held: Vec<u8>,
    /// The other side has spoken since the last request: who waits for answers asks one by one.
    is_answered: bool,
    /// How the answer to an upgrade begins.
    answer: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Sized(u64),
    ChunkSize,
    ChunkData(u64),
    /// The line end after a chunk.
    ChunkEnd,
    Trailer {
        bytes: usize,
    },
    /// The answer to an upgrade decides what comes next.
    Waiting,
    /// Another protocol, which names no host.
    Open,
}

impl Requests {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: State::Head,
            held: Vec::new(),
            is_answered: true,
            answer: Vec::new(),
        }
    }

    /// Takes what the program sent; `out` gets what may go on. More is held until it is whole.
    pub(super) fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Result<(), Verdict> {
        loop {
            // What was held comes before what has come.
            let mut joined = std::mem::take(&mut self.held);
            joined.extend_from_slice(input);
            input = &[];
            let used = self.step(&joined)?;
            out.extend_from_slice(&joined[..used]);
            joined.drain(..used);
            self.held = joined;
            if used == 0 || self.held.is_empty() {
                return Ok(());
            }
        }
    }

    /// Whether nothing more may be read from the program until the other side has answered.
    pub(super) fn waits(&self) -> bool {
        self.state == State::Waiting
    }

    /// What the other side said. Whether that ends the wait for an answer.
    pub(super) fn heard(&mut self, bytes: &[u8]) -> bool {
        self.is_answered = true;
        if !self.waits() {
            return false;
        }
        let wanted = SWITCHED[0].len() - self.answer.len();
        self.answer.extend_from_slice(&bytes[..bytes.len().min(wanted)]);
        if self.answer.len() < SWITCHED[0].len() && !bytes.is_empty() {
            return false;
        }
        let switched = SWITCHED.iter().any(|switched| self.answer == *switched);
        self.state = if switched { State::Open } else { State::Head };
        self.answer.clear();
        true
    }

    /// Bytes of `input` that may go on; 0 when it takes more to tell.
    fn step(&mut self, input: &[u8]) -> Result<usize, Verdict> {
        match self.state {
            State::Head => self.head(input),
            State::Waiting if input.len() <= HEAD_MAX => Ok(0),
            State::Waiting => Err(Verdict::Unreadable),
            State::Open => Ok(input.len()),
            State::Sized(left) => {
                let (used, left) = part(input, left);
                self.state = if left == 0 { State::Head } else { State::Sized(left) };
                Ok(used)
            }
            State::ChunkData(left) => {
                let (used, left) = part(input, left);
                self.state = if left == 0 { State::ChunkEnd } else { State::ChunkData(left) };
                Ok(used)
            }
            State::ChunkSize | State::ChunkEnd | State::Trailer { .. } => self.line(input),
        }
    }

    fn head(&mut self, input: &[u8]) -> Result<usize, Verdict> {
        let head = Head::read(input);
        match &head {
            Head::More if input.len() < HEAD_MAX => return Ok(0),
            Head::Http(_) => {}
            // It began as HTTP, so it has to go on as HTTP.
            Head::More
            | Head::Nameless
            | Head::Tls(_)
            | Head::Git(_)
            | Head::NoSni
            | Head::Unreadable => {
                return Err(Verdict::Unreadable);
            }
        }
        if let Some(verdict) = head.differs_from(&self.name) {
            return Err(verdict);
        }
        let Head::Http(Request { length, framing, upgrade, .. }) = head else { return Ok(0) };
        let was_answered = std::mem::take(&mut self.is_answered);
        self.state = match framing {
            // Behind another request nobody could tell whose answer comes.
            Framing::Nothing | Framing::Sized(0) if upgrade && was_answered => State::Waiting,
            Framing::Nothing | Framing::Sized(0) if upgrade => return Err(Verdict::Unreadable),
            Framing::Nothing | Framing::Sized(0) => State::Head,
            Framing::Sized(bytes) => State::Sized(bytes),
            Framing::Chunked => State::ChunkSize,
        };
        Ok(length)
    }

    /// A whole line, which ends as the standard says and not otherwise.
    fn line(&mut self, input: &[u8]) -> Result<usize, Verdict> {
        let Some(end) = input.iter().position(|c| *c == b'\n') else {
            let is_short = input.len() <= SIZE_LINE_MAX;
            return if is_short { Ok(0) } else { Err(Verdict::Unreadable) };
        };
        let line = input[..end].strip_suffix(b"\r").ok_or(Verdict::Unreadable)?;
        if line.contains(&b'\r') || line.len() > SIZE_LINE_MAX {
            return Err(Verdict::Unreadable);
        }
        self.state = match self.state {
            State::ChunkSize => match chunk_size(line).ok_or(Verdict::Unreadable)? {
                0 => State::Trailer { bytes: 0 },
                size => State::ChunkData(size),
            },
            State::ChunkEnd if line.is_empty() => State::ChunkSize,
            State::Trailer { .. } if line.is_empty() => State::Head,
            State::Trailer { bytes } if bytes + end < HEAD_MAX => {
                State::Trailer { bytes: bytes + end + 1 }
            }
            State::ChunkEnd
            | State::Trailer { .. }
            | State::Head
            | State::Sized(_)
            | State::ChunkData(_)
            | State::Waiting
            | State::Open => return Err(Verdict::Unreadable),
        };
        Ok(end + 1)
    }
}

/// As much of `left` as there is, and what is left then.
fn part(input: &[u8], left: u64) -> (usize, u64) {
    let used = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
    (used, left - used as u64)
}

/// Hexadecimal digits, then nothing or an extension.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|c| *c == b';').next()?;
    let digits = std::str::from_utf8(digits).ok()?;
    let good = !digits.is_empty() && digits.len() <= 15;
    let all_hex = digits.bytes().all(|c| c.is_ascii_hexdigit());
    (good && all_hex).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests;
