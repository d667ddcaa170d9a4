//! Subjects of an issuer of tokens, and which owner each of them is.

use anyhow::Context;
use jiff::Timestamp;
use model::{Email, OwnerId, Result};

use crate::Store;
use crate::db::{Db, Row};
use crate::read::micros;

/// Whom a token is for, as its issuer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub issuer: String,
    pub subject: String,
    /// One that the issuer has verified: whose account it is, it is.
    pub email: Option<Email>,
}

impl Store {
    /// The owner that a subject is: since it first came, the account of its e-mail, or a new one.
    pub async fn owner_of(&self, subject: Subject, now: Timestamp) -> Result<OwnerId> {
        let known = subject.clone();
        if let Some(owner) = self.read(move |db| find(db, &known)).await? {
            return Ok(owner);
        }
        let id = format!("usr_{}", uuid::Uuid::new_v4().simple());
        let made = self.0.writer.submit(move |batch| {
            if let Some(owner) = find(&batch.db, &subject)? {
                return Ok(owner);
            }
            let email = subject.email.as_ref().map(Email::as_str);
            batch.db.execute(
                "INSERT INTO owners (id, email, created_at) VALUES ($1, $2, $3)
                 ON CONFLICT DO NOTHING",
                &[&id, &email, &micros(now)],
            )?;
            let owner = batch.db.first(
                "SELECT id FROM owners WHERE id = $1 OR email = $2",
                &[&id, &email],
                owner,
            )?;
            let owner = owner.context("make an owner")?;
            batch.db.execute(
                "INSERT INTO subjects (issuer, subject, owner) VALUES ($1, $2, $3)",
                &[&subject.issuer, &subject.subject, &owner.as_str()],
            )?;
            Ok(owner)
        });
        made.await
    }
}

fn find(db: &Db<'_>, subject: &Subject) -> Result<Option<OwnerId>> {
    db.first(
        "SELECT owner FROM subjects WHERE issuer = $1 AND subject = $2",
        &[&subject.issuer, &subject.subject],
        owner,
    )
}

fn owner(row: &Row<'_>) -> Result<OwnerId> {
    row.parsed(0)
}
