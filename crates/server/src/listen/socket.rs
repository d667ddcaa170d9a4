//! A TCP connection that gives up a client which does not read, and that can itself be read to its
//! end after HTTP is done with it.
//!
//! A refusal is sent before the whole body has come. Closing then, with bytes unread, makes the
//! kernel reset the connection, and the client never sees why it was refused. So whoever is left
//! with the socket reads what still comes, for a little while.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep, timeout};

use crate::limits::LINGER_TIMEOUT;

/// Clones are one connection; its place among the bounded is free when the last is dropped.
#[derive(Clone)]
pub(super) struct Socket(Arc<Inner>);

struct Inner {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

/// The end that HTTP has.
pub(super) struct Half {
    socket: Socket,
    may_stall: MayStall,
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

/// Set once the connection is a tunnel, whose ends may be as slow as they like.
#[derive(Debug, Clone, Default)]
pub(crate) struct MayStall(Arc<AtomicBool>);

impl MayStall {
    pub(crate) fn allow(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Socket {
    pub(super) fn new(stream: TcpStream, permit: OwnedSemaphorePermit) -> Self {
        Self(Arc::new(Inner { stream, _permit: permit }))
    }

    /// The end to write to, which breaks when the client reads nothing for as long as `patience`.
    pub(super) fn half(&self, patience: Duration, may_stall: MayStall) -> Half {
        Half { socket: self.clone(), may_stall, patience, stalled: None }
    }

    /// Whether nobody else has it.
    pub(super) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Reads until the client closes, or has been given enough time to.
    pub(super) async fn linger(&self) {
        let to_the_end = async {
            let mut unwanted = vec![0; 64 * 1024];
            loop {
                self.stream().readable().await?;
                match self.stream().try_read(&mut unwanted) {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err::<(), io::Error>(error),
                }
            }
        };
        // However it ends, the connection is over.
        let _ = timeout(LINGER_TIMEOUT, to_the_end).await;
    }

    fn stream(&self) -> &TcpStream {
        &self.0.stream
    }
}

impl Half {
    fn poll_written(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        while let Poll::Ready(ready) = self.socket.stream().poll_write_ready(cx) {
            ready?;
            match write(self.socket.stream()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => {
                    self.stalled = None;
                    return Poll::Ready(done);
                }
            }
        }
        if self.may_stall.0.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
    }
}

impl AsyncRead for Half {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.stream().poll_read_ready(cx))?;
            match self.socket.stream().try_read_buf(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done.map(drop)),
            }
        }
    }
}

impl AsyncWrite for Half {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_written(cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_written(cx, |stream| stream.try_write_vectored(pieces))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match shutdown(self.socket.stream(), Shutdown::Write) {
            // The client was first.
            Err(rustix::io::Errno::NOTCONN) => Poll::Ready(Ok(())),
            done => Poll::Ready(done.map_err(io::Error::from)),
        }
    }
}
