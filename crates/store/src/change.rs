//! What the engine writes about one sandbox: a closed list of small changes, applied together or
//! not at all.

use jiff::Timestamp;
use model::{Conflict, Error, Event, EventKind, Name, OwnerId, Result, SandboxId};

use crate::db::{Db, Value, bounded};
use crate::read::micros;
use crate::writer::{Batch, Pending};
use crate::{Metered, Store, Tariff, agent, billing, code, event, lease, meter, persisted, rate};

/// One change; [`Store::apply`] takes several.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// `Conflict` when the owner has a sandbox of that name.
    ClaimName(Name),
    /// Remembers the answer of a create under its idempotency key. `Conflict` when that key is
    /// taken by a create that has not expired.
    ClaimRequest {
        key: String,
        body_sha256: [u8; 32],
        answer: String,
        times: Remembered,
    },
    /// The create is finished; `answer` replaces what was remembered.
    Settle {
        answer: Option<String>,
    },
    /// Keeps what the agent of the sandbox is to do, sealed, until the sandbox is gone.
    KeepOrder(Vec<u8>),
    /// The create failed: its name is free again, and its idempotency key unless it was settled.
    Unclaim,
    /// The sandbox is gone: its name is free. Its idempotency key goes on answering.
    Release,
    Rename(Name),
    BeginLeg(Leg),
    /// Ends a leg and tells `billing.sandbox-hour`, once; nothing when it has ended or never began.
    EndLeg(LegEnd),
    /// Counts what was used so far; nothing for compute that has ended, which counted it all.
    Meter(Metered),
    Tell(Event, Transition),
    /// The same as `BeginLeg`, and tells an event if the leg was not known: for what a server was told
    /// to do and could not write down any more.
    MendBegin(Leg, Event, Transition),
    /// The same for `EndLeg`, if the leg was open.
    MendEnd(LegEnd, Event, Transition),
}

/// From when to when an answer is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    pub from: Timestamp,
    pub until: Timestamp,
}

/// What happened once and only once to a sandbox; the second time it is not told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition(pub String);

/// Compute that began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leg {
    pub incarnation: String,
    pub started_at: Timestamp,
    /// Who pays, if not the owner.
    pub payer: Option<OwnerId>,
    /// What it may use, which is what is paid for.
    pub memory_mib: u32,
    pub disk_gb: u32,
}

/// Compute that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegEnd {
    pub incarnation: String,
    pub ended_at: Timestamp,
    pub cpu_usec: u64,
}

impl Store {
    /// Applies all of `changes` to one sandbox, or none of them.
    pub fn apply(&self, owner: OwnerId, sandbox: SandboxId, changes: Vec<Change>) -> Pending<()> {
        let (fence, tariff) = (self.1, self.tariff());
        self.0.writer.submit(move |batch| {
            lease::check(&batch.db, fence)?;
            let subject = Subject { owner, sandbox, id: sandbox.to_string(), tariff };
            changes.into_iter().try_for_each(|change| apply(batch, &subject, change))
        })
    }

    /// Resolves once everything that was queued before is written.
    pub fn settled(&self) -> Pending<()> {
        self.0.writer.submit(|_| Ok(()))
    }

    /// Forgets events older than `events_before` and answers that expired before `now`.
    pub fn prune(&self, now: Timestamp, events_before: Timestamp) -> Pending<()> {
        let fence = self.1;
        self.0.writer.submit(move |batch| {
            lease::check(&batch.db, fence)?;
            event::prune(&batch.db, events_before)?;
            let expired = "DELETE FROM requests WHERE expires_at < $1";
            execute(&batch.db, expired, &[&micros(now)])?;
            code::prune(&batch.db, now)?;
            rate::prune(&batch.db, now)?;
            persisted::prune(&batch.db)?;
            execute(
                &batch.db,
                "DELETE FROM legs WHERE ended_at < $1 - 31 * 86400000000",
                &[&micros(events_before)],
            )?;
            Ok(())
        })
    }
}

