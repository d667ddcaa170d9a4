//! New values for sessions that run: the order of their sandbox first, which the model relay reads at every
//! call, then the agent, then the client.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use api::frame::{ControlFrame, SystemFrame};
use engine::Caller;
use model::{BundleName, Result, SandboxId, SessionStatus};
use store::SessionRecord;

use super::create::{self, Values};
use super::{LIST_MAX, Signal, daemon};
use crate::app::App;
use crate::order::Order;

/// Every session of the caller that runs and names the bundle. What fails for one is tried for the rest.
pub(super) async fn rotated(app: &App, caller: &Caller, bundle: &BundleName) {
    let mut before = None;
    loop {
        let sessions = match app.store.sessions(&caller.owner, before, LIST_MAX).await {
            Ok(sessions) => sessions,
            Err(error) => {
                let error = error.to_string();
                return tracing::warn!(error, "could not tell sessions of new secrets");
            }
        };
        let Some(last) = sessions.last() else { return };
        before = Some(last.id);
        for record in sessions {
            let runs = record.status == SessionStatus::Running;
            if !runs || !super::live::names_bundle(&record.spec, bundle) {
                continue;
            }
            if let Err(error) = tell(app, caller, &record, bundle).await {
                let error = error.to_string();
                tracing::warn!(session.id = %record.id, error, "a session has its old secrets");
            }
        }
    }
}

async fn tell(
    app: &App,
    caller: &Caller,
    record: &SessionRecord,
    bundle: &BundleName,
) -> Result<()> {
    let Some(sandbox) = record.sandbox else { return Ok(()) };
    let values = create::values(app, caller, &record.spec).await?;
    let mut keys = replace(app, sandbox, &values).await?;
    if keys.is_empty() {
        keys = app.vault.get(&caller.owner, bundle).await?.key_names.into_iter().collect();
    }
    let Some(live) = app.sessions.live(record.id).filter(|live| live.sandbox == sandbox) else {
        // Who follows it next gives it what the order says.
        return Ok(());
    };
    let app = Arc::clone(app);
    app.clone().tasks.spawn(async move {
        if let Err(error) = daemon::change_secrets(&app, &live, &values.others).await {
            let error = error.to_string();
            tracing::warn!(session.id = %live.id, error, "an agent was not told of its secrets");
        }
        let keys = keys.into_iter().collect();
        let frame = ControlFrame::System(SystemFrame::ConfigUpdate { keys });
        live.signal(Signal::Control(frame.text())).await;
    });
    Ok(())
}

/// The names of what is another now.
async fn replace(app: &App, sandbox: SandboxId, values: &Values) -> Result<BTreeSet<String>> {
    let changed = Mutex::new(BTreeSet::new());
    let change = |order: &mut Order| {
        let mut names = BTreeSet::new();
        if order.model.key != values.key {
            names.insert(create::KEY.to_owned());
        }
        let same = |name: &String| order.env.get(name) == values.others.get(name);
        let all = order.env.keys().chain(values.others.keys());
        names.extend(all.filter(|name| !same(name)).cloned());
        order.model.key = values.key.clone();
        order.env = values.others.clone();
        *changed.lock().unwrap_or_else(PoisonError::into_inner) = names;
    };
    Order::change(&app.vault, sandbox, change).await?;
    Ok(changed.into_inner().unwrap_or_else(PoisonError::into_inner))
}
