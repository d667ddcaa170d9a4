//! Reads: on connections of their own, so that they never wait for a flush.

use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::Context;
use jiff::Timestamp;
use model::{Name, OwnerId, Result, SandboxId, SandboxRef};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::{EventId, Store, StoredEvent, schema};

/// Connections kept for the next read.
const IDLE_MAX: usize = 4;

pub(crate) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

/// A name that is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameClaim {
    pub owner: OwnerId,
    pub name: Name,
    pub sandbox: SandboxId,
    /// The create that claimed it was finished.
    pub ready: bool,
}

/// A create that is remembered under its idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub owner: OwnerId,
    pub sandbox: SandboxId,
    pub body_sha256: [u8; 32],
    pub answer: String,
    pub done: bool,
}

/// Compute that was not yet seen to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenLeg {
    pub owner: OwnerId,
    pub sandbox: SandboxId,
    pub incarnation: String,
}

/// Kept events after an id.
#[derive(Debug, Clone, PartialEq)]
pub struct Backlog {
    pub events: Vec<StoredEvent>,
    /// The asked id is older than what is kept, or not one of ours.
    pub lost: bool,
    /// The newest event of all owners when this was read.
    pub newest: EventId,
}

impl Store {
    /// Every claimed name.
    pub async fn names(&self) -> Result<Vec<NameClaim>> {
        self.read(|db| {
            all(db, "SELECT owner, name, sandbox, ready FROM names", params![], |row| {
                Ok(NameClaim {
                    owner: parsed(row, 0)?,
                    name: parsed(row, 1)?,
                    sandbox: parsed(row, 2)?,
                    ready: row.get(3)?,
                })
            })
        })
        .await
    }

    /// Creates that were not finished when the last server ended.
    pub async fn unfinished_requests(&self) -> Result<Vec<Request>> {
        self.read(|db| {
            let sql = "SELECT owner, sandbox, body_sha256, answer, done FROM requests
                       WHERE done = 0";
            all(db, sql, params![], request)
        })
        .await
    }

    /// What was answered to the create with this key, if it is remembered at `now`.
    pub async fn request(
        &self,
        owner: &OwnerId,
        key: &str,
        now: Timestamp,
    ) -> Result<Option<Request>> {
        let (owner, key) = (owner.clone(), key.to_owned());
        self.read(move |db| {
            db.prepare_cached(
                "SELECT owner, sandbox, body_sha256, answer, done FROM requests
                 WHERE owner = $1 AND idempotency_key = $2 AND expires_at > $3",
            )?
            .query_row(params![owner.as_str(), key, micros(now)], request)
            .optional()
        })
        .await
    }

    /// A sandbox of the owner's that was answered and whose compute is not known to have ended, with
    /// that incarnation. What really runs, only the host knows.
    pub async fn running(
        &self,
        owner: &OwnerId,
        sandbox: &SandboxRef,
    ) -> Result<Option<(SandboxId, String)>> {
        let (by, value) = match sandbox {
            SandboxRef::Id(id) => ("names.sandbox = $2", id.to_string()),
            SandboxRef::Name(name) => ("names.name = $2", name.to_string()),
        };
        let owner = owner.clone();
        self.read(move |db| {
            let sql = format!(
                "SELECT names.sandbox, legs.incarnation FROM names
                 JOIN legs ON legs.sandbox = names.sandbox AND legs.ended_at IS NULL
                 WHERE names.owner = $1 AND {by} AND names.ready = 1
                 ORDER BY legs.started_at DESC LIMIT 1"
            );
            db.prepare_cached(&sql)?
                .query_row(params![owner.as_str(), value], |row| Ok((parsed(row, 0)?, row.get(1)?)))
                .optional()
        })
        .await
    }

    pub async fn open_legs(&self) -> Result<Vec<OpenLeg>> {
        self.read(|db| {
            let sql = "SELECT owner, sandbox, incarnation FROM legs WHERE ended_at IS NULL";
            all(db, sql, params![], |row| {
                Ok(OpenLeg {
                    owner: parsed(row, 0)?,
                    sandbox: parsed(row, 1)?,
                    incarnation: row.get(2)?,
                })
            })
        })
        .await
    }

    /// At most `limit` of an owner's events after `after`, oldest first; none but the position
    /// when `after` is absent.
    pub async fn backlog(
        &self,
        owner: &OwnerId,
        after: Option<EventId>,
        limit: u32,
    ) -> Result<Backlog> {
        let owner = owner.clone();
        self.read(move |db| {
            // One transaction, so that the three answers are of one moment.
            let db = db.unchecked_transaction()?;
            let newest = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events'";
            let newest: i64 = db.query_row(newest, [], |row| row.get(0))?;
            let Some(EventId(after)) = after else {
                return Ok(Backlog { events: Vec::new(), lost: false, newest: EventId(newest) });
            };
            let oldest = "SELECT min(id) FROM events";
            let oldest: Option<i64> = db.query_row(oldest, [], |row| row.get(0))?;
            let lost = after > newest || after < oldest.map_or(newest, |id| id - 1);
            let from = if after > newest { newest } else { after };
            let sql = "SELECT id, body FROM events WHERE owner = $1 AND id > $2
                       ORDER BY id LIMIT $3";
            let events = all(&db, sql, params![owner.as_str(), from, limit], stored_event)?;
            Ok(Backlog { events, lost, newest: EventId(newest) })
        })
        .await
    }

    /// Runs `work` on a reading connection, off the async threads.
    pub(crate) async fn read<T, W>(&self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let store = self.clone();
        let answer = tokio::task::spawn_blocking(move || store.0.readers.with(work)).await;
        answer.context("read from the store")?
    }
}

impl Readers {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, idle: Mutex::new(Vec::new()) }
    }

    fn with<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        let idle = self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => schema::connect(&self.path)?,
        };
        let answer = work(&connection).context("read from the store");
        let mut idle = self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
        Ok(answer?)
    }
}

pub(crate) fn all<T>(
    db: &Connection,
    sql: &str,
    values: &[&dyn rusqlite::ToSql],
    row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    db.prepare_cached(sql)?.query_map(values, row)?.collect()
}

/// A column of text that one of our own types was written as.
pub(crate) fn parsed<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T: std::str::FromStr<Err = model::Error>,
{
    row.get::<_, String>(column)?.parse().map_err(|error| unreadable(column, error))
}

pub(crate) fn unreadable(
    column: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    let kind = rusqlite::types::Type::Text;
    rusqlite::Error::FromSqlConversionFailure(column, kind, Box::new(error))
}

pub(crate) fn micros(at: Timestamp) -> i64 {
    at.as_microsecond()
}

pub(crate) fn timestamp(micros: i64) -> Result<Timestamp> {
    Ok(Timestamp::from_microsecond(micros).context("read a time")?)
}

fn request(row: &Row<'_>) -> rusqlite::Result<Request> {
    Ok(Request {
        owner: parsed(row, 0)?,
        sandbox: parsed(row, 1)?,
        body_sha256: row.get(2)?,
        answer: row.get(3)?,
        done: row.get(4)?,
    })
}

fn stored_event(row: &Row<'_>) -> rusqlite::Result<StoredEvent> {
    let body: String = row.get(1)?;
    let event = serde_json::from_str(&body).map_err(|error| unreadable(1, error))?;
    Ok(StoredEvent { id: EventId(row.get(0)?), event })
}