struct Subject {
    owner: OwnerId,
    sandbox: SandboxId,
    id: String,
    tariff: Tariff,
}

fn apply(batch: &mut Batch<'_>, of: &Subject, change: Change) -> Result<()> {
    let db = &batch.db;
    match change {
        Change::ClaimName(name) => claim_name(db, of, &name),
        Change::ClaimRequest { key, body_sha256, answer, times } => {
            claim_request(db, of, &key, (body_sha256, &answer, times))
        }
        Change::Settle { answer } => settle(db, of, answer.as_deref()),
        Change::KeepOrder(sealed) => agent::keep(db, &of.id, &of.owner, &sealed),
        Change::Unclaim => {
            agent::forget(db, &of.id)?;
            execute(db, "DELETE FROM names WHERE sandbox = $1", &[&of.id])?;
            let undone = "DELETE FROM requests WHERE sandbox = $1 AND done = 0";
            execute(db, undone, &[&of.id]).map(drop)
        }
        Change::Release => {
            agent::forget(db, &of.id)?;
            execute(db, "DELETE FROM names WHERE sandbox = $1", &[&of.id]).map(drop)
        }
        Change::Rename(name) => rename(db, of, &name),
        Change::BeginLeg(leg) => begin_leg(db, of, &leg).map(drop),
        Change::EndLeg(end) => end_leg(batch, of, &end).map(drop),
        Change::Meter(metered) => count(db, of, &metered),
        Change::Tell(event, transition) => tell(batch, event, &transition),
        Change::MendBegin(leg, event, transition) => {
            if begin_leg(db, of, &leg)? {
                tell(batch, event, &transition)
            } else {
                Ok(())
            }
        }
        Change::MendEnd(end, event, transition) => {
            if end_leg(batch, of, &end)? {
                tell(batch, event, &transition)
            } else {
                Ok(())
            }
        }
    }
}

fn tell(batch: &mut Batch<'_>, event: Event, transition: &Transition) -> Result<()> {
    batch.told.extend(event::insert(&batch.db, event, &transition.0)?);
    Ok(())
}

/// Whether it was not known.
fn begin_leg(db: &Db<'_>, of: &Subject, leg: &Leg) -> Result<bool> {
    let payer = leg.payer.as_ref().unwrap_or(&of.owner).as_str();
    let inserted = execute(
        db,
        "INSERT INTO legs (sandbox, incarnation, owner, started_at, memory_mib, disk_gb)
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
        &[
            &of.id,
            &leg.incarnation,
            &payer,
            &micros(leg.started_at),
            &i64::from(leg.memory_mib),
            &i64::from(leg.disk_gb),
        ],
    )?;
    if inserted == 0 {
        return Ok(false);
    }
    let sql = "SELECT count(*) FROM legs WHERE sandbox = $1";
    if db.first(sql, &[&of.id], |row| row.get::<i64>(0))? == Some(1) {
        meter::count_sandbox(db, payer, micros(leg.started_at))?;
    }
    billing::open(db, payer, &of.tariff)?;
    Ok(true)
}

fn count(db: &Db<'_>, of: &Subject, metered: &Metered) -> Result<()> {
    let sql = "SELECT count(*) FROM legs
               WHERE sandbox = $1 AND incarnation = $2 AND ended_at IS NULL";
    let open = db.first(sql, &[&of.id, &metered.incarnation], |row| row.get::<i64>(0))?;
    if open.unwrap_or_default() == 0 {
        return Ok(());
    }
    let used = (micros(metered.at), bounded(metered.cpu_usec));
    meter::meter(db, (&of.id, &metered.incarnation), used, &of.tariff)
}

