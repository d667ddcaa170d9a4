//! What running takes, counted once: a leg remembers how far it was counted, and every count moves that on in
//! the same transaction as the sums. Counting again what was counted adds nothing.

use jiff::Timestamp;
use model::pricing::Stretch;
use model::{OwnerId, Result};

use crate::change::execute;
use crate::db::{Db, Row};
use crate::read::timestamp;
use crate::{Store, Tariff, billing};

pub(crate) const DAY_USEC: i64 = 86_400_000_000;
/// Days that one count may reach over; a clock that jumps is not believed beyond it.
const DAYS_MAX: i64 = 60;

/// What compute has used so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metered {
    pub incarnation: String,
    pub at: Timestamp,
    pub cpu_usec: u64,
}

/// An owner's sums of one day (days since 1970).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DayUsage {
    pub day: i64,
    pub cpu_usec: i64,
    pub running_usec: i64,
    pub sandboxes: i64,
    pub charged_microcents: i64,
    pub sessions: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub tool_calls: i64,
}

/// A sandbox that has run in the last month.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentSandbox {
    pub sandbox: String,
    pub first_started_at: Timestamp,
    /// Absent while it runs.
    pub last_ended_at: Option<Timestamp>,
    pub starts: i64,
    pub running_usec: i64,
    pub cpu_usec: i64,
    pub charged_microcents: i64,
}

/// What of one leg is counted, and what it takes.
struct Counted {
    owner: String,
    at: i64,
    cpu_usec: i64,
    memory_mib: i64,
    disk_gb: i64,
}

impl Store {
    /// An owner's days from one to another, both included, oldest first; days without anything are absent.
    pub async fn usage(&self, owner: &OwnerId, from: i64, to: i64) -> Result<Vec<DayUsage>> {
        let owner = owner.clone();
        self.read(move |db| {
            let sql =
                "SELECT day, CAST(sum(cpu_usec) AS BIGINT), CAST(sum(running_usec) AS BIGINT),
                   CAST(sum(sandboxes) AS BIGINT), CAST(sum(charged_microcents) AS BIGINT),
                   CAST(sum(sessions) AS BIGINT), CAST(sum(input_tokens) AS BIGINT),
                   CAST(sum(output_tokens) AS BIGINT), CAST(sum(tool_calls) AS BIGINT)
                 FROM (
                   SELECT day, cpu_usec, running_usec, sandboxes, charged_microcents,
                     0 AS sessions, 0 AS input_tokens, 0 AS output_tokens, 0 AS tool_calls
                   FROM usage_days WHERE owner = $1 AND day >= $2 AND day <= $3
                   UNION ALL
                   SELECT day, 0, 0, 0, 0, sessions, input_tokens, output_tokens, tool_calls
                   FROM token_days WHERE owner = $1 AND day >= $2 AND day <= $3
                 ) AS days GROUP BY day ORDER BY day";
            db.all(sql, &[&owner.as_str(), &from, &to], day)
        })
        .await
    }

    /// Newest first, and how many there are.
    pub async fn recent_sandboxes(
        &self,
        owner: &OwnerId,
        limit: u32,
        offset: u32,
    ) -> Result<(Vec<RecentSandbox>, u64)> {
        let owner = owner.clone();
        let (limit, offset) = (i64::from(limit), i64::from(offset));
        self.read(move |db| {
            let sql = "SELECT count(DISTINCT sandbox) FROM legs WHERE owner = $1";
            let total = db.first(sql, &[&owner.as_str()], |row| row.get::<i64>(0))?;
            let sql = "SELECT sandbox, min(started_at), max(ended_at),
                   count(*) - count(ended_at), count(*),
                   CAST(sum(coalesce(metered_at, started_at) - started_at) AS BIGINT),
                   CAST(sum(metered_cpu_usec) AS BIGINT), CAST(sum(charged_microcents) AS BIGINT)
                 FROM legs WHERE owner = $1 GROUP BY sandbox
                 ORDER BY min(started_at) DESC, sandbox DESC LIMIT $2 OFFSET $3";
            let rows = db.all(sql, &[&owner.as_str(), &limit, &offset], recent)?;
            Ok((rows, u64::try_from(total.unwrap_or_default()).unwrap_or(0)))
        })
        .await
    }
}

/// One more sandbox of this owner, on the day it first started.
pub(crate) fn count_sandbox(db: &Db<'_>, owner: &str, at: i64) -> Result<()> {
    add(db, owner, at.div_euclid(DAY_USEC), &Sums { sandboxes: 1, ..Sums::default() })
}

