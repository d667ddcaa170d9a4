//! Files, logs, tar streams of the workspace, and connections into a sandbox.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use driver::{AccessPage, Usage};
use futures_util::{Stream, StreamExt, stream};
use guest_proto::{AGENTS_LOG, Guest, GuestError, Tail, Tailed};
use model::{Error, Phase, Result, SandboxRef};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

use crate::activity::Guard;
use crate::guest::{Life, Running, failed};
use crate::machine::{Ask, Maintained};
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
    pub(crate) inner: Pin<Box<guest_proto::Tunnel>>,
    /// Absent for who only listens.
    pub(crate) _guard: Option<Guard>,
}

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

/// The agent's log inside a sandbox (ruling 19).
pub const AGENT_LOG: &str = "/tmp/agent.log";
/// What export and import mean, in a running sandbox.
const WORKSPACE: &str = "/workspace";

/// A guest and where the workspace is in it: of a running sandbox, or over a stopped one.
struct Desk {
    guest: Guest,
    workspace: String,
    life: Option<Life>,
    hold: Hold,
}

/// Kept while a body flows.
enum Hold {
    Call {
        _guard: Guard,
    },
    /// Ends early when the sandbox is deleted; letting go lets it be started again.
    Maintenance {
        until: CancellationToken,
        _compute: Box<dyn Send + Sync>,
    },
}

impl Engine {
    /// `path` is absolute; `..` was refused by whoever parsed it, and the guest refuses it again.
    pub async fn read_file(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        path: &str,
    ) -> Result<Download> {
        let mut running = self.core.use_guest(caller, sandbox)?;
        match running.guest.read_file(path).await {
            Ok(file) => {
                let body = held(file.body, Hold::Call { _guard: running.guard });
                Ok(Download { size: Some(file.size), body })
            }
            Err(error) => Err(failed(error, &mut running.life, ("path", "file", path)).await),
        }
    }

