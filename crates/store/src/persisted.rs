//! Conversations on their way to a backend of their owner's: an outbox that survives everything but the
//! loss of the database. What comes in is numbered and kept in one transaction, each event of a source
//! once; what the backend has is deleted.
//!
//! ```text
//!  append ─► 1 2 3 4 5 6 7 8 9        appended = 9
//!                │     └─ sending: the batch on its way ends with 6, and is the same when it is repeated
//!                └─ delivered: the backend has 3
//! ```

use jiff::Timestamp;
use model::{OwnerId, Result};

use crate::change::execute;
use crate::db::{Db, Row, bounded};
use crate::read::{micros, timestamp};
use crate::{Pending, Store};

/// What may wait of one conversation, in bytes; then its sources wait.
const CONVERSATION_BYTES_MAX: i64 = 32 << 20;
/// Of all conversations of an owner.
const OWNER_BYTES_MAX: i64 = 256 << 20;
/// Conversations read at a time.
const PAGE: usize = 256;

/// One conversation, and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Persisted {
    pub conversation: String,
    pub owner: OwnerId,
    pub sealed: Vec<u8>,
    /// What the backend had of it before; `None` until it was asked.
    pub base: Option<u64>,
    pub appended: u64,
    pub delivered: u64,
    /// The last of the batch that is on its way, or `delivered`.
    pub sending: u64,
    pub waiting_bytes: u64,
}

/// What is kept of one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistedEvent {
    pub sequence: u64,
    pub at: Timestamp,
    /// JSON.
    pub event: String,
}

/// What came of handing in events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// They are kept; those that were already are not kept twice.
    Kept,
    /// Too much waits for the backend. Nothing was kept: come again.
    Full,
    /// Nobody keeps this conversation.
    Unknown,
}

impl Store {
    /// From now on events of the sandbox's agents are kept for a backend, unless that is known already, or
    /// the sandbox is gone. What is sealed says where.
    pub async fn persist(
        &self,
        conversation: &str,
        owner: &OwnerId,
        sealed: Vec<u8>,
    ) -> Result<()> {
        let (conversation, owner) = (conversation.to_owned(), owner.clone());
        let begun = self.0.writer.submit(move |batch| {
            execute(
                &batch.db,
                "INSERT INTO persisted
                   (conversation, owner, sealed, appended, delivered, sending, waiting_bytes)
                 SELECT $1, $2, $3, 0, 0, 0, 0
                 WHERE EXISTS (SELECT 1 FROM agent_orders WHERE sandbox = $1)
                 ON CONFLICT (conversation) DO NOTHING",
                &[&conversation.as_str(), &owner.as_str(), &sealed],
            )
        });
        begun.await.map(drop)
    }

    /// Keeps what is new of a source's events, each with its number there, in their order.
    pub fn append_persisted(
        &self,
        conversation: &str,
        origin: &str,
        events: Vec<(u64, String)>,
        now: Timestamp,
    ) -> Pending<Appended> {
        let (conversation, origin) = (conversation.to_owned(), origin.to_owned());
        self.0.writer.submit(move |batch| {
            let incoming = Incoming { conversation: &conversation, origin: &origin, now };
            incoming.append(&batch.db, &events)
        })
    }

    /// How far each source was read.
    pub async fn persisted_origins(&self, conversation: &str) -> Result<Vec<(String, u64)>> {
        let conversation = conversation.to_owned();
        self.read(move |db| {
            let sql = "SELECT origin, sequence FROM persisted_origins WHERE conversation = $1";
            db.all(sql, &[&conversation], |row| Ok((row.get(0)?, row.unsigned(1)?)))
        })
        .await
    }

    /// Conversations of which the backend lacks something, after one of them, a page at a time.
    pub async fn persisted_waiting(&self, after: &str) -> Result<Vec<(String, OwnerId)>> {
        let after = after.to_owned();
        self.read(move |db| {
            let sql = format!(
                "SELECT conversation, owner FROM persisted
                 WHERE waiting_bytes > 0 AND conversation > $1 ORDER BY conversation LIMIT {PAGE}"
            );
            db.all(&sql, &[&after], |row| Ok((row.get(0)?, row.parsed(1)?)))
        })
        .await
    }

    pub async fn persisted(&self, conversation: &str) -> Result<Option<Persisted>> {
        let conversation = conversation.to_owned();
        self.read(move |db| {
            let sql = format!("SELECT {COLUMNS} FROM persisted WHERE conversation = $1");
            db.first(&sql, &[&conversation], persisted)
        })
        .await
    }

    /// Everybody's after one of them, a page at a time: to seal them anew.
    pub async fn all_persisted(&self, after: &str) -> Result<Vec<Persisted>> {
        let after = after.to_owned();
        self.read(move |db| {
            let sql = format!(
                "SELECT {COLUMNS} FROM persisted WHERE conversation > $1
                 ORDER BY conversation LIMIT {PAGE}"
            );
            db.all(&sql, &[&after], persisted)
        })
        .await
    }

    pub async fn reseal_persisted(&self, one: &Persisted, sealed: Vec<u8>) -> Result<()> {
        let (conversation, before) = (one.conversation.clone(), one.sealed.clone());
        let sql = "UPDATE persisted SET sealed = $1 WHERE conversation = $2 AND sealed = $3";
        let resealed = self
            .0
            .writer
            .submit(move |batch| execute(&batch.db, sql, &[&sealed, &conversation, &before]));
        resealed.await.map(drop)
    }

