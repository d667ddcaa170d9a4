//! One-time codes that are sent by e-mail: one at a time, good for a while, a few tries, once.
//!
//! The digest comes from outside, keyed with a secret that is not in the database: six digits alone
//! could be found by trying a million digests.

use std::hint::black_box;

use jiff::{SignedDuration, Timestamp};
use model::{Email, Result};

use crate::Store;
use crate::change::execute;
use crate::db::Db;
use crate::read::micros;

/// How long a code is good.
const GOOD_FOR: SignedDuration = SignedDuration::from_mins(10);
/// Guesses at one code, right or wrong.
const TRIES_MAX: i64 = 5;

impl Store {
    /// From now on this is the only code of the e-mail.
    pub async fn put_code(&self, email: &Email, digest: [u8; 32], now: Timestamp) -> Result<()> {
        let email = email.clone();
        let put = self.0.writer.submit(move |batch| {
            execute(
                &batch.db,
                "INSERT INTO codes (email, digest, tries, expires_at) VALUES ($1, $2, 0, $3)
                 ON CONFLICT (email) DO UPDATE SET digest = excluded.digest, tries = 0,
                 expires_at = excluded.expires_at",
                &[&email.as_str(), &digest.as_slice(), &micros(now + GOOD_FOR)],
            )
        });
        put.await.map(drop)
    }

    /// Whether this is the e-mail's code. A right one is used up, a wrong one costs a try. What is
    /// done for an e-mail without a code is the same.
    pub async fn take_code(&self, email: &Email, digest: [u8; 32], now: Timestamp) -> Result<bool> {
        let email = email.clone();
        let taken = self.0.writer.submit(move |batch| {
            let db = &batch.db;
            let kept = db.first(
                "UPDATE codes SET tries = tries + 1
                 WHERE email = $1 AND expires_at > $2 AND tries < $3 RETURNING digest",
                &[&email.as_str(), &micros(now), &TRIES_MAX],
                |row| row.digest(0),
            )?;
            let known = kept.is_some();
            let right = same(&kept.unwrap_or_default(), &digest) && known;
            let used = if right { email.as_str() } else { "" };
            execute(db, "DELETE FROM codes WHERE email = $1", &[&used])?;
            Ok(right)
        });
        taken.await
    }
}

pub(crate) fn prune(db: &Db<'_>, now: Timestamp) -> Result<()> {
    execute(db, "DELETE FROM codes WHERE expires_at <= $1", &[&micros(now)]).map(drop)
}

/// Takes as long for one wrong byte as for thirty.
fn same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    let differs = one.iter().zip(other).fold(0, |differs, (a, b)| black_box(differs | (a ^ b)));
    differs == 0
}
