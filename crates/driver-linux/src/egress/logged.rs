//! A connection to the model relay in the access log of its sandbox: from when it is handed over until whoever
//! serves it lets go.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use model::Verdict;
use model::agent::RELAY;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::log::{AccessLog, Record};

/// What it is called in the log.
const NAME: &str = "model-relay";

pub(super) struct Logged {
    stream: TcpStream,
    log: Arc<AccessLog>,
    record: Arc<Record>,
    verdict: Verdict,
}

impl Logged {
    pub(super) fn new(log: &Arc<AccessLog>, stream: TcpStream) -> Self {
        let record = log.begin(NAME.to_owned(), RELAY.port());
        Self { stream, log: Arc::clone(log), record, verdict: Verdict::Ended }
    }

    pub(super) fn set_nodelay(&self) -> io::Result<()> {
        self.stream.set_nodelay(true)
    }

    /// Nobody serves it.
    pub(super) fn refuse(mut self) {
        let _ = self.stream.set_zero_linger();
        self.verdict = Verdict::Unreachable;
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        self.log.end(&self.record, self.verdict);
    }
}

impl AsyncRead for Logged {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let bytes = u64::try_from(buffer.filled().len() - before).unwrap_or(u64::MAX);
        self.record.bytes_up.fetch_add(bytes, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Logged {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        let count = u64::try_from(written).unwrap_or(u64::MAX);
        self.record.bytes_down.fetch_add(count, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
