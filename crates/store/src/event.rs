//! Events as they are kept: 24 hours, in the order they were committed.

use anyhow::Context;
use model::{Event, Result};
use rusqlite::{Connection, params};

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
pub(crate) fn insert(
    connection: &Connection,
    event: Event,
    transition: &str,
) -> Result<Option<StoredEvent>> {
    let body = serde_json::to_string(&event).context("write an event")?;
    let inserted = connection
        .prepare_cached(
            "INSERT INTO events (owner, sandbox, transition, body, at) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (sandbox, transition) DO NOTHING",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                event.owner.as_str(),
                event.sandbox.to_string(),
                transition,
                body,
                micros(event.at)
            ])
        })
        .context("write an event")?;
    let id = EventId(connection.last_insert_rowid());
    Ok((inserted == 1).then_some(StoredEvent { id, event }))
}
