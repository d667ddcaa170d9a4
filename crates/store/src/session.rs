//! Sessions: what they are and how they are, one row each, changed only under conditions. Their events
//! are elsewhere, see `session_log`. Nothing here is secret.

use anyhow::Context;
use jiff::Timestamp;
use model::{Error, OwnerId, Result, SandboxId, SessionId, SessionSpec, SessionStatus};

use crate::change::execute;
use crate::db::{Db, Row, bounded};
use crate::meter::DAY_USEC;
use crate::read::{micros, timestamp};
use crate::{Pending, Store, lease};

#[derive(Debug, Clone, PartialEq)]
pub struct SessionRecord {
    pub id: SessionId,
    pub owner: OwnerId,
    pub spec: SessionSpec,
    pub status: SessionStatus,
    /// Why its last life ended.
    pub reason: Option<String>,
    /// Where it runs, or ran last.
    pub sandbox: Option<SandboxId>,
    /// One more with every resume.
    pub life: u64,
    /// As the agent itself calls the conversation.
    pub native_session_id: Option<String>,
    pub created_at: Timestamp,
    /// Of the current life.
    pub expires_at: Timestamp,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub tool_calls: u64,
    /// When it was resumed last, and how it was before.
    pub resumed_at: Option<Timestamp>,
    pub previous_status: Option<SessionStatus>,
}

/// What an agent used, as it says itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionUse {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub tool_calls: u64,
}

/// What came of asking to resume.
#[derive(Debug, Clone, PartialEq)]
pub enum Resuming {
    /// The caller is to do it, and nobody else does.
    Claimed(SessionRecord),
    /// Somebody does it just now.
    Busy,
    /// It was done a moment ago.
    Done(SessionRecord),
}

const COLUMNS: &str = "id, owner, spec, status, reason, sandbox, life, native_session_id, \
    created_at, expires_at, input_tokens, output_tokens, tool_calls, resumed_at, previous_status";

impl Store {
    /// A new one, which counts for its owner from now on.
    pub fn create_session(&self, record: SessionRecord) -> Pending<()> {
        let fence = self.1;
        self.0.writer.submit(move |batch| {
            lease::check(&batch.db, fence)?;
            let spec = serde_json::to_string(&record.spec).context("write a session")?;
            execute(
                &batch.db,
                "INSERT INTO sessions
                   (id, owner, spec, status, sandbox, life, created_at, expires_at)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                &[
                    &record.id.to_string(),
                    &record.owner.as_str(),
                    &spec,
                    &record.status.as_str(),
                    &record.sandbox.map(|id| id.to_string()),
                    &bounded(record.life),
                    &micros(record.created_at),
                    &micros(record.expires_at),
                ],
            )?;
            count(&batch.db, &record.owner, record.created_at)
        })
    }

    pub async fn session(&self, id: SessionId) -> Result<Option<SessionRecord>> {
        self.read(move |db| find(db, id)).await
    }

    /// An owner's, newest first, at most `limit` of those older than `before`.
    pub async fn sessions(
        &self,
        owner: &OwnerId,
        before: Option<SessionId>,
        limit: u32,
    ) -> Result<Vec<SessionRecord>> {
        let owner = owner.clone();
        // Behind every id.
        let before = before.map_or_else(|| "ses_~".to_owned(), |id| id.to_string());
        self.read(move |db| {
            let sql = format!(
                "SELECT {COLUMNS} FROM sessions WHERE owner = $1 AND id < $2
                 ORDER BY id DESC LIMIT $3"
            );
            db.all(&sql, &[&owner.as_str(), &before, &i64::from(limit)], record)
        })
        .await
    }

    /// Everybody's that run, as far as is known.
    pub async fn running_sessions(&self) -> Result<Vec<SessionRecord>> {
        self.read(|db| {
            let sql = format!("SELECT {COLUMNS} FROM sessions WHERE status = $1 ORDER BY id");
            db.all(&sql, &[&SessionStatus::Running.as_str()], record)
        })
        .await
    }

