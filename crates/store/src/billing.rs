//! Money: a ledger of whole cents that only grows, whose sum is the balance, and what was used and is not a
//! row yet.

mod topup;

use anyhow::Context;
use jiff::Timestamp;
use model::pricing::{MICROCENTS, Prices};
use model::{Error, OwnerId, Result};

use crate::Store;
use crate::change::execute;
use crate::db::{Db, Row};
use crate::read::{micros, timestamp};

pub use topup::{AutoTopup, Topup};

/// Usage becomes a row of the ledger at most this often, so that rows are few.
const POST_EVERY_USEC: i64 = 300 * 1_000_000;
/// Of one movement: a million, in any currency that has cents.
pub const MOVE_CENTS_MAX: i64 = 100_000_000;

/// What things cost, and what a new owner is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tariff {
    pub prices: Prices,
    pub signup_credit_cents: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Balance {
    /// The sum of the ledger.
    pub cents: i64,
    /// Used since, in millionths of a cent.
    pub unbilled_microcents: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// `txn_…`.
    pub id: String,
    pub cents: i64,
    pub kind: String,
    pub description: String,
    pub at: Timestamp,
}

/// A movement of money. With a reference it happens once, however often it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Movement {
    pub cents: i64,
    pub kind: &'static str,
    pub description: String,
    pub reference: Option<String>,
    pub at: Timestamp,
}

impl Balance {
    /// Whether there is something left to spend.
    pub fn has_credit(&self) -> bool {
        i128::from(self.cents) * i128::from(MICROCENTS) > i128::from(self.unbilled_microcents)
    }
}

impl Store {
    /// Before anything is counted; until then everything is free.
    pub fn set_tariff(&self, tariff: Tariff) {
        *self.0.tariff.write().unwrap_or_else(std::sync::PoisonError::into_inner) = tariff;
    }

    pub(crate) fn tariff(&self) -> Tariff {
        *self.0.tariff.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Opens the account of an owner who has none yet.
    pub async fn balance(&self, owner: &OwnerId) -> Result<Balance> {
        if let Some(known) = self.known_balance(owner).await? {
            return Ok(known);
        }
        let (of, tariff) = (owner.clone(), self.tariff());
        self.0.writer.submit(move |batch| open(&batch.db, of.as_str(), &tariff)).await?;
        let opened = self.known_balance(owner).await?;
        Ok(opened.context("the account was opened a moment ago")?)
    }

    /// Whether it was not known by its reference.
    pub async fn move_money(&self, owner: &OwnerId, movement: Movement) -> Result<bool> {
        let sane = 1..=MOVE_CENTS_MAX.unsigned_abs();
        if !sane.contains(&movement.cents.unsigned_abs()) {
            let detail = format!("must be 1 to {MOVE_CENTS_MAX} cents");
            return Err(Error::invalid("cents", detail));
        }
        let (owner, tariff) = (owner.clone(), self.tariff());
        let moved = self.0.writer.submit(move |batch| {
            open(&batch.db, owner.as_str(), &tariff)?;
            post(&batch.db, owner.as_str(), &movement)
        });
        moved.await
    }

    /// Newest first.
    pub async fn transactions(
        &self,
        owner: &OwnerId,
        limit: u32,
        offset: u32,
    ) -> Result<Vec<Transaction>> {
        let owner = owner.clone();
        self.read(move |db| {
            let sql = "SELECT id, cents, kind, description, at FROM ledger WHERE owner = $1
                       ORDER BY at DESC, id DESC LIMIT $2 OFFSET $3";
            let (limit, offset) = (i64::from(limit), i64::from(offset));
            db.all(sql, &[&owner.as_str(), &limit, &offset], transaction)
        })
        .await
    }

    /// Owners with compute and without credit. Whoever has the operator's plan, by itself, by its
    /// organisation or else by a key, needs none.
    pub async fn spent_owners(&self) -> Result<Vec<OwnerId>> {
        self.read(|db| {
            let sql = "SELECT DISTINCT legs.owner FROM legs
                       LEFT JOIN balances ON balances.owner = legs.owner
                       LEFT JOIN owners ON owners.id = legs.owner
                       LEFT JOIN members ON members.owner = legs.owner
                       LEFT JOIN organisations ON organisations.id = members.organisation
                       WHERE legs.ended_at IS NULL
                         AND coalesce(balances.cents, 0) * 1000000
                           <= coalesce(balances.unbilled_microcents, 0)
                         AND coalesce(owners.plan, organisations.plan,
                           (SELECT max(api_keys.plan) FROM api_keys
                            WHERE api_keys.owner = legs.owner AND api_keys.plan = 'operator'
                              AND api_keys.revoked_at IS NULL),
                           'free') <> 'operator'";
            db.all(sql, &[], |row| row.parsed(0))
        })
        .await
    }

    async fn known_balance(&self, owner: &OwnerId) -> Result<Option<Balance>> {
        let owner = owner.clone();
        self.read(move |db| {
            let sql = "SELECT cents, unbilled_microcents FROM balances WHERE owner = $1";
            let row = |row: &Row<'_>| {
                Ok(Balance { cents: row.get(0)?, unbilled_microcents: row.get(1)? })
            };
            db.first(sql, &[&owner.as_str()], row)
        })
        .await
    }
}