/// Counts what a leg has used until then. Nothing when there is no such leg, or one that is counted
/// further.
pub(crate) fn meter(
    db: &Db<'_>,
    (sandbox, incarnation): (&str, &str),
    (at, cpu_usec): (i64, i64),
    tariff: &Tariff,
) -> Result<()> {
    let Some(counted) = counted(db, sandbox, incarnation)? else { return Ok(()) };
    let until = at.clamp(counted.at, counted.at + DAYS_MAX * DAY_USEC);
    let running_usec = until - counted.at;
    let cpu = (cpu_usec - counted.cpu_usec).max(0);
    if running_usec == 0 && cpu == 0 {
        return Ok(());
    }
    let stretch = |running_usec: i64, cpu_usec: i64| Stretch {
        running_usec: u64::try_from(running_usec).unwrap_or(0),
        cpu_usec: u64::try_from(cpu_usec).unwrap_or(0),
        memory_mib: u64::try_from(counted.memory_mib).unwrap_or(0),
        disk_gb: u64::try_from(counted.disk_gb).unwrap_or(0),
    };
    let (mut from, mut charged) = (counted.at, 0);
    loop {
        let day = from.div_euclid(DAY_USEC);
        let to = until.min((day + 1) * DAY_USEC);
        let last = to == until;
        // When in between a processor worked is not known: it counts for the last day.
        let (ran, worked) = (to - from, if last { cpu } else { 0 });
        let cost = tariff.prices.of(stretch(ran, worked));
        charged += cost;
        let sums = Sums { cpu_usec: worked, running_usec: ran, charged: cost, sandboxes: 0 };
        add(db, &counted.owner, day, &sums)?;
        if last {
            break;
        }
        from = to;
    }
    execute(
        db,
        "UPDATE legs SET metered_at = $1, metered_cpu_usec = $2,
           charged_microcents = charged_microcents + $3
         WHERE sandbox = $4 AND incarnation = $5",
        &[&until, &(counted.cpu_usec + cpu), &charged, &sandbox, &incarnation],
    )?;
    billing::open(db, &counted.owner, tariff)?;
    billing::owe(db, &counted.owner, charged, until)
}

#[derive(Default)]
struct Sums {
    cpu_usec: i64,
    running_usec: i64,
    charged: i64,
    sandboxes: i64,
}

fn add(db: &Db<'_>, owner: &str, day: i64, sums: &Sums) -> Result<()> {
    execute(
        db,
        "INSERT INTO usage_days (owner, day, cpu_usec, running_usec, sandboxes, charged_microcents)
         VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (owner, day) DO UPDATE SET
           cpu_usec = usage_days.cpu_usec + excluded.cpu_usec,
           running_usec = usage_days.running_usec + excluded.running_usec,
           sandboxes = usage_days.sandboxes + excluded.sandboxes,
           charged_microcents = usage_days.charged_microcents + excluded.charged_microcents",
        &[&owner, &day, &sums.cpu_usec, &sums.running_usec, &sums.sandboxes, &sums.charged],
    )
    .map(drop)
}

fn counted(db: &Db<'_>, sandbox: &str, incarnation: &str) -> Result<Option<Counted>> {
    let sql =
        "SELECT owner, coalesce(metered_at, started_at), metered_cpu_usec, memory_mib, disk_gb
               FROM legs WHERE sandbox = $1 AND incarnation = $2";
    let row = |row: &Row<'_>| {
        Ok(Counted {
            owner: row.get(0)?,
            at: row.get(1)?,
            cpu_usec: row.get(2)?,
            memory_mib: row.get(3)?,
            disk_gb: row.get(4)?,
        })
    };
    db.first(sql, &[&sandbox, &incarnation], row)
}

fn day(row: &Row<'_>) -> Result<DayUsage> {
    Ok(DayUsage {
        day: row.get(0)?,
        cpu_usec: row.get(1)?,
        running_usec: row.get(2)?,
        sandboxes: row.get(3)?,
        charged_microcents: row.get(4)?,
        sessions: row.get(5)?,
        input_tokens: row.get(6)?,
        output_tokens: row.get(7)?,
        tool_calls: row.get(8)?,
    })
}

fn recent(row: &Row<'_>) -> Result<RecentSandbox> {
    let (last, running): (Option<i64>, i64) = (row.get(2)?, row.get(3)?);
    Ok(RecentSandbox {
        sandbox: row.get(0)?,
        first_started_at: timestamp(row.get(1)?)?,
        last_ended_at: last.filter(|_| running == 0).map(timestamp).transpose()?,
        starts: row.get(4)?,
        running_usec: row.get(5)?,
        cpu_usec: row.get(6)?,
        charged_microcents: row.get(7)?,
    })
}
