//! Sandboxes of sessions that no session has: one that was made when its server died, before it was written down
//! whose it is, and one whose session had ended when its server died. Nobody uses them, and nobody else
//! would remove them before they idle away.

use engine::Sandbox;
use model::{Result, SandboxRef, SessionStatus};

use super::end::gone;
use super::live::caller_of;
use crate::app::App;

/// Right only while no session is begun: what is made just now is nobody's yet.
pub(super) async fn find(app: &App) -> Result<Vec<Sandbox>> {
    let mut orphans = Vec::new();
    for made in app.engine.of_sessions() {
        let Some(session) = made.spec.agent.as_ref().and_then(|agent| agent.session) else {
            continue;
        };
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

/// One that cannot be removed now idles away.
pub(super) async fn remove(app: &App, orphans: Vec<Sandbox>) {
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
