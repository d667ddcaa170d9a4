//! A running sandbox as a call holds it, and what a guest's errors mean to a caller.

use std::sync::Arc;
use std::time::Duration;

use guest_proto::{Guest, GuestError};
use model::{EndReason, Error, Phase, Result, SandboxRef};
use tokio::sync::watch;

use crate::Caller;
use crate::activity::Guard;
use crate::core::Core;
use crate::machine::Ask;
use crate::registry::{Cell, State};

/// How long after a lost connection the sandbox's own end may take to be known.
const END_KNOWN_WITHIN: Duration = Duration::from_secs(2);

/// The sandbox counts as in use while this lives.
pub(crate) struct Running {
    pub(crate) guest: Guest,
    pub(crate) cell: Arc<Cell>,
    pub(crate) life: Life,
    pub(crate) guard: Guard,
}

/// One incarnation of a sandbox.
pub(crate) struct Life {
    /// `None` for a guest that is not a sandbox's own compute.
    of: Option<(Arc<Cell>, watch::Receiver<State>)>,
    incarnation: Option<Arc<str>>,
}

impl Core {
    /// For a call that uses the guest. No queue, no store: what was published is believed.
    pub(crate) fn use_guest(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<Running> {
        self.require_open()?;
        let cell = self.find_running(caller, sandbox)?;
        let guard = Guard::begin(&cell);
        let states = cell.state.clone();
        let (guest, incarnation) = {
            let state = states.borrow();
            (state.guest.clone(), state.incarnation.clone())
        };
        let stopped = || Error::wrong_state(format!("the sandbox {} is stopping", cell.id));
        let guest = guest.ok_or_else(stopped)?;
        let life = Life { of: Some((Arc::clone(&cell), states)), incarnation };
        Ok(Running { guest, cell, life, guard })
    }
}

impl Life {
    /// Of a guest that is not a sandbox's own compute: nothing says when it ends.
    pub(crate) fn unknown() -> Self {
        Self { of: None, incarnation: None }
    }

    /// Returns when this incarnation has ended, with the reason.
    pub(crate) async fn end(&mut self) -> EndReason {
        let incarnation = self.incarnation.clone();
        let ended = |state: &State| {
            let over = matches!(
                state.phase,
                Phase::Stopping | Phase::Stopped | Phase::Deleting | Phase::Destroyed
            );
            over || state.incarnation != incarnation
        };
        let Some((_, states)) = &mut self.of else { return std::future::pending().await };
        match states.wait_for(ended).await {
            Ok(state) => state.end_reason.unwrap_or(EndReason::Unknown),
            // Its task has ended: the engine is shutting down.
            Err(_) => EndReason::Unknown,
        }
    }

    /// The same after the guest went silent: whether the sandbox ended with it.
    pub(crate) async fn end_after_loss(&mut self) -> Option<EndReason> {
        let (cell, _) = self.of.as_ref()?;
        // Its task may not know yet. A full queue means that it is busy with it.
        let _ = cell.queue.try_send(Ask::Look);
        tokio::time::timeout(END_KNOWN_WITHIN, self.end()).await.ok()
    }
}

/// Turns a failed guest call into what the caller is told. `field` is what a bad value came in,
/// `what` and `id` name what may be missing.
pub(crate) async fn failed(
    error: GuestError,
    life: &mut Life,
    (field, what, id): (&str, &'static str, &str),
) -> Error {
    match error {
        GuestError::NotFound => Error::NotFound { what, id: id.to_owned() },
        GuestError::Invalid(detail) | GuestError::Denied(detail) => Error::invalid(field, detail),
        GuestError::Unauthenticated(detail) => Error::invalid("user", detail),
        GuestError::Exists => Error::wrong_state(format!("{id} exists")),
        GuestError::TooLarge => Error::invalid(field, "too large"),
        GuestError::DiskFull => {
            Error::DiskFull { detail: "the disk of the sandbox is full".into() }
        }
        GuestError::Busy(detail) => {
            Error::Exhausted { detail, retry_after: Duration::from_secs(1) }
        }
        GuestError::PortClosed => {
            Error::unavailable(format!("nothing listens on {what} {id} in the sandbox"))
        }
        GuestError::Unreachable(source) => match life.end_after_loss().await {
            Some(reason) => ended(reason),
            None => {
                tracing::warn!(error = format!("{source:#}"), "a guest cannot be reached");
                Error::unavailable("the sandbox does not answer")
            }
        },
        GuestError::TimedOut => Error::unavailable("the sandbox does not answer in time"),
        GuestError::Body(source) => Error::invalid("body", format!("could not be read: {source}")),
        other @ (GuestError::Failed(_) | GuestError::Protocol(_)) => {
            Error::Internal(anyhow::Error::new(other).context("speak to the guest"))
        }
    }
}

/// A call whose sandbox died under it.
pub(crate) fn ended(reason: EndReason) -> Error {
    let reason = serde_json::to_value(reason).unwrap_or_default();
    let reason = reason.as_str().unwrap_or("unknown").to_owned();
    Error::wrong_state(format!("the sandbox ended meanwhile: {reason}"))
}
