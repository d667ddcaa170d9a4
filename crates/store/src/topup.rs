//! Balances that are filled up by themselves: when, by how much, and with what.

use jiff::{SignedDuration, Timestamp};
use model::{OwnerId, Result};

use crate::Store;
use crate::change::execute;
use crate::read::micros;
use crate::writer::Pending;

/// A payment that was asked for and not heard of is asked for again after this.
const ASKED_AGAIN_AFTER: SignedDuration = SignedDuration::from_hours(1);

/// When and by how much a balance is filled up by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AutoTopup {
    pub enabled: bool,
    /// Below this balance.
    pub threshold_cents: i64,
    pub amount_cents: i64,
}

/// What an owner paid with last, as the payment service calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayingWith {
    pub customer: String,
    pub payment_method: String,
}

/// A payment to ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topup {
    pub owner: OwnerId,
    pub amount_cents: i64,
    pub with: PayingWith,
    /// Names this payment, with the owner.
    pub asked_at: Timestamp,
}

impl Store {
    pub async fn auto_topup(&self, owner: &OwnerId) -> Result<AutoTopup> {
        let owner = owner.clone();
        self.read(move |db| {
            let sql = "SELECT topup_enabled, topup_threshold_cents, topup_amount_cents FROM purses
                       WHERE owner = $1";
            let found = db.first(sql, &[&owner.as_str()], |row| {
                let (threshold_cents, amount_cents) = (row.get(1)?, row.get(2)?);
                Ok(AutoTopup { enabled: row.flag(0)?, threshold_cents, amount_cents })
            })?;
            Ok(found.unwrap_or_default())
        })
        .await
    }

    pub fn set_auto_topup(&self, owner: &OwnerId, topup: AutoTopup) -> Pending<()> {
        let owner = owner.clone();
        self.0.writer.submit(move |batch| {
            let enabled = i64::from(topup.enabled);
            execute(
                &batch.db,
                "INSERT INTO purses (owner, topup_enabled, topup_threshold_cents, topup_amount_cents)
                 VALUES ($1, $2, $3, $4) ON CONFLICT (owner) DO UPDATE SET
                 topup_enabled = excluded.topup_enabled,
                 topup_threshold_cents = excluded.topup_threshold_cents,
                 topup_amount_cents = excluded.topup_amount_cents",
                &[&owner.as_str(), &enabled, &topup.threshold_cents, &topup.amount_cents],
            )
            .map(drop)
        })
    }

    pub fn set_paying_with(&self, owner: &OwnerId, with: PayingWith) -> Pending<()> {
        let owner = owner.clone();
        self.0.writer.submit(move |batch| {
            execute(
                &batch.db,
                "UPDATE purses SET customer = $1, payment_method = $2 WHERE owner = $3",
                &[&with.customer, &with.payment_method, &owner.as_str()],
            )
            .map(drop)
        })
    }

    /// Balances that are to be filled up now. Nobody else is told the same one for an hour, or until
    /// money has come.
    pub fn claim_topups(&self, count_max: u32, now: Timestamp) -> Pending<Vec<Topup>> {
        self.0.writer.submit(move |batch| {
            batch.db.all(
                "UPDATE purses SET topup_asked_at = $1 WHERE owner IN (
                     SELECT owner FROM purses
                     WHERE topup_enabled = 1 AND balance_cents < topup_threshold_cents
                     AND customer IS NOT NULL AND payment_method IS NOT NULL
                     AND (topup_asked_at IS NULL OR topup_asked_at <= $2) ORDER BY owner LIMIT $3)
                 RETURNING owner, topup_amount_cents, customer, payment_method",
                &[&micros(now), &micros(now - ASKED_AGAIN_AFTER), &i64::from(count_max)],
                |row| {
                    let with = PayingWith { customer: row.get(2)?, payment_method: row.get(3)? };
                    let (owner, amount_cents) = (row.parsed(0)?, row.get(1)?);
                    Ok(Topup { owner, amount_cents, with, asked_at: now })
                },
            )
        })
    }
}
