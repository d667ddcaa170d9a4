//! Rates that hold over all servers of a database: at most so many in any stretch of time.

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use model::Result;
use rusqlite::{Connection, params};

use crate::Store;
use crate::change::execute;
use crate::read::micros;

/// The longest stretch of any rate.
const LONGEST: SignedDuration = SignedDuration::from_hours(1);

/// At most `count` in any `per`, which is an hour at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub count: u32,
    pub per: SignedDuration,
}

/// Whether one more is let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    Granted,
    /// There will be room again after this.
    Refused {
        retry_after: SignedDuration,
    },
}

impl Store {
    /// Counts one in `bucket`, if there is room. What is refused is not counted.
    pub async fn admit(&self, bucket: &str, rate: Rate, now: Timestamp) -> Result<Admission> {
        let bucket = bucket.to_owned();
        let admitted = self.0.writer.submit(move |batch| {
            let db = batch.connection;
            let since = micros(now - rate.per.min(LONGEST));
            execute(db, "DELETE FROM hits WHERE bucket = $1 AND at <= $2", params![bucket, since])?;
            let (count, oldest): (i64, Option<i64>) = db
                .prepare_cached("SELECT count(*), min(at) FROM hits WHERE bucket = $1")
                .and_then(|mut statement| {
                    statement.query_row(params![bucket], |row| Ok((row.get(0)?, row.get(1)?)))
                })
                .context("count what was let through")?;
            if count >= i64::from(rate.count) {
                let wait = oldest.map_or(0, |oldest| oldest - since);
                return Ok(Admission::Refused { retry_after: SignedDuration::from_micros(wait) });
            }
            let hit = params![bucket, micros(now)];
            execute(db, "INSERT INTO hits (bucket, at) VALUES ($1, $2)", hit)?;
            Ok(Admission::Granted)
        });
        admitted.await
    }
}

pub(crate) fn prune(db: &Connection, now: Timestamp) -> Result<()> {
    let before = params![micros(now - LONGEST)];
    execute(db, "DELETE FROM hits WHERE at <= $1", before).map(drop)
}