/// Makes an account, with what a new owner is given, unless there is one.
pub(crate) fn open(db: &Db<'_>, owner: &str, tariff: &Tariff) -> Result<()> {
    let opened =
        execute(db, "INSERT INTO balances (owner) VALUES ($1) ON CONFLICT DO NOTHING", &[&owner])?;
    if opened == 0 || tariff.signup_credit_cents <= 0 {
        return Ok(());
    }
    let gift = Movement {
        cents: tariff.signup_credit_cents,
        kind: "credit",
        description: "Welcome".into(),
        reference: Some(format!("signup:{owner}")),
        at: Timestamp::now(),
    };
    post(db, owner, &gift).map(drop)
}

/// What was used; it becomes a row when it is a cent and some time has passed. The account is there.
pub(crate) fn owe(db: &Db<'_>, owner: &str, microcents: i64, at: i64) -> Result<()> {
    if microcents == 0 {
        return Ok(());
    }
    execute(
        db,
        "UPDATE balances SET unbilled_microcents = unbilled_microcents + $1 WHERE owner = $2",
        &[&microcents, &owner],
    )?;
    let sql = "SELECT unbilled_microcents, posted_at FROM balances WHERE owner = $1";
    let row = |row: &Row<'_>| Ok((row.get::<i64>(0)?, row.get::<i64>(1)?));
    let Some((unbilled, posted_at)) = db.first(sql, &[&owner], row)? else { return Ok(()) };
    let cents = unbilled / MICROCENTS;
    // A clock that was set back must not hold it up for good.
    let recent = (posted_at..posted_at + POST_EVERY_USEC).contains(&at);
    if cents == 0 || recent {
        return Ok(());
    }
    let usage = Movement {
        cents: -cents,
        kind: "usage",
        description: "Sandbox usage".into(),
        reference: None,
        at: timestamp(at)?,
    };
    post(db, owner, &usage)?;
    execute(
        db,
        "UPDATE balances SET unbilled_microcents = unbilled_microcents - $1, posted_at = $2
         WHERE owner = $3",
        &[&(cents * MICROCENTS), &at, &owner],
    )
    .map(drop)
}

/// Row and sum together. Whether its reference was not known.
pub(crate) fn post(db: &Db<'_>, owner: &str, movement: &Movement) -> Result<bool> {
    let id = format!("txn_{}", uuid::Uuid::now_v7().simple());
    let Movement { cents, kind, description, reference, at } = movement;
    let inserted = execute(
        db,
        "INSERT INTO ledger (id, owner, cents, kind, description, reference, at)
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
        &[&id, &owner, cents, kind, description, reference, &micros(*at)],
    )?;
    if inserted == 0 {
        return Ok(false);
    }
    let summed =
        execute(db, "UPDATE balances SET cents = cents + $1 WHERE owner = $2", &[cents, &owner])?;
    if summed == 0 {
        return Err(anyhow::anyhow!("money for an account that is not there").into());
    }
    Ok(true)
}

fn transaction(row: &Row<'_>) -> Result<Transaction> {
    transaction_from(row, 0)
}

pub(crate) fn transaction_from(row: &Row<'_>, from: usize) -> Result<Transaction> {
    Ok(Transaction {
        id: row.get(from)?,
        cents: row.get(from + 1)?,
        kind: row.get(from + 2)?,
        description: row.get(from + 3)?,
        at: timestamp(row.get(from + 4)?)?,
    })
}
