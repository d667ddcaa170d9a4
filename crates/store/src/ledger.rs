//! Money: a ledger that is only ever added to, and whose sum is the balance. One payment is one entry,
//! whoever tells of it and how often.

use anyhow::Context;
use jiff::Timestamp;
use model::{MICRO_CENTS, OwnerId, Prices, Result};

use crate::Store;
use crate::change::execute;
use crate::db::{Db, Row};
use crate::lease;
use crate::read::{micros, timestamp};
use crate::writer::Pending;

/// Days of use that are charged at once; the rest is charged the next time.
const CHARGED_AT_ONCE: i64 = 10_000;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// `txn_…`
    pub id: String,
    /// Below zero for what was used.
    pub amount_cents: i64,
    /// After it.
    pub balance_cents: i64,
    pub description: String,
    pub at: Timestamp,
}

/// Money that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credit {
    pub amount_cents: i64,
    pub description: String,
    /// A second credit with the same one is not entered.
    pub reference: String,
}

struct Posting<'a> {
    owner: &'a str,
    amount_cents: i64,
    description: &'a str,
    reference: Option<&'a str>,
    at: Timestamp,
}

impl Store {
    /// Zero for whoever never had any.
    pub async fn balance_cents(&self, owner: &OwnerId) -> Result<i64> {
        let owner = owner.clone();
        self.read(move |db| {
            let sql = "SELECT balance_cents FROM purses WHERE owner = $1";
            Ok(db.first(sql, &[&owner.as_str()], |row| row.get(0))?.unwrap_or_default())
        })
        .await
    }

    /// Enters money; `None` when that reference was entered before.
    pub fn credit(&self, owner: &OwnerId, credit: Credit, at: Timestamp) -> Pending<Option<Entry>> {
        let owner = owner.clone();
        self.0.writer.submit(move |batch| {
            post(
                &batch.db,
                &Posting {
                    owner: owner.as_str(),
                    amount_cents: credit.amount_cents,
                    description: &credit.description,
                    reference: Some(&credit.reference),
                    at,
                },
            )
        })
    }

    /// One page, the newest first, and how many there are.
    pub async fn entries(
        &self,
        owner: &OwnerId,
        limit: u32,
        offset: u64,
    ) -> Result<(Vec<Entry>, u64)> {
        let owner = owner.clone();
        let (limit, offset) = (i64::from(limit), i64::try_from(offset).unwrap_or(i64::MAX));
        self.read(move |db| {
            db.at_one_moment(|| {
                let page = db.all(
                    "SELECT id, amount_cents, balance_cents, description, at FROM ledger
                     WHERE owner = $1 ORDER BY number DESC LIMIT $2 OFFSET $3",
                    &[&owner.as_str(), &limit, &offset],
                    entry,
                )?;
                let count = "SELECT entries FROM purses WHERE owner = $1";
                let total = db.first(count, &[&owner.as_str()], |row| row.get::<i64>(0))?;
                Ok((page, u64::try_from(total.unwrap_or_default()).unwrap_or_default()))
            })
        })
        .await
    }

    /// Charges everything that was used and not charged yet, at the prices of now.
    pub fn charge(&self, prices: Prices, at: Timestamp) -> Pending<()> {
        let fence = self.1;
        self.0.writer.submit(move |batch| {
            lease::check(&batch.db, fence)?;
            charge(&batch.db, prices, at)
        })
    }

    /// Owners who have nothing left, of those who ever used or had anything.
    pub async fn owners_without_credit(&self) -> Result<Vec<OwnerId>> {
        self.read(|db| {
            let sql = "SELECT owner FROM purses WHERE balance_cents <= 0 ORDER BY owner";
            db.all(sql, &[], |row| row.parsed(0))
        })
        .await
    }

    /// Whose the entry with this reference is.
    pub async fn owner_of_payment(&self, reference: &str) -> Result<Option<OwnerId>> {
        let reference = reference.to_owned();
        self.read(move |db| {
            let sql = "SELECT owner FROM ledger WHERE reference = $1";
            db.first(sql, &[&reference], |row| row.parsed(0))
        })
        .await
    }
}

