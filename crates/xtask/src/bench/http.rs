//! HTTP/1.1 as far as the benchmark needs it: blocking, one kept connection, over TCP or a Unix
//! socket. By hand, because a client library would be measured along with the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

/// Longer than anything that is measured.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);
/// Of a file, in one read or write.
pub(super) const PIECE_BYTES: usize = 256 << 10;

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

pub(super) struct Http {
    stream: BufReader<Stream>,
    key: Option<String>,
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Http {
    pub(super) fn tcp(address: SocketAddr, key: Option<&str>) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).context("connect")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        Ok(Self { stream: BufReader::new(Stream::Tcp(stream)), key: key.map(str::to_owned) })
    }

    pub(super) fn unix(socket: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket).context("connect")?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        Ok(Self { stream: BufReader::new(Stream::Unix(stream)), key: None })
    }

    /// Sends a JSON body, or none, and wants a good status; the answer's body as JSON.
    pub(super) fn call(&mut self, method: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        self.begin(method, path, text.len() as u64, text.as_bytes())?;
        let answer = self.answer()?;
        if !(200..300).contains(&answer.status) {
            let said = String::from_utf8_lossy(&answer.body);
            bail!("{method} {path}: {} {said}", answer.status);
        }
        if answer.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&answer.body).with_context(|| format!("{method} {path}"))
    }

    /// Only whether it is well.
    pub(super) fn is_good(&mut self, path: &str) -> anyhow::Result<bool> {
        self.begin("GET", path, 0, &[])?;
        Ok((200..300).contains(&self.answer()?.status))
    }

    /// Sends `length` bytes of `from`.
    pub(super) fn upload(
        &mut self,
        path: &str,
        length: u64,
        from: &mut impl Read,
    ) -> anyhow::Result<()> {
        self.begin("POST", path, length, &[])?;
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let count = from.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            self.stream.get_mut().write_all(&buffer[..count])?;
        }
        let answer = self.answer()?;
        if answer.status != 200 {
            bail!("upload: {} {}", answer.status, String::from_utf8_lossy(&answer.body));
        }
        Ok(())
    }

    /// Reads the answer's body into `to`; how many bytes.
    pub(super) fn download(&mut self, path: &str, to: &mut impl Write) -> anyhow::Result<u64> {
        self.begin("GET", path, 0, &[])?;
        let head = self.head()?;
        if head.status != 200 {
            bail!("download: {}", head.status);
        }
        let length = head.length.context("a download without a length")?;
        let mut left = length;
        let mut piece = vec![0; PIECE_BYTES];
        while left > 0 {
            let room = piece.len().min(usize::try_from(left)?);
            let count = self.stream.read(&mut piece[..room])?;
            if count == 0 {
                bail!("the download ended {left} bytes early");
            }
            to.write_all(&piece[..count])?;
            left -= count as u64;
        }
        Ok(length)
    }

    fn begin(&mut self, method: &str, path: &str, length: u64, body: &[u8]) -> anyhow::Result<()> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
        if let Some(key) = &self.key {
            head += &format!("Authorization: Bearer {key}\r\n");
        }
        if !body.is_empty() {
            head += "Content-Type: application/json\r\n";
            head += "Accept: application/json, text/event-stream\r\n";
        }
        if method != "GET" || length > 0 {
            head += &format!("Content-Length: {length}\r\n");
        }
        head += "\r\n";
        // One write, so that a small request is one packet.
        self.stream.get_mut().write_all(&[head.as_bytes(), body].concat())?;
        Ok(())
    }

    fn answer(&mut self) -> anyhow::Result<Answer> {
        let head = self.head()?;
        let mut body = Vec::new();
        if head.chunked {
            self.chunks(&mut body)?;
        } else if let Some(length) = head.length {
            self.stream.by_ref().take(length).read_to_end(&mut body)?;
        }
        Ok(Answer { status: head.status, body })
    }

    fn chunks(&mut self, body: &mut Vec<u8>) -> anyhow::Result<()> {
        loop {
            let line = self.line()?;
            let size = line.split(';').next().unwrap_or_default();
            let size = u64::from_str_radix(size, 16).with_context(|| format!("chunk {line:?}"))?;
            self.stream.by_ref().take(size).read_to_end(body)?;
            self.line()?;
            if size == 0 {
                return Ok(());
            }
        }
    }

    fn head(&mut self) -> anyhow::Result<Head> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("not an answer: {first:?}"))?;
        let mut head = Head { status, length: None, chunked: false };
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(length) = line.strip_prefix("content-length:") {
                head.length = length.trim().parse().ok();
            }
            head.chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
        }
        Ok(head)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("the connection was closed");
        }
        Ok(line.trim_end().to_owned())
    }
}

struct Head {
    status: u16,
    length: Option<u64>,
    chunked: bool,
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Unix(stream) => stream.flush(),
        }
    }
}
