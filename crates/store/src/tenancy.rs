//! Organisations, their members, and what an owner may have: its own plan and quota, else those of its
//! organisation, else those of its key and the settings.

use anyhow::Context;
use jiff::Timestamp;
use model::{Conflict, Error, OrganisationId, OwnerId, Plan, QuotaRow, Result, Role};

use crate::Store;
use crate::db::{Db, Row};
use crate::key::plan_if_any;
use crate::read::{micros, timestamp};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Organisation {
    pub id: OrganisationId,
    pub name: String,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub owner: OwnerId,
    pub role: Role,
    pub since: Timestamp,
}

/// What is said about one owner or one organisation; what is absent is as the next one has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitRow {
    pub plan: Option<Plan>,
    pub quota: QuotaRow,
}

/// Whose limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limited {
    Owner(OwnerId),
    Organisation(OrganisationId),
}

impl Store {
    pub async fn create_organisation(&self, name: &str, now: Timestamp) -> Result<Organisation> {
        if name.is_empty() || name.len() > 100 || name.chars().any(char::is_control) {
            return Err(Error::invalid("name", "must be 1 to 100 printable characters"));
        }
        let id: OrganisationId = format!("org_{}", uuid::Uuid::new_v4().simple()).parse()?;
        let made = Organisation { id, name: name.to_owned(), created_at: timestamp(micros(now))? };
        let row = made.clone();
        let inserted = self.0.writer.submit(move |batch| {
            batch.db.execute(
                "INSERT INTO organisations (id, name, created_at) VALUES ($1, $2, $3)",
                &[&row.id.as_str(), &row.name, &micros(row.created_at)],
            )
        });
        inserted.await?;
        Ok(made)
    }

    /// Newest first.
    pub async fn organisations(&self, limit: u32, offset: u32) -> Result<Vec<Organisation>> {
        self.read(move |db| {
            db.all(
                "SELECT id, name, created_at FROM organisations
                 ORDER BY created_at DESC, id LIMIT $1 OFFSET $2",
                &[&i64::from(limit), &i64::from(offset)],
                organisation,
            )
        })
        .await
    }

    /// With its members, in the order of their ids.
    pub async fn organisation(
        &self,
        id: &OrganisationId,
    ) -> Result<Option<(Organisation, Vec<Member>)>> {
        let id = id.clone();
        self.read(move |db| {
            let sql = "SELECT id, name, created_at FROM organisations WHERE id = $1";
            let Some(found) = db.first(sql, &[&id.as_str()], organisation)? else {
                return Ok(None);
            };
            let sql = "SELECT owner, role, since FROM members WHERE organisation = $1
                       ORDER BY owner";
            Ok(Some((found, db.all(sql, &[&id.as_str()], member)?)))
        })
        .await
    }

    /// The owner's role there; `None` for who is not in it.
    pub async fn role_in(&self, id: &OrganisationId, owner: &OwnerId) -> Result<Option<Role>> {
        let (id, owner) = (id.clone(), owner.clone());
        self.read(move |db| {
            let sql = "SELECT role FROM members WHERE organisation = $1 AND owner = $2";
            db.first(sql, &[&id.as_str(), &owner.as_str()], |row| row.parsed(0))
        })
        .await
    }

    /// Makes an owner a member, or changes its role. `Conflict` for a member of another organisation.
    pub async fn put_member(
        &self,
        id: &OrganisationId,
        owner: &OwnerId,
        role: Role,
        now: Timestamp,
    ) -> Result<()> {
        let (id, owner) = (id.clone(), owner.clone());
        let put = self.0.writer.submit(move |batch| {
            let db = &batch.db;
            exists(db, &Limited::Organisation(id.clone()))?;
            exists(db, &Limited::Owner(owner.clone()))?;
            let put = db.execute(
                "INSERT INTO members (owner, organisation, role, since) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (owner) DO UPDATE SET role = excluded.role
                 WHERE members.organisation = excluded.organisation",
                &[&owner.as_str(), &id.as_str(), &role.as_str(), &micros(now)],
            )?;
            if put == 0 {
                let detail = format!("{owner} is a member of another organisation");
                return Err(Error::Conflict { code: Conflict::WrongState, detail });
            }
            Ok(())
        });
        put.await?;
        self.limits_changed()
    }

    /// `NotFound` for who is not in it.
    pub async fn remove_member(&self, id: &OrganisationId, owner: &OwnerId) -> Result<()> {
        let (of, who) = (id.clone(), owner.clone());
        let removed = self.0.writer.submit(move |batch| {
            batch.db.execute(
                "DELETE FROM members WHERE organisation = $1 AND owner = $2",
                &[&of.as_str(), &who.as_str()],
            )
        });
        if removed.await? == 0 {
            return Err(Error::NotFound { what: "member", id: owner.to_string() });
        }
        self.limits_changed()
    }

