//! Reads: on connections of their own, so that they never wait for a flush.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use jiff::Timestamp;
use model::{Name, OwnerId, Result, SandboxId, SandboxRef};
use tokio::sync::Semaphore;

use crate::db::postgres::{Postgres, Session};
use crate::db::{Db, Row};
use crate::{EventId, Shared, Store, StoredEvent, Transition, schema};

/// Reads at once, each with a connection.
const READS_MAX: usize = 16;
/// Connections kept for the next read.
const IDLE_MAX: usize = 4;

pub(crate) struct Readers {
    source: Source,
    idle: Mutex<Vec<Reader>>,
    turns: Semaphore,
}

/// Where connections come from.
pub(crate) enum Source {
    Sqlite(PathBuf),
    Postgres(Arc<Postgres>),
}

enum Reader {
    Sqlite(rusqlite::Connection),
    Postgres(Session),
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
    /// Until when its use is counted.
    pub counted_until: Timestamp,
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
            db.all("SELECT owner, name, sandbox, ready FROM names", &[], |row| {
                Ok(NameClaim {
                    owner: row.parsed(0)?,
                    name: row.parsed(1)?,
                    sandbox: row.parsed(2)?,
                    ready: row.flag(3)?,
                })
            })
        })
        .await
    }

    /// The legs that have ended, by sandbox and incarnation, of those of which this transition was told at `since`
    /// or later.
    pub async fn ended_legs_of_told(
        &self,
        transition: Transition,
        since: Timestamp,
    ) -> Result<HashSet<(SandboxId, String)>> {
        self.read(move |db| {
            let sql = "SELECT legs.sandbox, legs.incarnation FROM events
                       JOIN legs ON legs.sandbox = events.sandbox
                       WHERE events.transition = $1 AND events.at >= $2 AND legs.ended_at IS NOT NULL";
            let of = |row: &Row<'_>| Ok((row.parsed(0)?, row.get(1)?));
            Ok(db.all(sql, &[&transition.0, &micros(since)], of)?.into_iter().collect())
        })
        .await
    }

    /// Creates that were not finished when the last server ended.
    pub async fn unfinished_requests(&self) -> Result<Vec<Request>> {
        self.read(|db| {
            let sql = "SELECT owner, sandbox, body_sha256, answer, done FROM requests
                       WHERE done = 0";
            db.all(sql, &[], request)
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
            db.first(
                "SELECT owner, sandbox, body_sha256, answer, done FROM requests
                 WHERE owner = $1 AND idempotency_key = $2 AND expires_at > $3",
                &[&owner.as_str(), &key, &micros(now)],
                request,
            )
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
            db.first(&sql, &[&owner.as_str(), &value], |row| Ok((row.parsed(0)?, row.get(1)?)))
        })
        .await
    }

    pub async fn open_legs(&self) -> Result<Vec<OpenLeg>> {
        self.read(|db| {
            let sql = "SELECT owner, sandbox, incarnation, coalesce(metered_at, started_at)
                       FROM legs WHERE ended_at IS NULL";
            db.all(sql, &[], |row| {
                Ok(OpenLeg {
                    owner: row.parsed(0)?,
                    sandbox: row.parsed(1)?,
                    incarnation: row.get(2)?,
                    counted_until: timestamp(row.get(3)?)?,
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
        self.read(move |db| db.at_one_moment(|| backlog(db, &owner, after, i64::from(limit)))).await
    }

    /// Runs `work` on a reading connection, off the async threads.
    pub(crate) async fn read<T, W>(&self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&Db<'_>) -> Result<T> + Send + 'static,
    {
        self.read_from(|shared| &shared.readers, work).await
    }

    /// The same of the log of sessions.
    pub(crate) async fn read_log<T, W>(&self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&Db<'_>) -> Result<T> + Send + 'static,
    {
        self.read_from(|shared| &shared.log.readers, work).await
    }

    async fn read_from<T, W>(&self, which: fn(&Shared) -> &Readers, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&Db<'_>) -> Result<T> + Send + 'static,
    {
        let store = self.clone();
        let turn = which(&self.0).turns.acquire().await.context("wait for a turn to read")?;
        let answer = tokio::task::spawn_blocking(move || which(&store.0).with(work)).await;
        drop(turn);
        answer.context("read from the store")?
    }
}

impl Readers {
    pub(crate) fn new(source: Source) -> Self {
        Self { source, idle: Mutex::new(Vec::new()), turns: Semaphore::new(READS_MAX) }
    }

    fn with<T>(&self, work: impl FnOnce(&Db<'_>) -> Result<T>) -> Result<T> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let reader = match idle.filter(Reader::is_alive) {
            Some(reader) => reader,
            None => self.source.connect()?,
        };
        let answer = work(&reader.db());
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && reader.is_alive() {
            idle.push(reader);
        }
        answer
    }
}

impl Source {
    fn connect(&self) -> Result<Reader> {
        Ok(match self {
            Self::Sqlite(path) => Reader::Sqlite(schema::connect(path)?),
            Self::Postgres(postgres) => Reader::Postgres(postgres.connect()?),
        })
    }
}

impl Reader {
    fn db(&self) -> Db<'_> {
        match self {
            Self::Sqlite(connection) => Db::Sqlite(connection),
            Self::Postgres(session) => Db::Postgres(session),
        }
    }

    fn is_alive(&self) -> bool {
        match self {
            Self::Sqlite(_) => true,
            Self::Postgres(session) => session.is_alive(),
        }
    }
}

fn backlog(db: &Db<'_>, owner: &OwnerId, after: Option<EventId>, limit: i64) -> Result<Backlog> {
    let ends = "SELECT min(id), max(id) FROM events";
    let ends = db.first(ends, &[], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (oldest, newest): (Option<i64>, Option<i64>) = ends.unwrap_or_default();
    let mark = "SELECT value FROM marks WHERE name = 'events'";
    let mark = db.first(mark, &[], |row| row.get(0))?;
    let newest = newest.or(mark).unwrap_or(0);
    let Some(EventId(after)) = after else {
        return Ok(Backlog { events: Vec::new(), lost: false, newest: EventId(newest) });
    };
    let lost = after > newest || after < oldest.map_or(newest, |id| id - 1);
    let from = if after > newest { newest } else { after };
    let sql = "SELECT id, body FROM events WHERE owner = $1 AND id > $2 ORDER BY id LIMIT $3";
    let events = db.all(sql, &[&owner.as_str(), &from, &limit], stored_event)?;
    Ok(Backlog { events, lost, newest: EventId(newest) })
}

pub(crate) fn micros(at: Timestamp) -> i64 {
    at.as_microsecond()
}

pub(crate) fn timestamp(micros: i64) -> Result<Timestamp> {
    Ok(Timestamp::from_microsecond(micros).context("read a time")?)
}

fn request(row: &Row<'_>) -> Result<Request> {
    Ok(Request {
        owner: row.parsed(0)?,
        sandbox: row.parsed(1)?,
        body_sha256: row.digest(2)?,
        answer: row.get(3)?,
        done: row.flag(4)?,
    })
}

fn stored_event(row: &Row<'_>) -> Result<StoredEvent> {
    let body: String = row.get(1)?;
    let event = serde_json::from_str(&body).context("understand an event")?;
    Ok(StoredEvent { id: EventId(row.get(0)?), event })
}
