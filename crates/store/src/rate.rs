//! Rates that hold over all servers of a database: at most so many in any stretch of time.

use jiff::{SignedDuration, Timestamp};
use model::Result;

use crate::Store;
use crate::change::execute;
use crate::db::Db;
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
            let db = &batch.db;
            let since = micros(now - rate.per.min(LONGEST));
            execute(db, "DELETE FROM hits WHERE bucket = $1 AND at <= $2", &[&bucket, &since])?;
            let found = db.first(
                "SELECT count(*), min(at) FROM hits WHERE bucket = $1",
                &[&bucket],
                |row| Ok((row.get::<i64>(0)?, row.get::<Option<i64>>(1)?)),
            )?;
            let (count, oldest) = found.unwrap_or_default();
            if count >= i64::from(rate.count) {
                let wait = oldest.map_or(0, |oldest| oldest - since);
                return Ok(Admission::Refused { retry_after: SignedDuration::from_micros(wait) });
            }
            execute(db, "INSERT INTO hits (bucket, at) VALUES ($1, $2)", &[&bucket, &micros(now)])?;
            Ok(Admission::Granted)
        });
        admitted.await
    }
}

pub(crate) fn prune(db: &Db<'_>, now: Timestamp) -> Result<()> {
    let before = micros(now - LONGEST);
    execute(db, "DELETE FROM hits WHERE at <= $1", &[&before]).map(drop)
}
