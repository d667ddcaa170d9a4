//! Accounts: owners whom an e-mail reaches. There is one per e-mail, whichever way it was made.

use anyhow::Context;
use jiff::Timestamp;
use model::{Email, OwnerId, Plan, Result};

use crate::Store;
use crate::change::execute;
use crate::db::Row;
use crate::key::plan_if_any;
use crate::read::{micros, timestamp};

/// An owner, with an e-mail when it is an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub owner: OwnerId,
    pub email: Option<Email>,
    /// `None`: as its keys have it.
    pub plan: Option<Plan>,
    pub created_at: Timestamp,
}

const COLUMNS: &str = "SELECT id, email, plan, created_at FROM owners";

impl Store {
    /// The account of this e-mail, made now if there is none.
    pub async fn open_account(&self, email: &Email, now: Timestamp) -> Result<Account> {
        let id = format!("usr_{}", uuid::Uuid::new_v4().simple());
        let email = email.clone();
        let made = self.0.writer.submit(move |batch| {
            execute(
                &batch.db,
                "INSERT INTO owners (id, email, created_at) VALUES ($1, $2, $3)
                 ON CONFLICT DO NOTHING",
                &[&id, &email.as_str(), &micros(now)],
            )?;
            let sql = format!("{COLUMNS} WHERE email = $1");
            let found = batch.db.first(&sql, &[&email.as_str()], account)?;
            Ok(found.context("read the account of an e-mail")?)
        });
        made.await
    }

    pub async fn account(&self, owner: &OwnerId) -> Result<Option<Account>> {
        let owner = owner.clone();
        self.read(move |db| {
            let sql = format!("{COLUMNS} WHERE id = $1");
            db.first(&sql, &[&owner.as_str()], account)
        })
        .await
    }

    /// Whether the e-mail has an account.
    pub async fn has_account(&self, email: &Email) -> Result<bool> {
        let email = email.clone();
        self.read(move |db| {
            let sql = format!("{COLUMNS} WHERE email = $1");
            Ok(db.first(&sql, &[&email.as_str()], account)?.is_some())
        })
        .await
    }
}

fn account(row: &Row<'_>) -> Result<Account> {
    Ok(Account {
        owner: row.parsed(0)?,
        email: row.parsed_if_any(1)?,
        plan: plan_if_any(row, 2)?,
        created_at: timestamp(row.get(3)?)?,
    })
}
