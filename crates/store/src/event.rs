//! Events as they are kept: 24 hours, in the order they were committed.

use anyhow::Context;
use jiff::Timestamp;
use model::{Event, Result};

use crate::db::Db;
use crate::read::micros;

/// Grows with every event of the deployment; what `Last-Event-ID` carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub i64);

#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    pub id: EventId,
    pub event: Event,
}

/// Writes an event unless that transition of that sandbox was told before.
pub(crate) fn insert(db: &Db<'_>, event: Event, transition: &str) -> Result<Option<StoredEvent>> {
    let body = serde_json::to_string(&event).context("write an event")?;
    let id = db.first(
        "INSERT INTO events (owner, sandbox, transition, body, at) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (sandbox, transition) DO NOTHING RETURNING id",
        &[&event.owner.as_str(), &event.sandbox.to_string(), &transition, &body, &micros(event.at)],
        |row| row.get(0).map(EventId),
    )?;
    Ok(id.map(|id| StoredEvent { id, event }))
}

/// Forgets what is older, but not which numbers were given.
pub(crate) fn prune(db: &Db<'_>, before: Timestamp) -> Result<()> {
    let newest = db.first("SELECT max(id) FROM events", &[], |row| row.get::<Option<i64>>(0))?;
    if let Some(newest) = newest.flatten() {
        db.execute(
            "INSERT INTO marks (name, value) VALUES ('events', $1)
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            &[&newest],
        )?;
    }
    db.execute("DELETE FROM events WHERE at < $1", &[&micros(before)]).map(drop)
}