    /// Replaces all that is said about one; every server goes by it at once.
    pub async fn put_limits(&self, of: &Limited, row: LimitRow) -> Result<()> {
        let of = of.clone();
        let put = self.0.writer.submit(move |batch| {
            let db = &batch.db;
            exists(db, &of)?;
            let plan = row.plan.map(Plan::as_str);
            let sql = match &of {
                Limited::Owner(_) => "UPDATE owners SET plan = $1 WHERE id = $2",
                Limited::Organisation(_) => "UPDATE organisations SET plan = $1 WHERE id = $2",
            };
            db.execute(sql, &[&plan, &of.id()])?;
            let [persistent, ephemeral, disk, stored] =
                row.quota.in_order().map(|max| max.map(i64::from));
            db.execute(
                "INSERT INTO quotas (subject, persistent_max, ephemeral_max,
                   disk_gb_per_tier_max, workspace_gib_max)
                 VALUES ($1, $2, $3, $4, $5) ON CONFLICT (subject) DO UPDATE SET
                 persistent_max = excluded.persistent_max,
                 ephemeral_max = excluded.ephemeral_max,
                 disk_gb_per_tier_max = excluded.disk_gb_per_tier_max,
                 workspace_gib_max = excluded.workspace_gib_max",
                &[&of.id(), &persistent, &ephemeral, &disk, &stored],
            )?;
            Ok(())
        });
        put.await?;
        self.limits_changed()
    }

    /// What is said about one, itself alone. `NotFound` when there is no such thing.
    pub async fn limits_of(&self, of: &Limited) -> Result<LimitRow> {
        let of = of.clone();
        self.read(move |db| {
            let table = match &of {
                Limited::Owner(_) => "owners",
                Limited::Organisation(_) => "organisations",
            };
            let sql = format!(
                "SELECT plan, persistent_max, ephemeral_max, disk_gb_per_tier_max,
                   workspace_gib_max FROM {table}
                 LEFT JOIN quotas ON quotas.subject = {table}.id WHERE {table}.id = $1"
            );
            db.first(&sql, &[&of.id()], |row| limits(row, 0))?.ok_or_else(|| unknown(&of))
        })
        .await
    }

    /// What holds for an owner, its organisation included; `None` for who does not exist.
    pub async fn standing(&self, owner: &OwnerId) -> Result<Option<LimitRow>> {
        let owner = owner.clone();
        self.read(move |db| standing(db, &owner)).await
    }

    fn limits_changed(&self) -> Result<()> {
        self.0.keys.forget()
    }
}

impl Limited {
    fn id(&self) -> &str {
        match self {
            Self::Owner(owner) => owner.as_str(),
            Self::Organisation(id) => id.as_str(),
        }
    }
}

pub(crate) fn standing(db: &Db<'_>, owner: &OwnerId) -> Result<Option<LimitRow>> {
    let rows = db.first(
        "SELECT owners.plan, own.persistent_max, own.ephemeral_max, own.disk_gb_per_tier_max,
         own.workspace_gib_max,
         organisations.plan, theirs.persistent_max, theirs.ephemeral_max,
         theirs.disk_gb_per_tier_max, theirs.workspace_gib_max
         FROM owners
         LEFT JOIN members ON members.owner = owners.id
         LEFT JOIN organisations ON organisations.id = members.organisation
         LEFT JOIN quotas AS own ON own.subject = owners.id
         LEFT JOIN quotas AS theirs ON theirs.subject = organisations.id
         WHERE owners.id = $1",
        &[&owner.as_str()],
        |row| Ok((limits(row, 0)?, limits(row, 5)?)),
    )?;
    Ok(rows.map(|(own, theirs)| LimitRow {
        plan: own.plan.or(theirs.plan),
        quota: own.quota.or(theirs.quota),
    }))
}

fn exists(db: &Db<'_>, of: &Limited) -> Result<()> {
    let sql = match of {
        Limited::Owner(_) => "SELECT id FROM owners WHERE id = $1",
        Limited::Organisation(_) => "SELECT id FROM organisations WHERE id = $1",
    };
    let found = db.first(sql, &[&of.id()], |row| row.get::<String>(0))?;
    found.map(drop).ok_or_else(|| unknown(of))
}

fn unknown(of: &Limited) -> Error {
    let what = match of {
        Limited::Owner(_) => "owner",
        Limited::Organisation(_) => "organisation",
    };
    Error::NotFound { what, id: of.id().to_owned() }
}

fn limits(row: &Row<'_>, first: usize) -> Result<LimitRow> {
    let max = |column: usize| -> Result<Option<u32>> {
        let max: Option<i64> = row.get(first + column)?;
        Ok(max.map(u32::try_from).transpose().context("read a quota")?)
    };
    let quota = QuotaRow {
        persistent_max: max(1)?,
        ephemeral_max: max(2)?,
        disk_gb_per_tier_max: max(3)?,
        workspace_gib_max: max(4)?,
    };
    Ok(LimitRow { plan: plan_if_any(row, first)?, quota })
}

fn organisation(row: &Row<'_>) -> Result<Organisation> {
    Ok(Organisation { id: row.parsed(0)?, name: row.get(1)?, created_at: timestamp(row.get(2)?)? })
}

fn member(row: &Row<'_>) -> Result<Member> {
    Ok(Member { owner: row.parsed(0)?, role: row.parsed(1)?, since: timestamp(row.get(2)?)? })
}
