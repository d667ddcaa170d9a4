//! Commands in a running sandbox: blocking, and as a stream that outlives its client (ruling 18).

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use model::{EndReason, Error, ExecId, Result, SandboxRef};

use crate::{Caller, Engine};

/// A command to run inside.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Command {
    pub argv: Vec<String>,
    /// The template's working directory when absent.
    pub cwd: Option<String>,
    /// Added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// The template's user when absent.
    pub user: Option<String>,
    pub stdin: Option<Vec<u8>>,
    pub timeout: Option<Duration>,
}

/// The answer of a blocking exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutcome {
    /// Both streams, interleaved as they came.
    pub output: Bytes,
    pub stdout: Bytes,
    pub stderr: Bytes,
    pub exit_code: i32,
    pub duration_ms: u64,
    pub timed_out: bool,
    /// More than 8 MiB came; what is here is the beginning.
    pub truncated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// One item of a streamed exec. `Exit` and `SandboxEnded` are last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    Output {
        stream: OutputStream,
        offset: u64,
        bytes: Bytes,
    },
    /// What lies before `offset` is no longer kept.
    Gap {
        offset: u64,
    },
    Keepalive,
    Exit(ExecExit),
    /// The sandbox died under it.
    SandboxEnded {
        reason: EndReason,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecExit {
    /// 128 + n when ended by signal n.
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub timed_out: bool,
    pub duration_ms: u64,
    pub total_bytes: u64,
}

/// The output of a streamed exec. Dropping it leaves the command running.
pub struct ExecOutput {
    inner: Pin<Box<dyn Stream<Item = Result<ExecEvent>> + Send>>,
}

impl Stream for ExecOutput {
    type Item = Result<ExecEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.inner.as_mut().poll_next(cx)
    }
}

impl Command {
    /// What 000's `command` string means.
    pub fn shell(text: impl Into<String>) -> Self {
        let argv = vec!["/bin/sh".into(), "-c".into(), text.into()];
        Self { argv, ..Self::default() }
    }
}

impl Engine {
    /// Runs a command to its end. Dropping the future kills everything it started.
    pub async fn exec(
        &self,
        _caller: &Caller,
        _sandbox: &SandboxRef,
        _command: Command,
    ) -> Result<ExecOutcome> {
        Err(Error::unavailable("not wired yet"))
    }

    /// Starts a command that lives on when its client goes away.
    pub async fn exec_start(
        &self,
        _caller: &Caller,
        _sandbox: &SandboxRef,
        _command: Command,
    ) -> Result<(ExecId, ExecOutput)> {
        Err(Error::unavailable("not wired yet"))
    }

    /// Its output from byte `offset` on.
    pub async fn exec_attach(
        &self,
        _caller: &Caller,
        _sandbox: &SandboxRef,
        _exec: &ExecId,
        _offset: u64,
    ) -> Result<ExecOutput> {
        Err(Error::unavailable("not wired yet"))
    }

    pub async fn exec_kill(
        &self,
        _caller: &Caller,
        _sandbox: &SandboxRef,
        _exec: &ExecId,
    ) -> Result<()> {
        Err(Error::unavailable("not wired yet"))
    }
}
