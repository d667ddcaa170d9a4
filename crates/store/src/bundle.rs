//! Bundles of secrets, as whoever seals them hands them in: nothing here can read one.

use anyhow::Context;
use jiff::Timestamp;
use model::secret::BUNDLES_MAX;
use model::{BundleName, Conflict, Error, OwnerId, Result};

use crate::Store;
use crate::change::execute;
use crate::db::{Db, Row};
use crate::read::{micros, timestamp};

/// Everything about a bundle but its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleRecord {
    pub owner: OwnerId,
    pub name: BundleName,
    pub key_names: Vec<String>,
    pub created_at: Timestamp,
    pub rotated_at: Option<Timestamp>,
}

/// Where the values of a bundle are.
#[derive(Clone, PartialEq, Eq)]
pub struct Kept {
    /// `sealed`, or the name of another keeper of secrets.
    pub place: String,
    /// The sealed values, or what finds them there.
    pub value: Vec<u8>,
}

/// In the database itself.
const SEALED: &str = "sealed";

const COLUMNS: &str = "owner, name, key_names, created_at, rotated_at, place, value";

impl Store {
    /// `Conflict` when there is one of that name, `Exhausted` when there are too many.
    pub async fn create_bundle(&self, record: BundleRecord, kept: Kept) -> Result<()> {
        let key_names = names_text(&record.key_names)?;
        let created = self.0.writer.submit(move |batch| {
            let db = &batch.db;
            let owner = record.owner.as_str();
            let sql = "SELECT count(*) FROM secret_bundles WHERE owner = $1 AND name <> $2";
            let count = db.first(sql, &[&owner, &record.name.as_str()], |row| row.get::<i64>(0))?;
            let count = count.unwrap_or_default();
            if usize::try_from(count).is_ok_and(|count| count >= BUNDLES_MAX) {
                return Err(too_many());
            }
            let inserted = execute(
                db,
                "INSERT INTO secret_bundles (owner, name, key_names, place, value, created_at)
                 VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
                &[
                    &owner,
                    &record.name.as_str(),
                    &key_names,
                    &kept.place,
                    &kept.value,
                    &micros(record.created_at),
                ],
            )?;
            if inserted == 0 {
                let detail = format!("you already have a bundle named {}", record.name);
                return Err(Error::Conflict { code: Conflict::NameTaken, detail });
            }
            refer(db, &kept)
        });
        created.await
    }

    /// Says that values are about to be written elsewhere. Until a bundle refers to them, they are nobody's.
    pub async fn announce_secret(&self, found_at: &[u8], at: Timestamp) -> Result<()> {
        let found_at = found_at.to_vec();
        let announced = self.0.writer.submit(move |batch| announce(&batch.db, &found_at, at));
        announced.await
    }

    /// What was announced, or given up, before that, and to which no bundle refers; some at a time.
    pub async fn unclaimed_secrets(&self, before: Timestamp) -> Result<Vec<Vec<u8>>> {
        self.read(move |db| {
            let sql = "SELECT found_at FROM secrets_elsewhere WHERE at < $1 ORDER BY at LIMIT 100";
            db.all(sql, &[&micros(before)], |row| row.get(0))
        })
        .await
    }

    /// It is not there any more.
    pub async fn forget_secret(&self, found_at: &[u8]) -> Result<()> {
        let found_at = found_at.to_vec();
        let forgotten = self.0.writer.submit(move |batch| {
            let sql = "DELETE FROM secrets_elsewhere WHERE found_at = $1";
            execute(&batch.db, sql, &[&found_at])
        });
        forgotten.await.map(drop)
    }

    /// Replaces all values. Answers with what was kept before; `NotFound` when there was nothing.
    pub async fn rotate_bundle(
        &self,
        owner: &OwnerId,
        name: &BundleName,
        key_names: &[String],
        (kept, at): (Kept, Timestamp),
    ) -> Result<Kept> {
        let key_names = names_text(key_names)?;
        let (owner, name) = (owner.clone(), name.clone());
        let rotated = self.0.writer.submit(move |batch| {
            let before = kept_of(&batch.db, &owner, &name)?;
            let before = before.ok_or_else(|| no_bundle(&name))?;
            execute(
                &batch.db,
                "UPDATE secret_bundles SET key_names = $1, place = $2, value = $3, rotated_at = $4
                 WHERE owner = $5 AND name = $6",
                &[
                    &key_names,
                    &kept.place,
                    &kept.value,
                    &micros(at),
                    &owner.as_str(),
                    &name.as_str(),
                ],
            )?;
            refer(&batch.db, &kept)?;
            give_up(&batch.db, &before, at)?;
            Ok(before)
        });
        rotated.await
    }

    /// The same values, kept otherwise; nothing when they were rotated or deleted meanwhile.
    pub async fn rekeep_bundle(
        &self,
        record: &BundleRecord,
        before: Kept,
        now: Kept,
    ) -> Result<bool> {
        let (owner, name) = (record.owner.clone(), record.name.clone());
        let kept = self.0.writer.submit(move |batch| {
            execute(
                &batch.db,
                "UPDATE secret_bundles SET place = $1, value = $2
                 WHERE owner = $3 AND name = $4 AND place = $5 AND value = $6",
                &[
                    &now.place,
                    &now.value,
                    &owner.as_str(),
                    &name.as_str(),
                    &before.place,
                    &before.value,
                ],
            )
        });
        Ok(kept.await? == 1)
    }

