//! Commands: start, attach again by offset, kill.

use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use guest_proto::frame::{self, HEADER_BYTES};
use guest_proto::{Commands, ExecEnd, ExecFrame, ExecStart, OutputStream};
use http::{HeaderValue, header};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::files::Query;
use crate::http::{Body, Request, Response, json, json_body, no_content};
use crate::process::{self, Channel, Ended, Found, Process, Reader, Start, Status, Stdin, Until};
use crate::refusal::{Refusal, Result};
use crate::state::State;

/// Of frames at once; one frame is never longer.
const PIECE_BYTES: usize = 64 << 10;

/// When a quiet command says that it still runs.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// How long an answer waits for the first output to go with it.
const HEAD_WAITS: Duration = Duration::from_millis(2);

const ID_CHARS_MAX: usize = 64;

pub(super) async fn start(state: &Arc<State>, request: Request) -> Result<Response> {
    let request: ExecStart = json_body(request).await?;
    check_id(&request.id)?;
    let detached = request.detached;
    let process = process::start(
        state,
        Start {
            id: Some(request.id),
            tag: None,
            argv: request.argv,
            env: request.env,
            cwd: request.cwd,
            user: request.user,
            stdin: request.stdin.map_or(Stdin::Empty, Stdin::Bytes),
            pty: None,
            timeout: request.timeout_ms.map(Duration::from_millis),
            until: Until::Exit,
            detached,
        },
    )?;
    let mut reader = process.output.reader(Some(0));
    let lifeline = (!detached).then(|| Lifeline { state: Arc::clone(state), process });
    if !detached {
        // What is short is answered in one piece, which wakes the host once instead of twice.
        let _ = timeout(HEAD_WAITS, poll_fn(|cx| reader.poll_news(cx))).await;
    }
    Ok(frames(reader, lifeline))
}

/// Those that run and that live on without a connection, and whether the agent daemon does.
pub(super) fn list(state: &State) -> Response {
    let detached = state.processes.running().into_iter().filter(|process| process.start.detached);
    let ids = detached.filter_map(|process| process.start.id.clone());
    json(&Commands { detached: ids.collect(), agents: state.agents.is_running() })
}

pub(super) fn attach(state: &State, request: &Request, id: &str) -> Result<Response> {
    let offset = Query::of(request).number("offset")?.unwrap_or(0);
    let process = state.processes.by_id(id)?;
    Ok(frames(process.output.reader(Some(offset)), None))
}

pub(super) async fn kill(state: &State, id: &str) -> Result<Response> {
    let process = state.processes.by_id(id)?;
    if process.output.ended().is_none() {
        process.end_tree().await?;
    }
    Ok(no_content())
}

fn check_id(id: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if id.is_empty() || id.len() > ID_CHARS_MAX || !id.chars().all(allowed) {
        return Err(Refusal::invalid("id: not 1 to 64 of [A-Za-z0-9_-]"));
    }
    Ok(())
}

fn frames(reader: Reader, lifeline: Option<Lifeline>) -> Response {
    let quiet = Box::pin(sleep(KEEPALIVE));
    let frames = Frames { reader, quiet, ended: false, _lifeline: lifeline };
    let mut response = Response::new(Body::stream(frames));
    let kind = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The connection that a command's life hangs on. Nobody else knows such a command, so it is
/// forgotten with it.
struct Lifeline {
    state: Arc<State>,
    process: Arc<Process>,
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        if self.process.output.ended().is_none() {
            self.process.kill_tree();
        }
        self.state.processes.forget(&self.process);
    }
}

struct Frames {
    reader: Reader,
    quiet: Pin<Box<Sleep>>,
    ended: bool,
    _lifeline: Option<Lifeline>,
}

impl Frames {
    /// As many frames as there are, up to one piece.
    fn collect(&mut self, cx: &mut Context<'_>) -> BytesMut {
        let mut out = BytesMut::new();
        while !self.ended && out.len() < PIECE_BYTES {
            let header_at = out.len();
            out.extend_from_slice(&[0; HEADER_BYTES]);
            let max = PIECE_BYTES - header_at;
            let found = self.reader.poll(cx, max, |piece| out.extend_from_slice(piece));
            let Poll::Ready(found) = found else {
                out.truncate(header_at);
                break;
            };
            match found {
                Found::Bytes { channel, offset, len } => {
                    let len = u32::try_from(len).expect("a piece is small");
                    let header = frame::output_header(stream_of(channel), offset, len);
                    out[header_at..header_at + HEADER_BYTES].copy_from_slice(&header);
                }
                Found::Gap { offset } => {
                    out.truncate(header_at);
                    frame::encode(&ExecFrame::Gap { offset }, &mut out);
                }
                Found::End(ended) => {
                    out.truncate(header_at);
                    let end = end(ended, self.reader.output().total_bytes());
                    frame::encode(&ExecFrame::End(end), &mut out);
                    self.ended = true;
                }
            }
        }
        out
    }
}

impl Stream for Frames {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut out = self.collect(cx);
        if out.is_empty() {
            if self.quiet.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            frame::encode(&ExecFrame::Keepalive, &mut out);
        }
        let until = Instant::now() + KEEPALIVE;
        self.quiet.as_mut().reset(until);
        Poll::Ready(Some(Ok(out.freeze())))
    }
}

fn stream_of(channel: Channel) -> OutputStream {
    match channel {
        Channel::Stdout | Channel::Pty => OutputStream::Stdout,
        Channel::Stderr => OutputStream::Stderr,
    }
}

fn end(ended: Ended, total_bytes: u64) -> ExecEnd {
    let (exit_code, signal) = match ended.status {
        Status::Exited(code) => (code, None),
        Status::Signaled(signal) => (128 + signal, Some(signal)),
    };
    let duration_ms = u64::try_from(ended.duration.as_millis()).unwrap_or(u64::MAX);
    ExecEnd { exit_code, signal, timed_out: ended.timed_out, duration_ms, total_bytes }
}
