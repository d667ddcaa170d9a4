//! Sandboxes of sessions that no session has: one that was made when its server died, before it was written down
//! whose it is, and one whose session had ended when its server died. Nobody uses them, and nobody else
//! would remove them before they idle away.
//!
//! They are looked for when a server begins to lead, and after every sweep of the engine, which finds what a pool
//! has that did not answer before.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::Sandbox;
use model::{Result, SandboxRef, SessionId, SessionStatus};
use tokio::sync::watch;

use super::end::gone;
use super::live::caller_of;
use crate::app::App;

/// Sessions whose sandbox is being made: it is theirs, and that is not written down yet.
#[derive(Clone, Default)]
pub(super) struct Launches(Arc<Mutex<Vec<SessionId>>>);

/// One of them, until it is dropped.
pub(super) struct Launch {
    all: Launches,
    session: SessionId,
}

impl Launches {
    pub(super) fn begin(&self, session: SessionId) -> Launch {
        self.lock().push(session);
        Launch { all: self.clone(), session }
    }

    fn has(&self, session: SessionId) -> bool {
        self.lock().contains(&session)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SessionId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(at) = all.iter().position(|one| *one == self.session) {
            all.swap_remove(at);
        }
    }
}

/// What is followed is somebody's, and asked for nowhere: what is left is little.
pub(super) async fn find(app: &App) -> Result<Vec<Sandbox>> {
    let mut orphans = Vec::new();
    // Seen before it is asked which are being launched, and that before the records are read: a launch that
    // is over by then is in its record.
    for made in app.engine.of_sessions() {
        let Some(session) = made.spec.agent.as_ref().and_then(|agent| agent.session) else {
            continue;
        };
        let is_followed =
            app.sessions.live(session).is_some_and(|live| live.sandbox == made.spec.id);
        if is_followed || app.sessions.launches.has(session) {
            continue;
        }
        let record = app.store.session(session).await?;
        let is_its = record.is_some_and(|record| {
            record.status == SessionStatus::Running && record.sandbox == Some(made.spec.id)
        });
        if !is_its {
            orphans.push(made);
        }
    }
    Ok(orphans)
}

/// Removes these, then what every sweep leaves, until the server drains. One at a time; what cannot be removed
/// is tried again.
pub(super) async fn keep_away(app: &App, first: Vec<Sandbox>, mut swept: watch::Receiver<u64>) {
    let mut orphans = first;
    loop {
        remove(app, orphans).await;
        match app.draining.run_until_cancelled(swept.changed()).await {
            Some(Ok(())) => {}
            Some(Err(_)) | None => return,
        }
        orphans = find(app).await.unwrap_or_else(|error| {
            let error = error.to_string();
            tracing::warn!(error, "sandboxes that no session has are looked for later");
            Vec::new()
        });
    }
}

async fn remove(app: &App, orphans: Vec<Sandbox>) {
    for made in orphans {
        let (caller, id) = (caller_of(&made.spec.owner), made.spec.id);
        match gone(app.engine.delete(&caller, &SandboxRef::Id(id)).await) {
            Ok(()) => tracing::info!(sandbox.id = %id, "removed: no session has it"),
            Err(error) => {
                let error = error.to_string();
                tracing::warn!(sandbox.id = %id, error, "no session has it, and it stays");
            }
        }
    }
}
