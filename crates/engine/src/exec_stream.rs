//! Commands whose output is a stream and that live on without a reader (ruling 18). When the
//! sandbox dies under one, its stream ends with the reason.

use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Stream, stream};
use guest_proto::{ExecEnd, ExecFrame, ExecFrames, GuestError, OutputStream as Wire};
use model::{EndReason, Error, ExecId, Phase, Result, SandboxRef};
use tracing::warn;

use crate::agents;
use crate::core::Core;
use crate::exec::command_failed;
use crate::guest::{Running, failed};
use crate::registry::Cell;
use crate::{Caller, Command, Engine};

/// Streamed commands of one sandbox whose end nobody has seen.
const DETACHED_MAX: usize = 256;

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

/// What a reader holds.
struct Reader {
    frames: ExecFrames,
    running: Running,
    exec: ExecId,
}

impl Engine {
    /// Starts a command that lives on when its client goes away.
    pub async fn exec_start(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        command: Command,
    ) -> Result<(ExecId, ExecOutput)> {
        let exec = ExecId::generate();
        let start = command.into_start(&exec, true)?;
        let mut running = self.core.use_guest(caller, sandbox)?;
        self.core.counters.count(&self.core.counters.execs);
        let frames = match running.guest.exec(&start).await {
            Ok(frames) => frames,
            Err(error) => return Err(command_failed(error, &mut running.life).await),
        };
        remember(&running.cell, &exec);
        let reader = Reader { frames, running, exec: exec.clone() };
        Ok((exec, reader.into_output()))
    }

    /// Its output from byte `offset` on.
    pub async fn exec_attach(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        exec: &ExecId,
        offset: u64,
    ) -> Result<ExecOutput> {
        let mut running = self.core.use_guest(caller, sandbox)?;
        match running.guest.exec_attach(exec.as_str(), offset).await {
            Ok(frames) => Ok(Reader { frames, running, exec: exec.clone() }.into_output()),
            Err(error) => {
                let what = ("offset", "exec", exec.as_str());
                Err(failed(error, &mut running.life, what).await)
            }
        }
    }

    /// Kills everything that the command started. `Ok` when it has ended already.
    pub async fn exec_kill(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        exec: &ExecId,
    ) -> Result<()> {
        let mut running = self.core.use_guest(caller, sandbox)?;
        match running.guest.exec_kill(exec.as_str()).await {
            Ok(()) => Ok(()),
            Err(error) => {
                let what = ("exec", "exec", exec.as_str());
                Err(failed(error, &mut running.life, what).await)
            }
        }
    }
}

impl Reader {
    fn into_output(self) -> ExecOutput {
        let events = stream::unfold(Some(self), |reader| async move {
            let mut reader = reader?;
            let event = reader.next().await;
            let more = matches!(
                event,
                Ok(ExecEvent::Output { .. } | ExecEvent::Gap { .. } | ExecEvent::Keepalive)
            );
            Some((event, more.then_some(reader)))
        });
        ExecOutput { inner: Box::pin(events) }
    }

    async fn next(&mut self) -> Result<ExecEvent> {
        let frame = tokio::select! {
            biased;
            frame = self.frames.next() => frame,
            reason = self.running.life.end() => return Ok(ExecEvent::SandboxEnded { reason }),
        };
        match frame {
            Some(Ok(ExecFrame::Output { stream, offset, bytes })) => {
                let stream = match stream {
                    Wire::Stdout => OutputStream::Stdout,
                    Wire::Stderr => OutputStream::Stderr,
                };
                Ok(ExecEvent::Output { stream, offset, bytes })
            }
            Some(Ok(ExecFrame::Gap { offset })) => Ok(ExecEvent::Gap { offset }),
            Some(Ok(ExecFrame::Keepalive)) => Ok(ExecEvent::Keepalive),
            Some(Ok(ExecFrame::End(end))) => {
                forget(&self.running.cell, &self.exec);
                Ok(ExecEvent::Exit(exit(&end)))
            }
            Some(Err(error)) => self.lost(error).await,
            None => Err(Error::unavailable("the sandbox did not say how it ended")),
        }
    }

    async fn lost(&mut self, error: GuestError) -> Result<ExecEvent> {
        let life = &mut self.running.life;
        if matches!(error, GuestError::Unreachable(_))
            && let Some(reason) = life.end_after_loss().await
        {
            return Ok(ExecEvent::SandboxEnded { reason });
        }
        Err(command_failed(error, life).await)
    }
}

fn exit(end: &ExecEnd) -> ExecExit {
    ExecExit {
        exit_code: end.exit_code,
        signal: end.signal,
        timed_out: end.timed_out,
        duration_ms: end.duration_ms,
        total_bytes: end.total_bytes,
    }
}

/// So that the sandbox does not count as idle while the command runs unread.
fn remember(cell: &Arc<Cell>, exec: &ExecId) {
    let mut detached = cell.detached.lock().unwrap_or_else(PoisonError::into_inner);
    if detached.len() >= DETACHED_MAX {
        detached.remove(0);
    }
    detached.push(exec.clone());
}

/// Commands that a predecessor started and that nobody may read, and agents in a turn: they keep their
/// sandbox from idling.
pub(crate) fn recall(core: &Arc<Core>, cell: &Arc<Cell>) {
    let guest = cell.state.borrow().guest.clone();
    let Some(guest) = guest.filter(|_| cell.phase() == Phase::Running) else { return };
    let (core, cell) = (Arc::clone(core), Arc::clone(cell));
    core.clone().tasks.spawn(async move {
        match guest.commands().await {
            Ok(commands) => {
                let ids = commands.detached.iter().filter_map(|id| id.parse().ok());
                ids.for_each(|exec: ExecId| remember(&cell, &exec));
                agents::found(&core, &cell, commands.agents).await;
            }
            // An older guest cannot say.
            Err(GuestError::NotFound) => {}
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::new(error));
                warn!(sandbox.id = %cell.id, error, "could not ask for the commands that run");
            }
        }
    });
}

fn forget(cell: &Arc<Cell>, exec: &ExecId) {
    let mut detached = cell.detached.lock().unwrap_or_else(PoisonError::into_inner);
    detached.retain(|other| other != exec);
}