fn entry(row: &Row<'_>) -> Result<Entry> {
    Ok(Entry {
        id: row.get(0)?,
        amount_cents: row.get(1)?,
        balance_cents: row.get(2)?,
        description: row.get(3)?,
        at: timestamp(row.get(4)?)?,
    })
}

/// Enters it and changes the balance; nothing when its reference is known.
fn post(db: &Db<'_>, posting: &Posting<'_>) -> Result<Option<Entry>> {
    let Posting { owner, amount_cents, description, reference, at } = *posting;
    execute(db, "INSERT INTO purses (owner) VALUES ($1) ON CONFLICT DO NOTHING", &[&owner])?;
    // An update, so that another server waits here until this one is done.
    let (number, balance_cents) = db
        .first(
            "UPDATE purses SET entries = entries WHERE owner = $1 RETURNING entries, balance_cents",
            &[&owner],
            |row| Ok((row.get::<i64>(0)? + 1, row.get::<i64>(1)? + amount_cents)),
        )?
        .context("read a balance")?;
    let id = format!("txn_{}", uuid::Uuid::now_v7().simple());
    let entered = execute(
        db,
        "INSERT INTO ledger (owner, number, id, amount_cents, balance_cents, description, reference, at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (reference) DO NOTHING",
        &[&owner, &number, &id, &amount_cents, &balance_cents, &description, &reference, &micros(at)],
    )?;
    if entered == 0 {
        return Ok(None);
    }
    execute(
        db,
        "UPDATE purses SET entries = $1, balance_cents = $2 WHERE owner = $3",
        &[&number, &balance_cents, &owner],
    )?;
    if amount_cents > 0 {
        // What was asked for has come.
        execute(db, "UPDATE purses SET topup_asked_at = NULL WHERE owner = $1", &[&owner])?;
    }
    let description = description.to_owned();
    Ok(Some(Entry { id, amount_cents, balance_cents, description, at }))
}

fn charge(db: &Db<'_>, prices: Prices, at: Timestamp) -> Result<()> {
    let due = db.all(
        "SELECT owner, day, cpu_usec - charged_cpu_usec, mib_ms - charged_mib_ms FROM usage_days
         WHERE cpu_usec > charged_cpu_usec OR mib_ms > charged_mib_ms ORDER BY owner, day LIMIT $1",
        &[&CHARGED_AT_ONCE],
        |row| Ok((row.get::<String>(0)?, row.get::<String>(1)?, row.get(2)?, row.get(3)?)),
    )?;
    for (owner, day, cpu_usec, mib_ms) in due {
        let micro_cents = prices.micro_cents(cpu_usec, mib_ms);
        execute(
            db,
            "UPDATE usage_days SET charged_cpu_usec = charged_cpu_usec + $1,
             charged_mib_ms = charged_mib_ms + $2, charged_micro_cents = charged_micro_cents + $3
             WHERE owner = $4 AND day = $5",
            &[&cpu_usec, &mib_ms, &micro_cents, &owner, &day],
        )?;
        charge_owner(db, &owner, micro_cents, at)?;
    }
    Ok(())
}

/// Whole cents become an entry, the rest waits.
fn charge_owner(db: &Db<'_>, owner: &str, micro_cents: i64, at: Timestamp) -> Result<()> {
    let uncharged = db
        .first(
            "INSERT INTO purses (owner, uncharged_micro_cents) VALUES ($1, $2)
             ON CONFLICT (owner) DO UPDATE SET
             uncharged_micro_cents = purses.uncharged_micro_cents + excluded.uncharged_micro_cents
             RETURNING uncharged_micro_cents",
            &[&owner, &micro_cents],
            |row| row.get::<i64>(0),
        )?
        .context("read what is not charged yet")?;
    let cents = uncharged / MICRO_CENTS;
    if cents == 0 {
        return Ok(());
    }
    let rest = uncharged - cents * MICRO_CENTS;
    let sql = "UPDATE purses SET uncharged_micro_cents = $1 WHERE owner = $2";
    execute(db, sql, &[&rest, &owner])?;
    let description = "Sandbox usage";
    post(db, &Posting { owner, amount_cents: -cents, description, reference: None, at }).map(drop)
}
