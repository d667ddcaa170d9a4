//! Files, logs, tar streams of the workspace, and connections into a sandbox.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use driver::Usage;
use futures_util::Stream;
use model::{Error, Result, SandboxRef};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Caller, Engine};

/// A body that is read as it comes, never held whole.
pub type ByteStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// A file on its way out.
pub struct Download {
    pub size: Option<u64>,
    pub body: ByteStream,
}

/// How much of the end of a log is wanted (000 *logs*); already checked and clamped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogTail {
    Lines(u32),
    Bytes(u64),
}

/// The answer of logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logs {
    pub content: Bytes,
    pub truncated: bool,
    pub total_bytes: u64,
}

/// A connection to a port inside; the sandbox counts as in use while it is open.
pub struct Tunnel {
    inner: Pin<Box<dyn Duplex>>,
}

pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.inner.as_mut().poll_read(cx, buf)
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.inner.as_mut().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.as_mut().poll_shutdown(cx)
    }
}

impl Engine {
    /// `path` is absolute; `..` was refused by whoever parsed it, and the guest refuses it again.
    pub async fn read_file(
        &self,
        _caller: &Caller,
        _sandbox: &SandboxRef,
        _path: &str,
    ) -> Result<Download> {
        Err(Error::unavailable("not wired yet"))
    }

    /// The parent must exist (ruling 19).
    pub async fn write_file<S>(
        &self,
        _caller: &Caller,
        _sandbox: &SandboxRef,
        _path: &str,
        _body: S,
    ) -> Result<()>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        Err(Error::unavailable("not wired yet"))
    }

    /// The workspace as a tar stream; works on a stopped sandbox too.
    pub async fn export(&self, _caller: &Caller, _sandbox: &SandboxRef) -> Result<ByteStream> {
        Err(Error::unavailable("not wired yet"))
    }

    /// Unpacks a tar stream into the workspace; works on a stopped sandbox too.
    pub async fn import<S>(&self, _caller: &Caller, _sandbox: &SandboxRef, _body: S) -> Result<()>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        Err(Error::unavailable("not wired yet"))
    }

    /// The end of the agent's log; empty without an agent (ruling 19).
    pub async fn logs(
        &self,
        _caller: &Caller,
        _sandbox: &SandboxRef,
        _tail: LogTail,
    ) -> Result<Logs> {
        Err(Error::unavailable("not wired yet"))
    }

    /// A connection to a TCP port inside; 49983 is the guest itself.
    pub async fn tunnel(
        &self,
        _caller: &Caller,
        _sandbox: &SandboxRef,
        _port: u16,
    ) -> Result<Tunnel> {
        Err(Error::unavailable("not wired yet"))
    }

    /// What it uses now, counted on the host.
    pub async fn usage(&self, _caller: &Caller, _sandbox: &SandboxRef) -> Result<Usage> {
        Err(Error::unavailable("not wired yet"))
    }
}
