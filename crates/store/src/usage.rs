//! What owners used, day by day. It is taken from the kernel's counters while a sandbox runs and once more
//! when it ends; a leg remembers what of it was counted, in the same transaction, so that nothing is
//! counted twice and whatever a crash kept from being counted is counted later.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use model::{OwnerId, Result, SandboxId};

use crate::Store;
use crate::change::{Leg, execute};
use crate::db::{Db, Row};
use crate::read::{micros, timestamp};

/// What an owner used in a stretch of time. The first day is the only one when it is of one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    pub day: Date,
    pub cpu_usec: i64,
    /// Milliseconds of a MiB of memory limit.
    pub mib_ms: i64,
    /// That were made then.
    pub sandboxes: i64,
    pub sessions: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub tool_calls: i64,
    pub charged_micro_cents: i64,
}

/// A sandbox that runs or ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    pub sandbox: SandboxId,
    pub name: String,
    pub started_at: Timestamp,
    /// When it last stopped; `None` while it runs.
    pub ended_at: Option<Timestamp>,
    /// How often it was started.
    pub runs: i64,
    pub run_usec: i64,
    pub cpu_usec: i64,
}

/// What a leg is known to have used.
pub(crate) struct Reading<'a> {
    pub(crate) sandbox: &'a str,
    pub(crate) incarnation: &'a str,
    pub(crate) cpu_usec: i64,
    pub(crate) at: Timestamp,
}

const COLUMNS: &str = "cpu_usec, mib_ms, sandboxes, sessions, input_tokens, output_tokens,
    tool_calls, charged_micro_cents";

impl Store {
    /// Days of use from `from` to before `until`, in order; a day without any is missing.
    pub async fn usage_by_day(
        &self,
        owner: &OwnerId,
        from: Date,
        until: Date,
    ) -> Result<Vec<Usage>> {
        let (owner, from, until) = (owner.clone(), from.to_string(), until.to_string());
        self.read(move |db| {
            let sql = format!(
                "SELECT day, {COLUMNS} FROM usage_days
                 WHERE owner = $1 AND day >= $2 AND day < $3 ORDER BY day"
            );
            db.all(&sql, &[&owner.as_str(), &from, &until], usage)
        })
        .await
    }

    /// One page, those that began last first, and how many there are.
    pub async fn history(
        &self,
        owner: &OwnerId,
        limit: u32,
        offset: u64,
    ) -> Result<(Vec<Past>, u64)> {
        let owner = owner.clone();
        let (limit, offset) = (i64::from(limit), i64::try_from(offset).unwrap_or(i64::MAX));
        self.read(move |db| {
            db.at_one_moment(|| {
                let page = db.all(
                    "SELECT sandbox, name, started_at, ended_at, runs, run_usec, cpu_usec FROM history
                     WHERE owner = $1 ORDER BY started_at DESC, sandbox LIMIT $2 OFFSET $3",
                    &[&owner.as_str(), &limit, &offset],
                    past,
                )?;
                let count = "SELECT count(*) FROM history WHERE owner = $1";
                let total = db.first(count, &[&owner.as_str()], |row| row.get::<i64>(0))?;
                Ok((page, u64::try_from(total.unwrap_or_default()).unwrap_or_default()))
            })
        })
        .await
    }
}

fn usage(row: &Row<'_>) -> Result<Usage> {
    let day: String = row.get(0)?;
    let wrong = |error| anyhow::anyhow!("understand the day {day}: {error}");
    Ok(Usage {
        day: day.parse().map_err(wrong)?,
        cpu_usec: row.get(1)?,
        mib_ms: row.get(2)?,
        sandboxes: row.get(3)?,
        sessions: row.get(4)?,
        input_tokens: row.get(5)?,
        output_tokens: row.get(6)?,
        tool_calls: row.get(7)?,
        charged_micro_cents: row.get(8)?,
    })
}

