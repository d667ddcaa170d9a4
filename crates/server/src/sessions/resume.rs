//! Going on with a session in a fresh sandbox, once however many ask: one of them claims it in the store
//! and does it, the rest wait and get the same answer.
//!
//! ```text
//!  claim ─► bundles, quota ─► the old sandbox goes, its workspace is saved ─► the next life begins ─► launch ─► settle
//!    └── taken: wait, look again                                                     fails ─► failed, settle
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context;
use engine::{Caller, Sandbox};
use jiff::{SignedDuration, Timestamp};
use model::{Error, OwnerId, SandboxId, SandboxRef, SessionId, SessionStatus};
use store::{Resuming, SessionRecord};
use tokio::time::{Duration, Instant, sleep};
use uuid::Uuid;

use super::create::{self, Values};
use super::daemon::Past;
use super::end::gone;
use super::{Resumed, Signal, Started};
use crate::app::App;

/// Asking again within this gets the same answer (000).
const SAME_FOR: SignedDuration = SignedDuration::from_secs(30);
/// A claim of somebody who is gone is believed no longer.
const CLAIM_FOR: SignedDuration = SignedDuration::from_secs(300);
/// Between two looks at what somebody else does.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(240);

/// Why a session is not resumed.
#[derive(Debug)]
pub(crate) enum ResumeError {
    /// 403, audited as `cross_tenant_resume_denied` with the owner.
    OtherOwner(OwnerId),
    /// 502 `secret_bundle_not_found_at_resume`.
    NoBundle(String),
    /// `NotFound` is 404, audited.
    Other(Error),
}

impl From<Error> for ResumeError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

pub(super) async fn resume(
    app: &App,
    caller: &Caller,
    id: SessionId,
    ttl_seconds: u64,
) -> Result<Resumed, ResumeError> {
    let none = || Error::NotFound { what: "session", id: id.to_string() };
    let record = app.store.session(id).await?.ok_or_else(none)?;
    if record.owner != caller.owner {
        return Err(ResumeError::OtherOwner(record.owner));
    }
    let (claim, until) = (Uuid::now_v7().to_string(), Instant::now() + WAIT_MAX);
    loop {
        let now = Timestamp::now();
        let asked = (claim.clone(), now + CLAIM_FOR);
        match app.store.claim_session(id, asked, (now, now - SAME_FOR)).await? {
            Resuming::Done(record) => return Ok(resumed(record)),
            Resuming::Claimed(record) => {
                let (app, caller) = (Arc::clone(app), caller.clone());
                // It is finished, one way or the other, also if the caller goes away.
                let done = app
                    .clone()
                    .tasks
                    .spawn(async move { go_on(&app, &caller, (record, claim), ttl_seconds).await });
                return done.await.context("resume a session").map_err(Error::from)?;
            }
            Resuming::Busy if Instant::now() > until => {
                return Err(Error::unavailable("the session is being resumed; try again").into());
            }
            Resuming::Busy => sleep(LOOK_EVERY).await,
        }
    }
}

/// For who has the claim, which is given back.
async fn go_on(
    app: &App,
    caller: &Caller,
    (record, claim): (SessionRecord, String),
    ttl_seconds: u64,
) -> Result<Resumed, ResumeError> {
    let id = record.id;
    let launched = match allowed(app, caller, &record).await {
        Ok(values) => begin(app, caller, (record, &claim), (values, ttl_seconds)).await,
        Err(error) => Err(error),
    };
    let at = launched.is_ok().then(Timestamp::now);
    app.store.settle_claim(id, claim, at).await?;
    launched?;
    let none = || Error::NotFound { what: "session", id: id.to_string() };
    Ok(resumed(app.store.session(id).await?.ok_or_else(none)?))
}

/// What refuses it while it is as it was: without credit, or a place for its sandbox, it would end for
/// nothing.
async fn allowed(
    app: &App,
    caller: &Caller,
    record: &SessionRecord,
) -> Result<Values, ResumeError> {
    let values = match create::values(app, caller, &record.spec).await {
        Ok(values) => values,
        Err(Error::NotFound { what: "secret bundle", id }) => {
            return Err(ResumeError::NoBundle(id));
        }
        Err(error) => return Err(error.into()),
    };
    let wanted = create::sandbox(app, record, &values)?;
    app.engine.require_place(caller, &wanted, &left_of(app, record)).await?;
    Ok(values)
}

async fn begin(
    app: &App,
    caller: &Caller,
    (record, claim): (SessionRecord, &str),
    (values, ttl_seconds): (Values, u64),
) -> Result<(), ResumeError> {
    if let Some(live) = app.sessions.live(record.id) {
        live.stop.cancel();
        live.over.cancelled().await;
        live.signal(Signal::Close { code: 1001, reason: "sandbox destroyed" }).await;
    }
    for sandbox in left_of(app, &record) {
        gone(app.engine.delete(caller, &SandboxRef::Id(sandbox)).await)?;
    }
    let past = Past::Log { native_session_id: record.native_session_id.clone() };
    let life = (record.life + 1, create::expiry(ttl_seconds)?);
    let record = app.store.begin_life(record.id, claim.to_owned(), life).await?;
    let launched = create::launch(app, caller, (&record, values), past).await;
    if let Err(error) = launched {
        let ended = (SessionStatus::Failed, "create_failed".to_owned());
        app.store.end_session(record.id, record.life, ended).await?;
        return Err(error.into());
    }
    Ok(())
}

/// The sandboxes of the lives before. Also what was cut off before it was written down, and may be on its way
/// out: a delete keeps the files, and must not do so after the next life has changed them.
fn left_of(app: &App, record: &SessionRecord) -> BTreeSet<SandboxId> {
    let its = |made: &Sandbox| made.spec.agent.as_ref()?.session.filter(|id| *id == record.id);
    let made = app.engine.of_sessions().into_iter().filter(|made| its(made).is_some());
    made.map(|made| made.spec.id).chain(record.sandbox).collect()
}

fn resumed(record: SessionRecord) -> Resumed {
    let previous_status = record.previous_status.map_or("unknown", SessionStatus::as_str);
    Resumed { previous_status: previous_status.to_owned(), started: Started { record } }
}
