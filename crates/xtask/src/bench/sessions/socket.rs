//! One client of a session, blocking; and the same library without a session behind it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use serde_json::json;
use tungstenite::client::IntoClientRequest as _;
use tungstenite::error::Error;
use tungstenite::http::HeaderValue;
use tungstenite::{Message, Utf8Bytes, WebSocket};

use crate::bench::clock::Stopwatch;

/// Longer than anything that is measured.
const WAIT: Duration = Duration::from_secs(60);
/// How long nothing has to come for there to be nothing.
const QUIET: Duration = Duration::from_millis(50);
/// Of a session that has begun: the server waits this long for what a client says first.
const FIRST_WAIT: Duration = Duration::from_secs(5);
/// Frames in one write, as the server does it.
const AT_ONCE: u64 = 64;

pub(super) struct Socket {
    socket: WebSocket<TcpStream>,
    /// The sequence of the last event.
    last: u64,
}

/// A frame, and when it came.
pub(super) struct Received {
    pub(super) text: Utf8Bytes,
    at_micros: u64,
}

#[derive(Deserialize)]
struct Frame {
    sequence: Option<u64>,
    data: Option<Data>,
}

#[derive(Deserialize)]
struct Data {
    delta: Option<String>,
}

impl Received {
    /// Of a flood, without reading all of it.
    pub(super) fn is_piece(&self) -> bool {
        self.text.contains("\"delta\":\"0")
    }

    /// The server's number, and the agent's if it is a piece.
    pub(super) fn numbers(&self) -> anyhow::Result<(u64, Option<u64>)> {
        let frame: Frame = serde_json::from_str(&self.text).context("read an event")?;
        let delta = frame.data.and_then(|data| data.delta);
        // What the agent says before a flood has none.
        let piece = delta.and_then(|delta| delta.split(' ').next()?.parse().ok());
        let sequence = frame.sequence.context("an event without a number")?;
        Ok((sequence, piece))
    }

    /// How long after it was made it came.
    pub(super) fn late(&self) -> Option<Duration> {
        let frame: Frame = serde_json::from_str(&self.text).ok()?;
        let delta = frame.data?.delta?;
        let made: u64 = delta.trim_end().split(' ').nth(1)?.parse().ok()?;
        Some(Duration::from_micros(self.at_micros.saturating_sub(made)))
    }
}

impl Socket {
    /// With all that is there already read.
    pub(super) fn connect(address: SocketAddr, path: &str, token: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT))?;
        let mut request = format!("ws://{address}{path}?from=0").into_client_request()?;
        let bearer = HeaderValue::from_str(&format!("Bearer {token}"))?;
        request.headers_mut().insert("authorization", bearer);
        let (socket, _) = tungstenite::client(request, stream)
            .map_err(|error| anyhow!("connect to a session: {error}"))?;
        let mut socket = Self { socket, last: 0 };
        socket.catch_up(FIRST_WAIT)?;
        Ok(socket)
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn seen(&mut self, last: u64) {
        self.last = last;
    }

    pub(super) fn say(&mut self, message: &str) -> anyhow::Result<()> {
        let frame = json!({ "type": "message", "message": message }).to_string();
        self.socket.send(Message::text(frame)).context("say something")
    }

    /// The next event.
    pub(super) fn next(&mut self, clock: fn() -> u64) -> anyhow::Result<Received> {
        loop {
            match self.socket.read().context("read an event")? {
                Message::Text(text) if !is_control(&text) => {
                    return Ok(Received { text, at_micros: clock() });
                }
                Message::Close(why) => bail!("the session closed: {why:?}"),
                _ => {}
            }
        }
    }

    /// Reads what came, and answers pings.
    pub(super) fn tend(&mut self) -> anyhow::Result<()> {
        self.catch_up(Duration::from_millis(1))
    }

    /// Reads up to that event; where it ended.
    pub(super) fn replay(mut self, until: u64) -> anyhow::Result<u64> {
        while self.last < until {
            self.last = self.next(|| 0)?.numbers()?.0;
        }
        Ok(self.last)
    }

    fn catch_up(&mut self, first_wait: Duration) -> anyhow::Result<()> {
        self.socket.get_ref().set_read_timeout(Some(first_wait))?;
        loop {
            match self.socket.read() {
                Ok(Message::Text(text)) if !is_control(&text) => {
                    let one = Received { text, at_micros: 0 };
                    self.last = one.numbers()?.0;
                    self.socket.get_ref().set_read_timeout(Some(QUIET.min(first_wait)))?;
                }
                Ok(Message::Close(why)) => bail!("the session closed: {why:?}"),
                Ok(_) => {}
                Err(Error::Io(error)) if is_over(&error) => break,
                Err(error) => return Err(error).context("read what is there"),
            }
        }
        self.socket.get_ref().set_read_timeout(Some(WAIT))?;
        Ok(())
    }
}

fn is_control(text: &str) -> bool {
    !text.contains("\"sequence\"")
}

fn is_over(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

/// How long it takes to send and receive as many frames of that size with nothing in between.
pub(super) fn raw(count: u64, bytes: usize) -> anyhow::Result<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let sender = thread::spawn(move || -> anyhow::Result<()> {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut socket = tungstenite::accept(stream).map_err(|error| anyhow!("accept: {error}"))?;
        let text = Utf8Bytes::from("x".repeat(bytes));
        for number in 0..count {
            socket.write(Message::Text(text.clone()))?;
            if number % AT_ONCE == AT_ONCE - 1 {
                socket.flush()?;
            }
        }
        socket.flush()?;
        // Until the other side has read all.
        let _ = socket.read();
        Ok(())
    });
    let stream = TcpStream::connect(address)?;
    let request = format!("ws://{address}/").into_client_request()?;
    let (mut socket, _) =
        tungstenite::client(request, stream).map_err(|error| anyhow!("connect: {error}"))?;
    let watch = Stopwatch::start();
    for _ in 0..count {
        socket.read()?;
    }
    let took = watch.time();
    drop(socket);
    sender.join().map_err(|_| anyhow!("the sender gave up"))??;
    Ok(took)
}
