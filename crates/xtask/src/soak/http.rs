//! One request a connection, by hand: whether an answer was whole is what the soak is about.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

/// Longer than the server's own limits on one call.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);

pub(super) struct Client {
    pub(super) port: u16,
    pub(super) key: String,
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

/// A request: method, path, further header lines, body.
pub(super) struct Ask<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) headers: &'a [(&'a str, &'a str)],
    pub(super) body: &'a [u8],
}

impl Client {
    /// An error means that nobody knows whether the server did it.
    pub(super) fn ask(&self, ask: &Ask<'_>) -> anyhow::Result<Answer> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: soak\r\nConnection: close\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n",
            ask.method,
            ask.path,
            self.key,
            ask.body.len()
        );
        for (name, value) in ask.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        stream.write_all(&[head.as_bytes(), ask.body].concat())?;
        let mut raw = Vec::new();
        stream.read_to_end(&mut raw)?;
        parse(&raw)
    }

    pub(super) fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.ask(&Ask { method: "GET", path, headers: &[], body: &[] })
    }

    /// With a JSON body.
    pub(super) fn post(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers: &[_] = &[("Content-Type", "application/json")];
        self.ask(&Ask { method: "POST", path, headers, body: body.as_bytes() })
    }

    /// What the server has told of so far: events until none comes for a while.
    pub(super) fn events(&self) -> anyhow::Result<Vec<Value>> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        let head = format!(
            "GET /v1/events HTTP/1.1\r\nHost: soak\r\nAuthorization: Bearer {}\r\nLast-Event-ID: 0\r\n\r\n",
            self.key
        );
        stream.write_all(head.as_bytes())?;
        let mut raw = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        // It never ends by itself; silence is the end.
        while let Ok(count) = stream.read(&mut buffer) {
            if count == 0 {
                break;
            }
            raw.extend_from_slice(&buffer[..count]);
        }
        let (_, body) = split(&raw)?;
        let text = String::from_utf8(unchunked(body, false)?).context("events in UTF-8")?;
        let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
        data.map(|data| serde_json::from_str(data).context("an event")).collect()
    }
}

impl Answer {
    pub(super) fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(super) fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("not JSON: {}", self.text()))
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn parse(raw: &[u8]) -> anyhow::Result<Answer> {
    let (head, body) = split(raw)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.context("a status")?;
    let field = |name: &str| {
        head.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    if field("transfer-encoding:").is_some_and(|value| value.contains("chunked")) {
        return Ok(Answer { status, body: unchunked(body, true)? });
    }
    if let Some(length) = field("content-length:") {
        ensure!(length.parse::<usize>()? == body.len(), "the answer was cut off");
    }
    Ok(Answer { status, body: body.to_vec() })
}

fn split(raw: &[u8]) -> anyhow::Result<(String, &[u8])> {
    let end = raw.windows(4).position(|four| four == b"\r\n\r\n").context("no whole answer")?;
    Ok((String::from_utf8_lossy(&raw[..end]).to_ascii_lowercase(), &raw[end + 4..]))
}

fn unchunked(mut body: &[u8], to_its_end: bool) -> anyhow::Result<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let line = body.windows(2).position(|two| two == b"\r\n");
        let Some(line) = line else {
            ensure!(!to_its_end, "the answer was cut off");
            return Ok(out);
        };
        let size = usize::from_str_radix(std::str::from_utf8(&body[..line])?.trim(), 16)?;
        let chunk = body.get(line + 2..line + 2 + size);
        match chunk {
            Some(_) if size == 0 => return Ok(out),
            Some(chunk) => out.extend_from_slice(chunk),
            None if to_its_end => anyhow::bail!("the answer was cut off"),
            None => return Ok(out),
        }
        body = body.get(line + 4 + size..).unwrap_or_default();
    }
}
