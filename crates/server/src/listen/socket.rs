//! A TCP connection that can be read to its end after HTTP is done with it.
//!
//! A refusal is sent before the whole body has come. Closing then, with bytes unread, makes the
//! kernel reset the connection, and the client never sees why it was refused. So whoever is left
//! with the socket reads what still comes, for a little while.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::limits::LINGER_TIMEOUT;

/// Clones are one connection; its place among the bounded is free when the last is dropped.
#[derive(Clone)]
pub(super) struct Socket(Arc<Inner>);

struct Inner {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, permit: OwnedSemaphorePermit) -> Self {
        Self(Arc::new(Inner { stream, _permit: permit }))
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

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream().poll_read_ready(cx))?;
            match self.stream().try_read_buf(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done.map(drop)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream().poll_write_ready(cx))?;
            match self.stream().try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream().poll_write_ready(cx))?;
            match self.stream().try_write_vectored(pieces) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match shutdown(self.stream(), Shutdown::Write) {
            // The client was first.
            Err(rustix::io::Errno::NOTCONN) => Poll::Ready(Ok(())),
            done => Poll::Ready(done.map_err(io::Error::from)),
        }
    }
}