    /// What the backend does not have, from the oldest, at most so many.
    pub async fn persisted_events(
        &self,
        conversation: &str,
        after: u64,
        most: u32,
    ) -> Result<Vec<PersistedEvent>> {
        let (conversation, after) = (conversation.to_owned(), bounded(after));
        self.read(move |db| {
            let sql = format!(
                "SELECT sequence, at, event FROM persisted_events
                 WHERE conversation = $1 AND sequence > $2 ORDER BY sequence LIMIT {most}"
            );
            db.all(&sql, &[&conversation, &after], |row| {
                let at = timestamp(row.get(1)?)?;
                Ok(PersistedEvent { sequence: row.unsigned(0)?, at, event: row.get(2)? })
            })
        })
        .await
    }

    /// The backend had this many events of the conversation before.
    pub async fn set_persisted_base(&self, conversation: &str, base: u64) -> Result<()> {
        self.set("UPDATE persisted SET base = $1 WHERE conversation = $2", base, conversation).await
    }

    /// The batch that is on its way ends with this event.
    pub async fn send_persisted(&self, conversation: &str, last: u64) -> Result<()> {
        self.set("UPDATE persisted SET sending = $1 WHERE conversation = $2", last, conversation)
            .await
    }

    async fn set(&self, sql: &'static str, to: u64, conversation: &str) -> Result<()> {
        let (conversation, to) = (conversation.to_owned(), bounded(to));
        let set = self
            .0
            .writer
            .submit(move |batch| execute(&batch.db, sql, &[&to, &conversation.as_str()]));
        set.await.map(drop)
    }

    /// The backend has everything up to this event, or never will: nobody needs it here any more.
    pub async fn forget_persisted(&self, conversation: &str, last: u64) -> Result<()> {
        let (conversation, last) = (conversation.to_owned(), bounded(last));
        let forgotten = self.0.writer.submit(move |batch| {
            let db = &batch.db;
            let gone = "DELETE FROM persisted_events WHERE conversation = $1 AND sequence <= $2";
            execute(db, gone, &[&conversation.as_str(), &last])?;
            execute(
                db,
                "UPDATE persisted SET delivered = $1, sending = $1, waiting_bytes =
                   (SELECT CAST(coalesce(sum(length(event)), 0) AS BIGINT) FROM persisted_events
                    WHERE conversation = $2)
                 WHERE conversation = $2 AND delivered < $1",
                &[&last, &conversation.as_str()],
            )
        });
        forgotten.await.map(drop)
    }
}

struct Incoming<'a> {
    conversation: &'a str,
    origin: &'a str,
    now: Timestamp,
}

impl Incoming<'_> {
    fn append(&self, db: &Db<'_>, events: &[(u64, String)]) -> Result<Appended> {
        let sql = format!("SELECT {COLUMNS} FROM persisted WHERE conversation = $1");
        let Some(known) = db.first(&sql, &[&self.conversation], persisted)? else {
            return Ok(Appended::Unknown);
        };
        let sql = "SELECT sequence FROM persisted_origins WHERE conversation = $1 AND origin = $2";
        let of: [&dyn crate::db::Value; 2] = [&self.conversation, &self.origin];
        let mut read = db.first(sql, &of, |row| row.unsigned(0))?.unwrap_or(0);
        let sql = "SELECT CAST(coalesce(sum(waiting_bytes), 0) AS BIGINT) FROM persisted
                   WHERE owner = $1";
        let of_owner = db.first(sql, &[&known.owner.as_str()], |row| row.get::<i64>(0))?;
        let waiting = bounded(known.waiting_bytes);
        if waiting >= CONVERSATION_BYTES_MAX || of_owner.unwrap_or(0) >= OWNER_BYTES_MAX {
            return Ok(Appended::Full);
        }
        let (mut last, mut bytes) = (known.appended, 0);
        for (sequence, event) in events {
            if *sequence <= read {
                continue;
            }
            (read, last) = (*sequence, last + 1);
            // As the database counts it: in characters.
            bytes += bounded(event.chars().count() as u64);
            execute(
                db,
                "INSERT INTO persisted_events (conversation, sequence, at, event)
                 VALUES ($1, $2, $3, $4)",
                &[&self.conversation, &bounded(last), &micros(self.now), &event.as_str()],
            )?;
        }
        execute(
            db,
            "INSERT INTO persisted_origins (conversation, origin, sequence) VALUES ($1, $2, $3)
             ON CONFLICT (conversation, origin) DO UPDATE SET sequence = excluded.sequence",
            &[&self.conversation, &self.origin, &bounded(read)],
        )?;
        execute(
            db,
            "UPDATE persisted SET appended = $1, waiting_bytes = waiting_bytes + $2
             WHERE conversation = $3",
            &[&bounded(last), &bytes, &self.conversation],
        )?;
        Ok(Appended::Kept)
    }
}

/// Those whose sandbox is gone and of which nothing waits.
pub(crate) fn prune(db: &Db<'_>) -> Result<()> {
    let over = "SELECT conversation FROM persisted WHERE waiting_bytes = 0 AND NOT EXISTS
                  (SELECT 1 FROM agent_orders WHERE sandbox = persisted.conversation)";
    let origins = format!("DELETE FROM persisted_origins WHERE conversation IN ({over})");
    execute(db, &origins, &[])?;
    execute(db, &format!("DELETE FROM persisted WHERE conversation IN ({over})"), &[]).map(drop)
}

const COLUMNS: &str =
    "conversation, owner, sealed, base, appended, delivered, sending, waiting_bytes";

fn persisted(row: &Row<'_>) -> Result<Persisted> {
    let base: Option<i64> = row.get(3)?;
    Ok(Persisted {
        conversation: row.get(0)?,
        owner: row.parsed(1)?,
        sealed: row.get(2)?,
        base: base.map(|base| u64::try_from(base).unwrap_or(0)),
        appended: row.unsigned(4)?,
        delivered: row.unsigned(5)?,
        sending: row.unsigned(6)?,
        waiting_bytes: row.unsigned(7)?,
    })
}
