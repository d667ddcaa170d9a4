//! A plain HTTP/1.1 client, so that what is on the wire is seen as it is.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use guest_proto::envelope::{self, Decoder, Envelope};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::guest::TestGuest;

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    /// The messages of a stream, and what its end says.
    pub(crate) fn stream(&self) -> (Vec<Value>, Value) {
        assert_eq!(self.status, 200, "{}", self.text());
        let mut decoder = Decoder::new(1 << 20);
        decoder.feed(&self.body);
        let mut messages = Vec::new();
        while let Some(envelope) = decoder.next_envelope().unwrap() {
            match envelope {
                Envelope::Message(bytes) => messages.push(serde_json::from_slice(&bytes).unwrap()),
                Envelope::End(bytes) => return (messages, serde_json::from_slice(&bytes).unwrap()),
            }
        }
        panic!("the stream has no end: {messages:?}");
    }
}

/// Headers are whole lines.
pub(crate) async fn send(guest: &TestGuest, line: &str, headers: &[&str], body: &[u8]) -> Answer {
    let mut stream = begin(&guest.socket(), line, headers, body).await;
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    parse(&all)
}

/// Sends a request and leaves the answer to the caller.
pub(crate) async fn begin(socket: &Path, line: &str, headers: &[&str], body: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let mut request = format!("{line} HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n");
    for header in headers {
        request.push_str(header);
        request.push_str("\r\n");
    }
    request.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    stream.write_all(request.as_bytes()).await.unwrap();
    // A refusal may come before all of the body has been taken.
    let _ = stream.write_all(body).await;
    stream
}

/// A unary call of one of the two services.
pub(crate) async fn call(guest: &TestGuest, procedure: &str, message: Value) -> Answer {
    let line = format!("POST /{procedure}");
    send(guest, &line, &["Content-Type: application/json"], message.to_string().as_bytes()).await
}

/// A call that is answered by a stream, once that has ended.
pub(crate) async fn stream(
    guest: &TestGuest,
    procedure: &str,
    headers: &[&str],
    message: Value,
) -> (Vec<Value>, Value) {
    let line = format!("POST /{procedure}");
    let mut headers = headers.to_vec();
    headers.push("Content-Type: application/connect+json");
    send(guest, &line, &headers, &enveloped(&message)).await.stream()
}

/// A call whose stream is still going on.
pub(crate) async fn open(guest: &TestGuest, procedure: &str, message: Value) -> OpenStream {
    let headers = ["Content-Type: application/connect+json"];
    let line = format!("POST /{procedure}");
    let stream = begin(&guest.socket(), &line, &headers, &enveloped(&message)).await;
    OpenStream { stream, buffer: Vec::new(), decoder: Decoder::new(1 << 20), in_body: false }
}

pub(crate) struct OpenStream {
    stream: UnixStream,
    buffer: Vec<u8>,
    decoder: Decoder,
    in_body: bool,
}

impl OpenStream {
    /// The next message, or what the end says.
    pub(crate) async fn next(&mut self) -> Value {
        loop {
            match self.decoder.next_envelope().unwrap() {
                Some(Envelope::Message(bytes) | Envelope::End(bytes)) => {
                    return serde_json::from_slice(&bytes).unwrap();
                }
                None => {}
            }
            let mut piece = [0; 4096];
            let len = self.stream.read(&mut piece).await.unwrap();
            assert!(len > 0, "the stream was cut");
            self.buffer.extend_from_slice(&piece[..len]);
            if !self.in_body
                && let Some(end) = find(&self.buffer, b"\r\n\r\n")
            {
                self.buffer.drain(..end + 4);
                self.in_body = true;
            }
            while let Some((chunk, len)) = self.in_body.then(|| chunk(&self.buffer)).flatten() {
                self.decoder.feed(&chunk);
                self.buffer.drain(..len);
            }
        }
    }
}

pub(crate) fn enveloped(message: &Value) -> Vec<u8> {
    let mut out = bytes::BytesMut::new();
    envelope::encode(&Envelope::Message(message.to_string().into()), &mut out);
    out.to_vec()
}

/// A message for `Start` of a shell script.
pub(crate) fn shell(script: &str) -> Value {
    json!({ "process": { "cmd": "/bin/sh", "args": ["-c", script] } })
}

pub(crate) fn encode(text: &str) -> String {
    encode_bytes(text.as_bytes())
}

pub(crate) fn encode_bytes(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// All output of one kind in the messages of a stream.
pub(crate) fn output(messages: &[Value], kind: &str) -> String {
    let pieces = messages.iter().filter_map(|message| message["event"]["data"][kind].as_str());
    let bytes: Vec<u8> = pieces.flat_map(|piece| STANDARD.decode(piece).unwrap()).collect();
    String::from_utf8(bytes).unwrap()
}

fn parse(all: &[u8]) -> Answer {
    let end = find(all, b"\r\n\r\n").expect("an answer has a head");
    let head = String::from_utf8(all[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
    let mut rest = &all[end + 4..];
    let mut body = Vec::new();
    if chunked {
        while let Some((chunk, len)) = chunk(rest) {
            body.extend_from_slice(&chunk);
            rest = &rest[len..];
        }
    } else {
        body.extend_from_slice(rest);
    }
    Answer { status, headers, body }
}

/// The first whole chunk, and how long it is with everything around it.
fn chunk(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let line = find(bytes, b"\r\n")?;
    let len = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).unwrap(), 16).unwrap();
    let data = bytes.get(line + 2..line + 2 + len)?;
    (bytes.len() >= line + 4 + len).then(|| (data.to_vec(), line + 4 + len))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