    /// This life of it is in that sandbox. Whether it is still the current one.
    pub fn place_session(&self, id: SessionId, life: u64, sandbox: SandboxId) -> Pending<bool> {
        let fence = self.1;
        self.0.writer.submit(move |batch| {
            lease::check(&batch.db, fence)?;
            let sql = "UPDATE sessions SET sandbox = $1
                       WHERE id = $2 AND life = $3 AND status = 'running'";
            let values = [&sandbox.to_string() as _, &id.to_string() as _, &bounded(life) as _];
            Ok(execute(&batch.db, sql, &values)? == 1)
        })
    }

    pub fn name_session(&self, id: SessionId, native_session_id: String) -> Pending<()> {
        let fence = self.1;
        self.0.writer.submit(move |batch| {
            lease::check(&batch.db, fence)?;
            let sql = "UPDATE sessions SET native_session_id = $1 WHERE id = $2";
            execute(&batch.db, sql, &[&native_session_id, &id.to_string()]).map(drop)
        })
    }

    /// This life of it has ended. Whether it was running; the first reason stays.
    pub fn end_session(
        &self,
        id: SessionId,
        life: u64,
        (status, reason): (SessionStatus, String),
    ) -> Pending<bool> {
        let fence = self.1;
        self.0.writer.submit(move |batch| {
            lease::check(&batch.db, fence)?;
            let ended = execute(
                &batch.db,
                "UPDATE sessions SET status = $1, reason = $2
                 WHERE id = $3 AND life = $4 AND status = 'running'",
                &[&status.as_str(), &reason, &id.to_string(), &bounded(life)],
            )?;
            Ok(ended == 1)
        })
    }

    /// Adds to its sums, as its agent tells them. Its owner's day is counted where models are called, by
    /// `count_tokens`: that the agent cannot make up.
    pub fn count_session_use(&self, id: SessionId, used: SessionUse) -> Pending<()> {
        let fence = self.1;
        self.0.writer.submit(move |batch| {
            lease::check(&batch.db, fence)?;
            execute(
                &batch.db,
                "UPDATE sessions SET input_tokens = input_tokens + $1,
                   output_tokens = output_tokens + $2, tool_calls = tool_calls + $3 WHERE id = $4",
                &[
                    &bounded(used.input_tokens),
                    &bounded(used.output_tokens),
                    &bounded(used.tool_calls),
                    &id.to_string(),
                ],
            )
            .map(drop)
        })
    }

    /// Takes it on oneself to resume a session until `until`, if nobody else does, and it was not resumed
    /// since `done_since`.
    pub fn claim_session(
        &self,
        id: SessionId,
        (claim, until): (String, Timestamp),
        (now, done_since): (Timestamp, Timestamp),
    ) -> Pending<Resuming> {
        let fence = self.1;
        self.0.writer.submit(move |batch| {
            lease::check(&batch.db, fence)?;
            let claimed = execute(
                &batch.db,
                "UPDATE sessions SET claim = $1, claim_until = $2
                 WHERE id = $3 AND (claim_until IS NULL OR claim_until <= $4)
                   AND (resumed_at IS NULL OR resumed_at <= $5 OR status <> 'running')",
                &[&claim, &micros(until), &id.to_string(), &micros(now), &micros(done_since)],
            )?;
            let none = || Error::NotFound { what: "session", id: id.to_string() };
            let record = find(&batch.db, id)?.ok_or_else(none)?;
            if claimed == 1 {
                return Ok(Resuming::Claimed(record));
            }
            let recent = record.resumed_at.is_some_and(|at| at > done_since);
            if recent && record.status == SessionStatus::Running && !is_claimed(&batch.db, id, now)?
            {
                return Ok(Resuming::Done(record));
            }
            Ok(Resuming::Busy)
        })
    }