fn past(row: &Row<'_>) -> Result<Past> {
    let ended_at: Option<i64> = row.get(3)?;
    Ok(Past {
        sandbox: row.parsed(0)?,
        name: row.get(1)?,
        started_at: timestamp(row.get(2)?)?,
        ended_at: ended_at.map(timestamp).transpose()?,
        runs: row.get(4)?,
        run_usec: row.get(5)?,
        cpu_usec: row.get(6)?,
    })
}

/// A leg begins that was not known.
pub(crate) fn begun(db: &Db<'_>, owner: &str, sandbox: &str, leg: &Leg) -> Result<()> {
    let started_at = micros(leg.started_at);
    let again = execute(
        db,
        "UPDATE history SET runs = runs + 1, ended_at = NULL WHERE sandbox = $1",
        &[&sandbox],
    )?;
    if again > 0 {
        return Ok(());
    }
    let name = db.first("SELECT name FROM names WHERE sandbox = $1", &[&sandbox], |row| {
        row.get::<String>(0)
    })?;
    let values: &[&dyn crate::db::Value] =
        &[&sandbox, &owner, &name.unwrap_or_default(), &started_at];
    execute(
        db,
        "INSERT INTO history (sandbox, owner, name, started_at) VALUES ($1, $2, $3, $4)",
        values,
    )?;
    execute(
        db,
        "INSERT INTO usage_days (owner, day, sandboxes) VALUES ($1, $2, 1)
         ON CONFLICT (owner, day) DO UPDATE SET sandboxes = usage_days.sandboxes + 1",
        &[&owner, &day_of(leg.started_at)],
    )
    .map(drop)
}

/// Counts what an open leg used since it was last read. Counters that went back count nothing.
pub(crate) fn meter(db: &Db<'_>, reading: &Reading<'_>) -> Result<()> {
    let Reading { sandbox, incarnation, cpu_usec, at } = *reading;
    let before = db.first(
        "SELECT owner, memory_mib, metered_cpu_usec, coalesce(metered_at, started_at) FROM legs
         WHERE sandbox = $1 AND incarnation = $2 AND ended_at IS NULL",
        &[&sandbox, &incarnation],
        |row| {
            Ok((row.get::<String>(0)?, row.get::<i64>(1)?, row.get::<i64>(2)?, row.get::<i64>(3)?))
        },
    )?;
    let Some((owner, memory_mib, known_cpu, known_at)) = before else { return Ok(()) };
    let cpu = (cpu_usec - known_cpu).max(0);
    let run = (micros(at) - known_at).max(0);
    execute(
        db,
        "UPDATE legs SET metered_cpu_usec = $1, metered_at = $2, cpu_usec = $1
         WHERE sandbox = $3 AND incarnation = $4",
        &[&(known_cpu + cpu), &(known_at + run), &sandbox, &incarnation],
    )?;
    execute(
        db,
        "UPDATE history SET run_usec = run_usec + $1, cpu_usec = cpu_usec + $2 WHERE sandbox = $3",
        &[&run, &cpu, &sandbox],
    )?;
    execute(
        db,
        "INSERT INTO usage_days (owner, day, cpu_usec, mib_ms) VALUES ($1, $2, $3, $4)
         ON CONFLICT (owner, day) DO UPDATE SET cpu_usec = usage_days.cpu_usec + excluded.cpu_usec,
         mib_ms = usage_days.mib_ms + excluded.mib_ms",
        &[&owner.as_str(), &day_of(at), &cpu, &(run / 1000).saturating_mul(memory_mib)],
    )
    .map(drop)
}

/// The last of a leg was counted, and it is over.
pub(crate) fn ended(db: &Db<'_>, sandbox: &str, at: Timestamp) -> Result<()> {
    let sql = "UPDATE history SET ended_at = $1 WHERE sandbox = $2";
    execute(db, sql, &[&micros(at), &sandbox]).map(drop)
}

pub(crate) fn prune(db: &Db<'_>, ended_before: Timestamp) -> Result<()> {
    let sql = "DELETE FROM history WHERE ended_at < $1";
    execute(db, sql, &[&micros(ended_before)]).map(drop)
}

fn day_of(at: Timestamp) -> String {
    at.to_zoned(TimeZone::UTC).date().to_string()
}
