//! What happens to a process, as the messages of a stream: `start` first, then data, then `end`.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::Stream;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, Sleep, sleep};

use crate::process::{Channel, Ended, Found, Process, Reader, Status};
use crate::refusal::{Code, Refusal, Result};

/// Of output in one message.
const PIECE_BYTES: usize = 32 << 10;

/// What the timeout of a call ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Deadline {
    /// The pump keeps it; here it only changes what the end looks like.
    OfProcess,
    OfStream(Option<Duration>),
}

pub(super) struct Events {
    process: Arc<Process>,
    reader: Reader,
    next: Next,
    keepalive: Duration,
    quiet: Pin<Box<Sleep>>,
    deadline: Option<Pin<Box<Sleep>>>,
    ends_by_timeout: bool,
}

enum Next {
    Start,
    Output,
    Nothing,
}

impl Events {
    pub(super) fn new(
        process: Arc<Process>,
        reader: Reader,
        keepalive: Duration,
        deadline: Deadline,
    ) -> Self {
        let (ends_by_timeout, deadline) = match deadline {
            Deadline::OfProcess => (true, None),
            Deadline::OfStream(deadline) => (false, deadline),
        };
        Self {
            process,
            reader,
            next: Next::Start,
            keepalive,
            quiet: Box::pin(sleep(keepalive)),
            deadline: deadline.map(|deadline| Box::pin(sleep(deadline))),
            ends_by_timeout,
        }
    }

    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        loop {
            let mut bytes = Vec::new();
            let found = self.reader.poll(cx, PIECE_BYTES, |piece| bytes.extend_from_slice(piece));
            match found {
                Poll::Pending => return Poll::Pending,
                // This protocol cannot tell; it promises nothing either.
                Poll::Ready(Found::Gap { .. }) => {}
                Poll::Ready(Found::Bytes { channel, .. }) => {
                    return Poll::Ready(Some(Ok(data(channel, &bytes))));
                }
                Poll::Ready(Found::End(ended)) => {
                    self.next = Next::Nothing;
                    if ended.timed_out && self.ends_by_timeout {
                        let message = "the process was killed because its timeout has passed";
                        return Poll::Ready(Some(Err(Refusal::new(
                            Code::DeadlineExceeded,
                            message,
                        ))));
                    }
                    return Poll::Ready(Some(Ok(end(ended))));
                }
            }
        }
    }
}

impl Stream for Events {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.next {
            Next::Nothing => return Poll::Ready(None),
            Next::Start => {
                self.next = Next::Output;
                let start = json!({ "event": { "start": { "pid": self.process.pid } } });
                return Poll::Ready(Some(Ok(start.to_string().into())));
            }
            Next::Output => {}
        }
        if let Poll::Ready(event) = self.poll_output(cx) {
            let until = Instant::now() + self.keepalive;
            self.quiet.as_mut().reset(until);
            return Poll::Ready(event);
        }
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            self.next = Next::Nothing;
            let over = Refusal::new(Code::DeadlineExceeded, "the timeout of the stream has passed");
            return Poll::Ready(Some(Err(over)));
        }
        if self.quiet.as_mut().poll(cx).is_ready() {
            let until = Instant::now() + self.keepalive;
            self.quiet.as_mut().reset(until);
            return Poll::Ready(Some(Ok(Bytes::from_static(br#"{"event":{"keepalive":{}}}"#))));
        }
        Poll::Pending
    }
}

fn data(channel: Channel, bytes: &[u8]) -> Bytes {
    let field = match channel {
        Channel::Stdout => "stdout",
        Channel::Stderr => "stderr",
        Channel::Pty => "pty",
    };
    format!(r#"{{"event":{{"data":{{"{field}":"{}"}}}}}}"#, STANDARD.encode(bytes)).into()
}

fn end(ended: Ended) -> Bytes {
    let mut end = Map::new();
    let (status, failed) = match ended.status {
        Status::Exited(code) => {
            if code != 0 {
                end.insert("exitCode".into(), code.into());
            }
            end.insert("exited".into(), true.into());
            (format!("exit status {code}"), code != 0)
        }
        Status::Signaled(signal) => {
            end.insert("exitCode".into(), (-1).into());
            (format!("signal: {}", name(signal)), true)
        }
    };
    if failed {
        end.insert("error".into(), status.clone().into());
    }
    end.insert("status".into(), status.into());
    json!({ "event": { "end": Value::Object(end) } }).to_string().into()
}

/// As Go spells them.
fn name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGILL => "illegal instruction",
        libc::SIGTRAP => "trace/breakpoint trap",
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGKILL => "killed",
        libc::SIGUSR1 => "user defined signal 1",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGUSR2 => "user defined signal 2",
        libc::SIGPIPE => "broken pipe",
        libc::SIGALRM => "alarm clock",
        libc::SIGTERM => "terminated",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}