    /// The parent must exist (ruling 19).
    pub async fn write_file<S>(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        path: &str,
        body: S,
    ) -> Result<()>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        let mut running = self.core.use_guest(caller, sandbox)?;
        // On the heap: it holds a whole connection.
        match Box::pin(running.guest.write_file(path, body)).await {
            Ok(()) => Ok(()),
            Err(GuestError::NotFound) => {
                Err(Error::invalid("path", format!("its directory does not exist: {path}")))
            }
            Err(error) => Err(failed(error, &mut running.life, ("path", "file", path)).await),
        }
    }

    /// The workspace as a tar stream; works on a stopped sandbox too.
    pub async fn export(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<ByteStream> {
        self.export_below(caller, sandbox, "").await
    }

    /// The same of one directory in it; `below` was checked by whoever parsed it.
    pub async fn export_below(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        below: &str,
    ) -> Result<ByteStream> {
        let desk = self.desk(caller, sandbox).await?;
        let from = format!("{}/{below}", desk.workspace);
        match desk.guest.export_tar(from.trim_end_matches('/')).await {
            Ok(body) => Ok(held(body, desk.hold)),
            Err(GuestError::NotFound) if !below.is_empty() => {
                Err(Error::invalid("path", format!("no such directory: {WORKSPACE}/{below}")))
            }
            Err(error) => Err(desk.failed(error).await),
        }
    }

    /// Unpacks a tar stream into the workspace; works on a stopped sandbox too.
    pub async fn import<S>(&self, caller: &Caller, sandbox: &SandboxRef, body: S) -> Result<()>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        let desk = self.desk(caller, sandbox).await?;
        // On the heap: it holds a whole connection.
        let imported = Box::pin(desk.guest.import_tar(&desk.workspace, body));
        let imported = match &desk.hold {
            Hold::Call { .. } => imported.await,
            Hold::Maintenance { until, .. } => {
                let Some(imported) = until.run_until_cancelled(imported).await else {
                    return Err(Error::wrong_state("the sandbox was deleted meanwhile"));
                };
                if imported.is_ok() {
                    // What was unpacked into a stopped sandbox is as durable as its stop was.
                    desk.guest.sync(&desk.workspace).await
                } else {
                    imported
                }
            }
        };
        match imported {
            Ok(()) => Ok(()),
            Err(error) => Err(desk.failed(error).await),
        }
    }

    /// The end of the agent's log; empty without an agent (ruling 19).
    pub async fn logs(&self, caller: &Caller, sandbox: &SandboxRef, tail: LogTail) -> Result<Logs> {
        self.tail(caller, sandbox, AGENT_LOG, tail).await
    }

    /// The end of what the agent daemon logged; empty if it was never started.
    pub async fn agents_log(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        tail: LogTail,
    ) -> Result<Logs> {
        self.tail(caller, sandbox, AGENTS_LOG, tail).await
    }

    async fn tail(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        path: &str,
        tail: LogTail,
    ) -> Result<Logs> {
        let mut running = self.core.use_guest(caller, sandbox)?;
        let by = match tail {
            LogTail::Lines(lines) => Tail::Lines(lines),
            LogTail::Bytes(bytes) => Tail::Bytes(bytes),
        };
        match running.guest.tail(path, by).await {
            Ok(Tailed { content, truncated, total_bytes }) => {
                Ok(Logs { content: content.into(), truncated, total_bytes })
            }
            Err(error) => Err(failed(error, &mut running.life, ("path", "log", path)).await),
        }
    }

    /// A connection to a TCP port inside; 49983 is the guest itself.
    pub async fn tunnel(&self, caller: &Caller, sandbox: &SandboxRef, port: u16) -> Result<Tunnel> {
        let closed =
            || Error::unavailable(format!("nothing listens on port {port} in the sandbox"));
        self.dial(caller, sandbox, port).await?.ok_or_else(closed)
    }

    /// The same; `None` when nothing listens on that port.
    pub async fn dial(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        port: u16,
    ) -> Result<Option<Tunnel>> {
        let mut running = self.core.use_guest(caller, sandbox)?;
        match running.guest.tunnel(port).await {
            Ok(inner) => Ok(Some(Tunnel { inner: Box::pin(inner), _guard: Some(running.guard) })),
            Err(GuestError::PortClosed) => Ok(None),
            Err(error) => {
                let port = port.to_string();
                Err(failed(error, &mut running.life, ("port", "port", &port)).await)
            }
        }
    }

    /// What it uses now, counted on the host.
    pub async fn usage(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<Usage> {
        let cell = self.core.find_live(caller, sandbox)?;
        self.core.bounded(cell.pool.driver.usage(cell.id)).await
    }

    /// What it reached and was refused; see `Driver::accesses`.
    pub async fn accesses(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        after: Option<u64>,
        max: usize,
    ) -> Result<AccessPage> {
        let cell = self.core.find_live(caller, sandbox)?;
        self.core.bounded(cell.pool.driver.accesses(cell.id, after, max)).await
    }

    async fn desk(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<Desk> {
        let cell = self.core.find_live(caller, sandbox)?;
        if cell.phase() == Phase::Running {
            let Running { guest, life, guard, .. } = self.core.use_guest(caller, sandbox)?;
            let (life, hold) = (Some(life), Hold::Call { _guard: guard });
            return Ok(Desk { guest, workspace: WORKSPACE.into(), life, hold });
        }
        let Maintained { maintenance, until } = self.core.ask(&cell, Ask::Maintain).await?;
        let workspace = maintenance.workspace.to_string_lossy().into_owned();
        let hold = Hold::Maintenance { until, _compute: maintenance.hold };
        Ok(Desk { guest: maintenance.guest, workspace, life: None, hold })
    }
}

impl Desk {
    async fn failed(mut self, error: GuestError) -> Error {
        let what = ("body", "directory", self.workspace.as_str());
        match &mut self.life {
            Some(life) => failed(error, life, what).await,
            None => failed(error, &mut Life::unknown(), what).await,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        match self {
            Self::Call { .. } => {}
            // The sandbox may be started again.
            Self::Maintenance { until, .. } => until.cancel(),
        }
    }
}

/// The body, which keeps its hold until it is read or dropped, and ends with an error when the
/// sandbox is deleted under it.
fn held(body: guest_proto::ByteStream, hold: Hold) -> ByteStream {
    let pieces = stream::unfold((body, hold), |(mut body, hold)| async move {
        let piece = match &hold {
            Hold::Call { .. } => body.next().await,
            Hold::Maintenance { until, .. } => {
                let piece = until.run_until_cancelled(body.next()).await;
                piece.unwrap_or_else(|| Some(Err(GuestError::NotFound)))
            }
        };
        Some((piece?.map_err(io::Error::other), (body, hold)))
    });
    Box::pin(pieces)
}
