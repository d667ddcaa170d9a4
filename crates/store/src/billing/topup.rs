//! Automatic payments: wanted by an owner, begun when the balance is low, one at a time, each with an id of its
//! own, so that trying again never pays twice.

use jiff::Timestamp;
use model::{OwnerId, Result};

use crate::Store;
use crate::billing::{Movement, open, post};
use crate::change::execute;
use crate::db::Row;
use crate::read::{micros, timestamp};

/// Failed payments of an owner in a day, before no more are begun.
const FAILURES_MAX: i64 = 3;
const FAILURES_COUNT_FOR_USEC: i64 = 86_400_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AutoTopup {
    pub enabled: bool,
    /// A balance of this or less begins a payment.
    pub threshold_cents: i64,
    pub topup_cents: i64,
}

/// A payment whose end is not known yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topup {
    /// `top_…`; what the other side knows it by.
    pub id: String,
    pub owner: OwnerId,
    pub cents: i64,
    pub customer: String,
    /// When it was begun.
    pub at: Timestamp,
}

impl Store {
    pub async fn auto_topup(&self, owner: &OwnerId) -> Result<AutoTopup> {
        let owner = owner.clone();
        let found = self.read(move |db| {
            let sql =
                "SELECT enabled, threshold_cents, topup_cents FROM auto_topups WHERE owner = $1";
            let row = |row: &Row<'_>| {
                Ok(AutoTopup {
                    enabled: row.flag(0)?,
                    threshold_cents: row.get(1)?,
                    topup_cents: row.get(2)?,
                })
            };
            db.first(sql, &[&owner.as_str()], row)
        });
        Ok(found.await?.unwrap_or_default())
    }

    pub async fn set_auto_topup(&self, owner: &OwnerId, wanted: AutoTopup) -> Result<()> {
        let owner = owner.clone();
        let set = self.0.writer.submit(move |batch| {
            execute(
                &batch.db,
                "INSERT INTO auto_topups (owner, enabled, threshold_cents, topup_cents)
                 VALUES ($1, $2, $3, $4)
                 ON CONFLICT (owner) DO UPDATE SET enabled = excluded.enabled,
                   threshold_cents = excluded.threshold_cents, topup_cents = excluded.topup_cents",
                &[
                    &owner.as_str(),
                    &i64::from(wanted.enabled),
                    &wanted.threshold_cents,
                    &wanted.topup_cents,
                ],
            )
        });
        set.await.map(drop)
    }

    /// Who pays for an owner, as Stripe calls them.
    pub async fn set_payer(&self, owner: &OwnerId, customer: &str) -> Result<()> {
        let (owner, customer) = (owner.clone(), customer.to_owned());
        let set = self.0.writer.submit(move |batch| {
            execute(
                &batch.db,
                "INSERT INTO payers (owner, customer) VALUES ($1, $2)
                 ON CONFLICT (owner) DO UPDATE SET customer = excluded.customer",
                &[&owner.as_str(), &customer],
            )
        });
        set.await.map(drop)
    }

    pub async fn payer(&self, owner: &OwnerId) -> Result<Option<String>> {
        let owner = owner.clone();
        self.read(move |db| {
            let sql = "SELECT customer FROM payers WHERE owner = $1";
            db.first(sql, &[&owner.as_str()], |row| row.get(0))
        })
        .await
    }

    /// Begins a payment for everybody whose balance is low, and answers with all that are not at their end.
    pub async fn due_topups(&self, now: Timestamp) -> Result<Vec<Topup>> {
        let at = micros(now);
        let begun = self.0.writer.submit(move |batch| {
            let db = &batch.db;
            let sql = "SELECT auto_topups.owner, topup_cents FROM auto_topups
                 JOIN balances ON balances.owner = auto_topups.owner
                 JOIN payers ON payers.owner = auto_topups.owner
                 WHERE enabled = 1 AND balances.cents * 1000000 - balances.unbilled_microcents
                     <= threshold_cents * 1000000
                   AND NOT EXISTS (SELECT 1 FROM topups
                     WHERE topups.owner = auto_topups.owner AND topups.state = 'pending')
                   AND (SELECT count(*) FROM topups WHERE topups.owner = auto_topups.owner
                     AND topups.state = 'failed' AND topups.at > $1) < $2";
            let since = at - FAILURES_COUNT_FOR_USEC;
            let row = |row: &Row<'_>| Ok((row.get::<String>(0)?, row.get::<i64>(1)?));
            for (owner, cents) in db.all(sql, &[&since, &FAILURES_MAX], row)? {
                let id = format!("top_{}", uuid::Uuid::now_v7().simple());
                execute(
                    db,
                    "INSERT INTO topups (id, owner, cents, state, at)
                     VALUES ($1, $2, $3, 'pending', $4) ON CONFLICT DO NOTHING",
                    &[&id, &owner, &cents, &at],
                )?;
            }
            Ok(())
        });
        begun.await?;
        self.read(|db| {
            let sql = "SELECT topups.id, topups.owner, topups.cents, payers.customer, topups.at
                       FROM topups JOIN payers ON payers.owner = topups.owner WHERE topups.state = 'pending'";
            db.all(sql, &[], |row| {
                Ok(Topup {
                    id: row.get(0)?,
                    owner: row.parsed(1)?,
                    cents: row.get(2)?,
                    customer: row.get(3)?,
                    at: timestamp(row.get(4)?)?,
                })
            })
        })
        .await
    }

    /// The end of a payment. Told again, it changes nothing; one that failed may still succeed, because the
    /// other side is right about its money.
    pub async fn end_topup(&self, id: &str, paid: bool, at: Timestamp) -> Result<bool> {
        let (id, tariff) = (id.to_owned(), self.tariff());
        let ended = self.0.writer.submit(move |batch| {
            let db = &batch.db;
            let sql = "SELECT owner, cents FROM topups WHERE id = $1";
            let row = |row: &Row<'_>| Ok((row.get::<String>(0)?, row.get::<i64>(1)?));
            let Some((owner, cents)) = db.first(sql, &[&id], row)? else { return Ok(false) };
            if !paid {
                let failed =
                    "UPDATE topups SET state = 'failed' WHERE id = $1 AND state = 'pending'";
                return Ok(execute(db, failed, &[&id])? == 1);
            }
            execute(db, "UPDATE topups SET state = 'paid' WHERE id = $1", &[&id])?;
            open(db, &owner, &tariff)?;
            let movement = Movement {
                cents,
                kind: "topup",
                description: "Automatic top-up".into(),
                reference: Some(format!("topup:{id}")),
                at,
            };
            post(db, &owner, &movement)
        });
        ended.await
    }
}
