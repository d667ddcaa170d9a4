//! A new session that goes on from a moment of another one (ruling 37): its log up to there, and its
//! files as they are now.

use std::sync::Arc;

use ::events::UniversalEvent;
use anyhow::Context;
use engine::Caller;
use futures_util::StreamExt as _;
use jiff::Timestamp;
use model::{Error, Fork, Result, SessionId};
use store::{Logged, SessionRecord};

use super::create::{self, Values};
use super::daemon::Past;
use super::{Started, events};
use crate::app::App;

/// Of one read of the log.
const PAGE: (u32, u64) = (512, 1 << 20);

/// And as of when its files are.
pub(super) async fn fork(
    app: &App,
    caller: &Caller,
    parent: SessionRecord,
    (at, ttl_seconds): (Option<u64>, u64),
) -> Result<(Started, Timestamp)> {
    let head = app.store.session_log_end(parent.id).await?.sequence;
    let at = at.unwrap_or(head);
    if at > head {
        return Err(Error::invalid("at", format!("the last event is {head}")));
    }
    let mut spec = parent.spec.clone();
    spec.forked_from = Some(Fork { session: parent.id, at });
    let values = create::values(app, caller, &spec).await?;
    let record = create::new_record(caller, spec, ttl_seconds)?;
    let (app, caller) = (Arc::clone(app), caller.clone());
    let made = app.clone().tasks.spawn(async move {
        let made = make(&app, &caller, (&parent, &record), (values, at)).await;
        if made.is_err() {
            undo(&app, &record).await?;
        }
        made
    });
    made.await.context("fork a session")?
}

async fn make(
    app: &App,
    caller: &Caller,
    (parent, record): (&SessionRecord, &SessionRecord),
    (values, at): (Values, u64),
) -> Result<(Started, Timestamp)> {
    app.store.create_session(record.clone()).await?;
    copy_log(app, parent.id, (record.id, at)).await?;
    // What was written before is in the copy; what is written meanwhile may be.
    let as_of = Timestamp::now();
    if let Some(live) = app.sessions.live(parent.id) {
        app.engine.save_workspace(live.sandbox).await?;
    }
    copy_files(app, parent, record).await?;
    // The agent's own memory has what came after too, so it is told what was said until then.
    let past = Past::Log { native_session_id: None };
    let record = create::launch(app, caller, (record, values), past).await?;
    Ok((Started { record }, as_of))
}

async fn undo(app: &App, record: &SessionRecord) -> Result<()> {
    app.store.delete_session(record.id).await?;
    app.store.delete_session_log(record.id).await?;
    super::remove_files(app, record).await
}

/// The same events with the same numbers, of the new session. They are of no life of it.
async fn copy_log(app: &App, from: SessionId, (to, at): (SessionId, u64)) -> Result<()> {
    let mut after = 0;
    while after < at {
        let rows = app.store.session_log(from, after, PAGE).await?;
        let rows: Vec<_> = rows.into_iter().filter(|row| row.sequence <= at).collect();
        let Some(last) = rows.last() else { break };
        let next = last.sequence;
        let copy = |row: store::LogRow| -> Result<Logged> {
            let event: UniversalEvent =
                serde_json::from_str(&row.event).context("read an event")?;
            Ok(Logged { cursor: 0, event: events::write(event, to, row.sequence).into() })
        };
        let events = rows.into_iter().map(copy).collect::<Result<_>>()?;
        app.store.append_to_session(to, (0, after), events).await?;
        after = next;
    }
    Ok(())
}

async fn copy_files(app: &App, from: &SessionRecord, to: &SessionRecord) -> Result<()> {
    let owner = &from.owner;
    let (here, there) = (from.spec.workspace(&from.id)?, to.spec.workspace(&to.id)?);
    let mut files = std::pin::pin!(app.blobs.all(owner, &here));
    while let Some(file) = files.next().await {
        let key = file?.key;
        // One that is gone meanwhile is as if it had gone before.
        let Some((_, bytes)) = app.blobs.get(owner, &here, &key).await? else { continue };
        app.blobs.put(owner, &there, &key, bytes).await?;
    }
    if let Some(note) = app.blobs.note(owner, &here).await? {
        app.blobs.set_note(owner, &there, note).await?;
    }
    Ok(())
}
