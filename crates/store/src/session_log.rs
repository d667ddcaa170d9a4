//! What sessions said, event by event: the one place from which clients are given it. Beside the rest of
//! the store, with a thread that writes and connections that read of its own: in `SQLite` a file of its
//! own that is flushed less often, in `PostgreSQL` a connection that waits for no other writer.
//!
//! Who appends says after which event. Of two who would, one is refused: nothing is there twice.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use model::{Error, Result, SessionId};
use tokio::sync::broadcast;

use crate::db::postgres::{Order, Postgres};
use crate::db::{Db, Row, Value, bounded};
use crate::read::{Readers, Source};
use crate::writer::{Pending, Target, Writer};
use crate::{Store, schema};

pub(crate) const FILE: &str = "sessions.db";

/// Rows of one statement: on a database elsewhere each is a round trip.
const ROWS_AT_ONCE: usize = 32;
/// Rows that one statement deletes, so that others who write do not wait long.
const DELETED_AT_ONCE: i64 = 5000;

/// The rows of a full statement, and of one.
static INSERT_MANY: LazyLock<String> = LazyLock::new(|| insert(ROWS_AT_ONCE));
static INSERT_ONE: LazyLock<String> = LazyLock::new(|| insert(1));

pub(crate) struct Log {
    writer: Writer,
    pub(crate) readers: Readers,
}

/// An event that is to be appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    /// How far the daemon's stream is read with this.
    pub cursor: u64,
    /// As clients get it.
    pub event: Arc<str>,
}

/// One that was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRow {
    pub sequence: u64,
    pub event: Arc<str>,
}

/// Where a log ends; all 0 for one without events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogEnd {
    pub sequence: u64,
    /// Of the last event, as its cursor is.
    pub life: u64,
    pub cursor: u64,
}

impl Log {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        schema::make(path)?;
        let mut connection = schema::connect_log(path)?;
        schema::migrate_log(&mut connection)?;
        Self::over(Target::Sqlite(connection), Source::Sqlite(path.to_owned()))
    }

    /// The tables are there already.
    pub(crate) fn in_postgres(postgres: &Arc<Postgres>) -> Result<Self> {
        let target = Target::Postgres(Arc::clone(postgres), None, Order::Beside);
        Self::over(target, Source::Postgres(Arc::clone(postgres)))
    }

    fn over(target: Target, source: Source) -> Result<Self> {
        // Nothing of it is told to listeners of events.
        let writer = Writer::spawn(target, broadcast::Sender::new(1))?;
        Ok(Self { writer, readers: Readers::new(source) })
    }
}

impl Store {
    /// Appends behind the event `after`; `Conflict` if that is not the last one.
    pub fn append_to_session(
        &self,
        session: SessionId,
        (life, after): (u64, u64),
        events: Vec<Logged>,
    ) -> Pending<()> {
        self.0.log.writer.submit(move |batch| {
            let id = session.to_string();
            let end = end(&batch.db, &id)?;
            if end.sequence != after {
                let detail = format!("the log of {id} ends with {}, not {after}", end.sequence);
                return Err(Error::wrong_state(detail));
            }
            append(&batch.db, &id, (bounded(life), bounded(after)), &events)
        })
    }

    pub async fn session_log_end(&self, session: SessionId) -> Result<LogEnd> {
        self.read_log(move |db| end(db, &session.to_string())).await
    }

