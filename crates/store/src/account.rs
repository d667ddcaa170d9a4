//! Accounts: owners whom an e-mail reaches. There is one per e-mail, whichever way it was made.

use anyhow::Context;
use jiff::Timestamp;
use model::{Email, OwnerId, Plan, Result};
use rusqlite::{OptionalExtension, Row, params};

use crate::Store;
use crate::change::execute;
use crate::key::plan;
use crate::read::{micros, parsed, unreadable};

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
                batch.connection,
                "INSERT INTO owners (id, email, created_at) VALUES ($1, $2, $3)
                 ON CONFLICT DO NOTHING",
                params![id, email.as_str(), micros(now)],
            )?;
            let sql = format!("{COLUMNS} WHERE email = $1");
            let found = batch
                .connection
                .prepare_cached(&sql)
                .and_then(|mut statement| statement.query_row(params![email.as_str()], account));
            Ok(found.context("read the account of an e-mail")?)
        });
        made.await
    }

    pub async fn account(&self, owner: &OwnerId) -> Result<Option<Account>> {
        let owner = owner.clone();
        self.read(move |db| {
            let sql = format!("{COLUMNS} WHERE id = $1");
            db.prepare_cached(&sql)?.query_row(params![owner.as_str()], account).optional()
        })
        .await
    }

    /// Whether the e-mail has an account.
    pub async fn has_account(&self, email: &Email) -> Result<bool> {
        let email = email.clone();
        self.read(move |db| {
            let sql = format!("{COLUMNS} WHERE email = $1");
            let mut statement = db.prepare_cached(&sql)?;
            let found = statement.query_row(params![email.as_str()], account).optional()?;
            Ok(found.is_some())
        })
        .await
    }
}

fn account(row: &Row<'_>) -> rusqlite::Result<Account> {
    let email: Option<String> = row.get(1)?;
    let email = email.map(|text| text.parse().map_err(|error| unreadable(1, error)));
    let has_plan = row.get::<_, Option<String>>(2)?.is_some();
    let created_at: i64 = row.get(3)?;
    Ok(Account {
        owner: parsed(row, 0)?,
        email: email.transpose()?,
        plan: if has_plan { Some(plan(row, 2)?) } else { None },
        created_at: Timestamp::from_microsecond(created_at).map_err(|e| unreadable(3, e))?,
    })
}
