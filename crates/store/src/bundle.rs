//! Bundles of secrets, as whoever seals them hands them in: nothing here can read one.

use anyhow::Context;
use jiff::Timestamp;
use model::secret::BUNDLES_MAX;
use model::{BundleName, Conflict, Error, OwnerId, Result};
use rusqlite::{OptionalExtension, Row, params};

use crate::Store;
use crate::change::execute;
use crate::read::{all, micros, parsed, unreadable};

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

const COLUMNS: &str = "owner, name, key_names, created_at, rotated_at, place, value";

impl Store {
    /// `Conflict` when there is one of that name, `Exhausted` when there are too many.
    pub async fn create_bundle(&self, record: BundleRecord, kept: Kept) -> Result<()> {
        let key_names = names_text(&record.key_names)?;
        let created = self.0.writer.submit(move |batch| {
            let db = batch.connection;
            let owner = record.owner.as_str();
            let count: i64 = db
                .query_row(
                    "SELECT count(*) FROM secret_bundles WHERE owner = $1 AND name <> $2",
                    params![owner, record.name.as_str()],
                    |row| row.get(0),
                )
                .context("count the bundles")?;
            if usize::try_from(count).is_ok_and(|count| count >= BUNDLES_MAX) {
                return Err(too_many());
            }
            let inserted = execute(
                db,
                "INSERT INTO secret_bundles (owner, name, key_names, place, value, created_at)
                 VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
                params![
                    owner,
                    record.name.as_str(),
                    key_names,
                    kept.place,
                    kept.value,
                    micros(record.created_at)
                ],
            )?;
            if inserted == 0 {
                let detail = format!("you already have a bundle named {}", record.name);
                return Err(Error::Conflict { code: Conflict::NameTaken, detail });
            }
            Ok(())
        });
        created.await
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
            let before = kept_of(batch.connection, &owner, &name)?;
            let before = before.ok_or_else(|| no_bundle(&name))?;
            execute(
                batch.connection,
                "UPDATE secret_bundles SET key_names = $1, place = $2, value = $3, rotated_at = $4
                 WHERE owner = $5 AND name = $6",
                params![
                    key_names,
                    kept.place,
                    kept.value,
                    micros(at),
                    owner.as_str(),
                    name.as_str()
                ],
            )?;
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
                batch.connection,
                "UPDATE secret_bundles SET place = $1, value = $2
                 WHERE owner = $3 AND name = $4 AND place = $5 AND value = $6",
                params![
                    now.place,
                    now.value,
                    owner.as_str(),
                    name.as_str(),
                    before.place,
                    before.value
                ],
            )
        });
        Ok(kept.await? == 1)
    }

    /// Answers with what was kept; `NotFound` when there was nothing.
    pub async fn delete_bundle(&self, owner: &OwnerId, name: &BundleName) -> Result<Kept> {
        let (owner, name) = (owner.clone(), name.clone());
        let deleted = self.0.writer.submit(move |batch| {
            let before = kept_of(batch.connection, &owner, &name)?;
            let before = before.ok_or_else(|| no_bundle(&name))?;
            execute(
                batch.connection,
                "DELETE FROM secret_bundles WHERE owner = $1 AND name = $2",
                params![owner.as_str(), name.as_str()],
            )?;
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
            all(db, sql, params![owner.as_str()], record)
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
            db.prepare_cached(&sql)?
                .query_row(params![owner.as_str(), name.as_str()], with_kept)
                .optional()
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
            all(db, &sql, params![owner, name], with_kept)
        })
        .await
    }
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

fn kept_of(db: &rusqlite::Connection, owner: &OwnerId, name: &BundleName) -> Result<Option<Kept>> {
    let sql = "SELECT place, value FROM secret_bundles WHERE owner = $1 AND name = $2";
    let row = |row: &Row<'_>| Ok(Kept { place: row.get(0)?, value: row.get(1)? });
    let found = db.query_row(sql, params![owner.as_str(), name.as_str()], row).optional();
    Ok(found.context("read a bundle")?)
}

fn with_kept(row: &Row<'_>) -> rusqlite::Result<(BundleRecord, Kept)> {
    Ok((record(row)?, Kept { place: row.get(5)?, value: row.get(6)? }))
}

fn record(row: &Row<'_>) -> rusqlite::Result<BundleRecord> {
    let at = |column: usize, micros: i64| {
        Timestamp::from_microsecond(micros).map_err(|error| unreadable(column, error))
    };
    let key_names: String = row.get(2)?;
    let rotated_at: Option<i64> = row.get(4)?;
    Ok(BundleRecord {
        owner: parsed(row, 0)?,
        name: parsed(row, 1)?,
        key_names: serde_json::from_str(&key_names).map_err(|error| unreadable(2, error))?,
        created_at: at(3, row.get(3)?)?,
        rotated_at: rotated_at.map(|micros| at(4, micros)).transpose()?,
    })
}