    /// Events after that one, oldest first: at most `count`, and no more once they are `bytes` long.
    pub async fn session_log(
        &self,
        session: SessionId,
        after: u64,
        (count, bytes): (u32, u64),
    ) -> Result<Vec<LogRow>> {
        let (after, bytes) = (bounded(after), bounded(bytes));
        self.read_log(move |db| {
            let sql = "SELECT sequence, event FROM (
                   SELECT sequence, event, length(event) AS here,
                     sum(length(event)) OVER (ORDER BY sequence) AS all_before
                   FROM (SELECT sequence, event FROM session_events
                     WHERE session = $1 AND sequence > $2 ORDER BY sequence LIMIT $3) AS next
                 ) AS page WHERE all_before - here <= $4 ORDER BY sequence";
            let values: [&dyn Value; 4] = [&session.to_string(), &after, &i64::from(count), &bytes];
            db.all(sql, &values, row)
        })
        .await
    }

    /// Events before that one, newest first: at most `count`, and no more once they are `bytes` long.
    pub async fn session_log_back(
        &self,
        session: SessionId,
        before: u64,
        (count, bytes): (u32, u64),
    ) -> Result<Vec<LogRow>> {
        let (before, bytes) = (bounded(before), bounded(bytes));
        self.read_log(move |db| {
            let sql = "SELECT sequence, event FROM (
                   SELECT sequence, event, length(event) AS here,
                     sum(length(event)) OVER (ORDER BY sequence DESC) AS all_after
                   FROM (SELECT sequence, event FROM session_events
                     WHERE session = $1 AND sequence < $2 ORDER BY sequence DESC LIMIT $3) AS next
                 ) AS page WHERE all_after - here <= $4 ORDER BY sequence DESC";
            let values: [&dyn Value; 4] =
                [&session.to_string(), &before, &i64::from(count), &bytes];
            db.all(sql, &values, row)
        })
        .await
    }

    /// Removes all of it, a piece at a time.
    pub async fn delete_session_log(&self, session: SessionId) -> Result<()> {
        loop {
            let deleted = self.0.log.writer.submit(move |batch| {
                let sql = "DELETE FROM session_events WHERE session = $1 AND sequence < (
                       SELECT min(sequence) FROM session_events WHERE session = $1) + $2";
                batch.db.execute(sql, &[&session.to_string(), &DELETED_AT_ONCE])
            });
            if deleted.await? == 0 {
                return Ok(());
            }
        }
    }
}

fn row(row: &Row<'_>) -> Result<LogRow> {
    let event: String = row.get(1)?;
    Ok(LogRow { sequence: row.unsigned(0)?, event: event.into() })
}

fn end(db: &Db<'_>, session: &str) -> Result<LogEnd> {
    let sql = "SELECT sequence, life, cursor FROM session_events WHERE session = $1
               ORDER BY sequence DESC LIMIT 1";
    let read = |row: &Row<'_>| {
        let (sequence, life) = (row.unsigned(0)?, row.unsigned(1)?);
        Ok(LogEnd { sequence, life, cursor: row.unsigned(2)? })
    };
    Ok(db.first(sql, &[&session], read)?.unwrap_or_default())
}

fn append(db: &Db<'_>, session: &str, (life, after): (i64, i64), events: &[Logged]) -> Result<()> {
    let row = |(sequence, event): (i64, &Logged)| {
        (sequence, bounded(event.cursor), event.event.as_ref().to_owned())
    };
    let rows: Vec<(i64, i64, String)> = (after + 1..).zip(events).map(row).collect();
    let (many, rest) = rows.as_chunks::<ROWS_AT_ONCE>();
    for rows in many {
        insert_rows(db, &INSERT_MANY, (session, life), rows)?;
    }
    for row in rest {
        insert_rows(db, &INSERT_ONE, (session, life), std::slice::from_ref(row))?;
    }
    Ok(())
}

fn insert_rows(
    db: &Db<'_>,
    sql: &str,
    (session, life): (&str, i64),
    rows: &[(i64, i64, String)],
) -> Result<()> {
    let mut values: Vec<&dyn Value> = vec![&session, &life];
    for (sequence, cursor, event) in rows {
        values.extend([sequence as &dyn Value, cursor, event]);
    }
    db.execute(sql, &values).map(drop)
}

/// The session and the life are the same in every row.
fn insert(rows: usize) -> String {
    let mut sql =
        String::from("INSERT INTO session_events (session, life, sequence, cursor, event) VALUES ");
    for row in 0..rows {
        let comma = if row == 0 { "" } else { ", " };
        let first = 3 + row * 3;
        sql += &format!("{comma}($1, $2, ${first}, ${}, ${})", first + 1, first + 2);
    }
    sql
}