    /// Begins the next life, for who has the claim. `Unavailable` for who lost it.
    pub fn begin_life(
        &self,
        id: SessionId,
        claim: String,
        (life, expires_at): (u64, Timestamp),
    ) -> Pending<SessionRecord> {
        let fence = self.1;
        self.0.writer.submit(move |batch| {
            lease::check(&batch.db, fence)?;
            let begun = execute(
                &batch.db,
                "UPDATE sessions SET previous_status = status, status = 'running', reason = NULL,
                   sandbox = NULL, life = $1, expires_at = $2, resumed_at = NULL
                 WHERE id = $3 AND claim = $4",
                &[&bounded(life), &micros(expires_at), &id.to_string(), &claim],
            )?;
            let lost = || Error::unavailable("another server resumes the session");
            let record = find(&batch.db, id)?.filter(|_| begun == 1);
            record.ok_or_else(lost)
        })
    }

    /// The claim is given back: with a time when it was resumed, without one when it was not.
    pub fn settle_claim(
        &self,
        id: SessionId,
        claim: String,
        resumed_at: Option<Timestamp>,
    ) -> Pending<()> {
        let fence = self.1;
        self.0.writer.submit(move |batch| {
            lease::check(&batch.db, fence)?;
            execute(
                &batch.db,
                "UPDATE sessions SET claim = NULL, claim_until = NULL, resumed_at = $1
                 WHERE id = $2 AND claim = $3",
                &[&resumed_at.map(micros), &id.to_string(), &claim],
            )
            .map(drop)
        })
    }

    /// Claims of a server that does not lead any more are nobody's.
    pub fn drop_session_claims(&self) -> Pending<()> {
        let fence = self.1;
        self.0.writer.submit(move |batch| {
            lease::check(&batch.db, fence)?;
            let sql = "UPDATE sessions SET claim = NULL, claim_until = NULL
                       WHERE claim_until IS NOT NULL";
            execute(&batch.db, sql, &[]).map(drop)
        })
    }

    /// The row alone; see [`Store::delete_session_log`].
    pub fn delete_session(&self, id: SessionId) -> Pending<()> {
        let fence = self.1;
        self.0.writer.submit(move |batch| {
            lease::check(&batch.db, fence)?;
            execute(&batch.db, "DELETE FROM sessions WHERE id = $1", &[&id.to_string()]).map(drop)
        })
    }
}

fn find(db: &Db<'_>, id: SessionId) -> Result<Option<SessionRecord>> {
    let sql = format!("SELECT {COLUMNS} FROM sessions WHERE id = $1");
    db.first(&sql, &[&id.to_string()], record)
}

fn is_claimed(db: &Db<'_>, id: SessionId, now: Timestamp) -> Result<bool> {
    let sql = "SELECT 1 FROM sessions WHERE id = $1 AND claim_until > $2";
    Ok(db.first(sql, &[&id.to_string(), &micros(now)], |_| Ok(()))?.is_some())
}

/// One more session in its owner's day.
fn count(db: &Db<'_>, owner: &OwnerId, at: Timestamp) -> Result<()> {
    execute(
        db,
        "INSERT INTO token_days (owner, day, sessions) VALUES ($1, $2, 1)
         ON CONFLICT (owner, day) DO UPDATE SET sessions = token_days.sessions + 1",
        &[&owner.as_str(), &micros(at).div_euclid(DAY_USEC)],
    )
    .map(drop)
}

fn record(row: &Row<'_>) -> Result<SessionRecord> {
    let spec: SessionSpec =
        serde_json::from_str(&row.get::<String>(2)?).context("understand a session")?;
    let resumed_at: Option<i64> = row.get(13)?;
    Ok(SessionRecord {
        id: row.parsed(0)?,
        owner: row.parsed(1)?,
        spec,
        status: row.parsed(3)?,
        reason: row.get(4)?,
        sandbox: row.parsed_if_any(5)?,
        life: row.unsigned(6)?,
        native_session_id: row.get(7)?,
        created_at: timestamp(row.get(8)?)?,
        expires_at: timestamp(row.get(9)?)?,
        input_tokens: row.unsigned(10)?,
        output_tokens: row.unsigned(11)?,
        tool_calls: row.unsigned(12)?,
        resumed_at: resumed_at.map(timestamp).transpose()?,
        previous_status: row.parsed_if_any(14)?,
    })
}