fn claim_name(db: &Db<'_>, of: &Subject, name: &Name) -> Result<()> {
    let claimed = execute(
        db,
        "INSERT INTO names (owner, name, sandbox) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        &[&of.owner.as_str(), &name.as_str(), &of.id],
    )?;
    if claimed == 0 { Err(name_taken(name)) } else { Ok(()) }
}

fn claim_request(
    db: &Db<'_>,
    of: &Subject,
    key: &str,
    (body_sha256, answer, times): ([u8; 32], &str, Remembered),
) -> Result<()> {
    let owner = of.owner.as_str();
    execute(
        db,
        "DELETE FROM requests WHERE owner = $1 AND idempotency_key = $2 AND expires_at <= $3",
        &[&owner, &key, &micros(times.from)],
    )?;
    let claimed = execute(
        db,
        "INSERT INTO requests (owner, idempotency_key, body_sha256, sandbox, answer, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
        &[&owner, &key, &body_sha256.as_slice(), &of.id, &answer, &micros(times.until)],
    )?;
    if claimed == 0 {
        let detail = "another create with this Idempotency-Key is in progress";
        return Err(Error::wrong_state(detail));
    }
    Ok(())
}

fn rename(db: &Db<'_>, of: &Subject, name: &Name) -> Result<()> {
    let renamed = execute(
        db,
        "UPDATE names SET name = $1 WHERE sandbox = $2 AND NOT EXISTS (
             SELECT 1 FROM names AS other WHERE other.owner = names.owner AND other.name = $1
             AND other.sandbox <> names.sandbox)",
        &[&name.as_str(), &of.id],
    )?;
    if renamed == 0 { Err(name_taken(name)) } else { Ok(()) }
}

fn settle(db: &Db<'_>, of: &Subject, answer: Option<&str>) -> Result<()> {
    execute(db, "UPDATE names SET ready = 1 WHERE sandbox = $1", &[&of.id])?;
    execute(
        db,
        "UPDATE requests SET done = 1, answer = coalesce($1, answer) WHERE sandbox = $2",
        &[&answer, &of.id],
    )
    .map(drop)
}

/// Whether it was open.
fn end_leg(batch: &mut Batch<'_>, of: &Subject, end: &LegEnd) -> Result<bool> {
    let cpu_usec = bounded(end.cpu_usec);
    let started_at = batch.db.first(
        "UPDATE legs SET ended_at = $1, cpu_usec = $2
         WHERE sandbox = $3 AND incarnation = $4 AND ended_at IS NULL RETURNING started_at",
        &[&micros(end.ended_at), &cpu_usec, &of.id, &end.incarnation],
        |row| row.get::<i64>(0),
    )?;
    let Some(started_at) = started_at else { return Ok(false) };
    let used = (micros(end.ended_at), cpu_usec);
    meter::meter(&batch.db, (&of.id, &end.incarnation), used, &of.tariff)?;
    let duration_usec = (micros(end.ended_at) - started_at).max(0);
    let event = Event {
        owner: of.owner.clone(),
        sandbox: of.sandbox,
        kind: EventKind::SandboxHour,
        reason: None,
        at: end.ended_at,
        data: serde_json::json!({
            "incarnation": end.incarnation,
            "started_at": crate::read::timestamp(started_at)?,
            "seconds": seconds(duration_usec),
            "cpu_seconds": seconds(cpu_usec),
        }),
    };
    tell(batch, event, &Transition(format!("billing:{}", end.incarnation)))?;
    Ok(true)
}

fn seconds(usec: i64) -> f64 {
    std::time::Duration::from_micros(u64::try_from(usec).unwrap_or(0)).as_secs_f64()
}

fn name_taken(name: &Name) -> Error {
    let detail = format!("you already have a sandbox named {name}");
    Error::Conflict { code: Conflict::NameTaken, detail }
}

pub(crate) fn execute(db: &Db<'_>, sql: &str, values: &[&dyn Value]) -> Result<usize> {
    db.execute(sql, values)
}
