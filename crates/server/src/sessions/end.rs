//! How a life of a session ends: what its log says of it, what its record says, and that its sandbox goes.
//! Done again after a crash it adds nothing.

use std::sync::Arc;

use ::events::SessionEndReason;
use model::{EndReason, Error, Result, SandboxRef, SessionStatus};
use serde_json::Value;
use store::SessionRecord;
use tokio_util::sync::CancellationToken;

use super::events::{self, Next};
use super::live::{Appender, caller_of};
use super::{Live, Signal};
use crate::app::App;

/// Why a life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Its sandbox, or what ran in it.
    Sandbox(EndReason),
    /// The sandbox runs, and the daemon in it does not answer any more.
    Daemon,
    /// The agent said so itself.
    Agent(SessionEndReason),
}

/// What there is to say of an end.
struct Outcome {
    status: SessionStatus,
    reason: String,
    message: &'static str,
    told: SessionEndReason,
}

/// Of a session that ran here.
pub(super) async fn of_live(app: &App, live: &Arc<Live>, mut appender: Appender, end: End) {
    let outcome = outcome(end);
    if let End::Sandbox(_) | End::Daemon = end
        && write(&mut appender, &outcome, &live.stop).await.is_err()
    {
        // A later life has begun.
        return;
    }
    drop(appender);
    let ended = (outcome.status, outcome.reason.clone());
    if let Err(error) = app.store.end_session(live.id, live.life, ended).await {
        let error = error.to_string();
        tracing::warn!(session.id = %live.id, error, "could not write down the end of a session");
    }
    tracing::info!(session.id = %live.id, reason = outcome.reason, "session {} ended", live.id);
    app.sessions.forget(live);
    let sandbox = SandboxRef::Id(live.sandbox);
    if let Err(error) = gone(app.engine.delete(&live.caller, &sandbox).await) {
        let error = error.to_string();
        tracing::warn!(session.id = %live.id, error, "could not destroy the sandbox of a session");
    }
    live.signal(Signal::Close { code: 1001, reason: "sandbox destroyed" }).await;
}

/// Of one that was found without a sandbox that runs.
pub(super) async fn of_record(app: &App, record: &SessionRecord, reason: EndReason) -> Result<()> {
    let outcome = outcome(End::Sandbox(reason));
    let mut appender = Appender::new(&app.store, record).await?;
    let last = appender.last().await?;
    let last: Option<Value> = last.and_then(|text| serde_json::from_str(&text).ok());
    let told = last.is_some_and(|last| last["type"] == "session.ended");
    if !told && write(&mut appender, &outcome, &CancellationToken::new()).await.is_err() {
        return Ok(());
    }
    let ended = (outcome.status, outcome.reason);
    app.store.end_session(record.id, record.life, ended).await?;
    if let Some(sandbox) = record.sandbox {
        let caller = caller_of(&record.owner);
        gone(app.engine.delete(&caller, &SandboxRef::Id(sandbox)).await)?;
    }
    Ok(())
}

/// What is gone already need not go.
pub(super) fn gone<T>(deleted: Result<T>) -> Result<()> {
    match deleted {
        Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn write(
    appender: &mut Appender,
    outcome: &Outcome,
    stop: &CancellationToken,
) -> std::result::Result<(), ()> {
    loop {
        let cursor = appender.cursor();
        let events =
            [events::failed(&outcome.reason, outcome.message), events::ended(outcome.told)];
        let events = events.map(|event| Next { cursor, event }).into();
        if appender.append(events, stop).await.is_ok() {
            return Ok(());
        }
        let read = appender.read_again().await;
        if read.is_err() || appender.is_outlived() || stop.is_cancelled() {
            return Err(());
        }
    }
}

fn outcome(end: End) -> Outcome {
    use SessionEndReason::{Completed, Error as Failed, Terminated};
    let reason = match end {
        End::Agent(reason) => {
            let (status, text) = match reason {
                Completed => (SessionStatus::Completed, "agent_completed"),
                Failed => (SessionStatus::Failed, "agent_failed"),
                Terminated => (SessionStatus::Interrupted, "agent_terminated"),
            };
            return Outcome { status, reason: text.into(), message: "", told: reason };
        }
        End::Daemon => {
            return Outcome {
                status: SessionStatus::Failed,
                reason: "daemon_lost".into(),
                message: "the agent daemon in the sandbox does not answer any more",
                told: SessionEndReason::Error,
            };
        }
        End::Sandbox(reason) => reason,
    };
    let (status, told, message) = match reason {
        EndReason::Idle => {
            (SessionStatus::Completed, Completed, "nobody used the session; resume it to go on")
        }
        EndReason::Lifetime | EndReason::Deadline => {
            (SessionStatus::Completed, Completed, "the session's time is over; resume it to go on")
        }
        EndReason::UserRequest => {
            (SessionStatus::Interrupted, Terminated, "the sandbox was ended by its owner")
        }
        EndReason::AdminAction => {
            (SessionStatus::Interrupted, Terminated, "the sandbox was ended by the operator")
        }
        EndReason::CreditsExhausted => {
            (SessionStatus::Interrupted, Terminated, "there is no credit left")
        }
        EndReason::Oom => (SessionStatus::Failed, Failed, "the sandbox ran out of memory"),
        EndReason::Exited => (SessionStatus::Failed, Failed, "the sandbox died"),
        EndReason::HostLost => {
            (SessionStatus::Interrupted, Failed, "the machine of the sandbox was lost")
        }
        EndReason::CreateFailed => (SessionStatus::Failed, Failed, "the sandbox could not be made"),
        EndReason::Unknown => {
            (SessionStatus::Interrupted, Failed, "the sandbox is gone; nobody knows why")
        }
    };
    let reason = serde_json::to_value(reason).unwrap_or_default();
    let reason = reason.as_str().unwrap_or("unknown").to_owned();
    Outcome { status, reason, message, told }
}