    /// Answers with what was kept; `NotFound` when there was nothing.
    pub async fn delete_bundle(&self, owner: &OwnerId, name: &BundleName) -> Result<Kept> {
        let (owner, name) = (owner.clone(), name.clone());
        let deleted = self.0.writer.submit(move |batch| {
            let before = kept_of(&batch.db, &owner, &name)?;
            let before = before.ok_or_else(|| no_bundle(&name))?;
            execute(
                &batch.db,
                "DELETE FROM secret_bundles WHERE owner = $1 AND name = $2",
                &[&owner.as_str(), &name.as_str()],
            )?;
            give_up(&batch.db, &before, Timestamp::now())?;
            Ok(before)
        });
        deleted.await
    }

    /// By name.
    pub async fn list_bundles(&self, owner: &OwnerId) -> Result<Vec<BundleRecord>> {
        let owner = owner.clone();
        self.read(move |db| {
            let sql = "SELECT owner, name, key_names, created_at, rotated_at FROM secret_bundles
                       WHERE owner = $1 ORDER BY name";
            db.all(sql, &[&owner.as_str()], record)
        })
        .await
    }

    /// With where its values are.
    pub async fn bundle(
        &self,
        owner: &OwnerId,
        name: &BundleName,
    ) -> Result<Option<(BundleRecord, Kept)>> {
        let (owner, name) = (owner.clone(), name.clone());
        self.read(move |db| {
            let sql =
                format!("SELECT {COLUMNS} FROM secret_bundles WHERE owner = $1 AND name = $2");
            db.first(&sql, &[&owner.as_str(), &name.as_str()], with_kept)
        })
        .await
    }

    /// Everybody's that are sealed, after one of them, a page at a time: to seal them anew.
    pub async fn sealed_bundles(
        &self,
        after: Option<(OwnerId, BundleName)>,
    ) -> Result<Vec<(BundleRecord, Kept)>> {
        let (owner, name) = after.map_or_else(Default::default, |(owner, name)| {
            (owner.as_str().to_owned(), name.as_str().to_owned())
        });
        self.read(move |db| {
            let sql = format!(
                "SELECT {COLUMNS} FROM secret_bundles
                 WHERE place = 'sealed' AND (owner > $1 OR (owner = $1 AND name > $2))
                 ORDER BY owner, name LIMIT 20"
            );
            db.all(&sql, &[&owner, &name], with_kept)
        })
        .await
    }
}

fn announce(db: &Db<'_>, found_at: &[u8], at: Timestamp) -> Result<()> {
    let sql = "INSERT INTO secrets_elsewhere (found_at, at) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    execute(db, sql, &[&found_at, &micros(at)]).map(drop)
}

/// From now on a bundle refers to it. `Unavailable` when it took so long to write that it was taken for nobody's.
fn refer(db: &Db<'_>, kept: &Kept) -> Result<()> {
    if kept.place == SEALED {
        return Ok(());
    }
    let sql = "DELETE FROM secrets_elsewhere WHERE found_at = $1";
    if execute(db, sql, &[&kept.value])? == 0 {
        return Err(Error::unavailable("the values took too long to write; try again"));
    }
    Ok(())
}

/// No bundle refers to it any more.
fn give_up(db: &Db<'_>, kept: &Kept, at: Timestamp) -> Result<()> {
    if kept.place == SEALED { Ok(()) } else { announce(db, &kept.value, at) }
}

fn too_many() -> Error {
    Error::Exhausted {
        detail: format!("quota of {BUNDLES_MAX} secret bundles is used up; delete one"),
        retry_after: std::time::Duration::from_secs(3600),
    }
}

fn no_bundle(name: &BundleName) -> Error {
    Error::NotFound { what: "secret bundle", id: name.to_string() }
}

fn names_text(names: &[String]) -> Result<String> {
    Ok(serde_json::to_string(names).context("write the names of keys")?)
}

fn kept_of(db: &Db<'_>, owner: &OwnerId, name: &BundleName) -> Result<Option<Kept>> {
    let sql = "SELECT place, value FROM secret_bundles WHERE owner = $1 AND name = $2";
    let kept = |row: &Row<'_>| Ok(Kept { place: row.get(0)?, value: row.get(1)? });
    db.first(sql, &[&owner.as_str(), &name.as_str()], kept)
}

fn with_kept(row: &Row<'_>) -> Result<(BundleRecord, Kept)> {
    Ok((record(row)?, Kept { place: row.get(5)?, value: row.get(6)? }))
}

fn record(row: &Row<'_>) -> Result<BundleRecord> {
    let key_names: String = row.get(2)?;
    let rotated_at: Option<i64> = row.get(4)?;
    Ok(BundleRecord {
        owner: row.parsed(0)?,
        name: row.parsed(1)?,
        key_names: serde_json::from_str(&key_names).context("read the names of keys")?,
        created_at: timestamp(row.get(3)?)?,
        rotated_at: rotated_at.map(timestamp).transpose()?,
    })
}
