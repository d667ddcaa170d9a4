//! API keys: made once, shown once, looked up by SHA-256. The bcrypt beside it guards the table at
//! rest and is never computed to authenticate a request.

mod mark;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use model::{Error, OwnerId, Plan, QuotaRow, Result};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::Store;
use crate::change::execute;
use crate::db::Row;
use crate::key::mark::{Mark, Seen};
use crate::read::{micros, timestamp};
use crate::tenancy::standing;

/// Low on purpose: the secret is 256 random bits, so there is nothing that stretching could save.
const BCRYPT_COST: u32 = 6;
/// How long a verified key is believed without a look, unless one is revoked.
const BELIEVED_FOR: Duration = Duration::from_secs(5);
const CACHE_MAX: usize = 10_000;

/// How a secret begins; what follows is 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFormat {
    /// `e2a_live_`, from `/v1/api-keys`.
    Live,
    /// `e2a_`, from `/v1/tenants`.
    Tenant,
}

/// What is remembered of a key; the secret is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// `key_…`.
    pub id: String,
    pub owner: OwnerId,
    pub plan: Plan,
    pub name: String,
    /// The first characters of the secret, to tell keys apart.
    pub prefix: String,
    pub created_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

/// A key just made. The secret is shown this once.
#[derive(Clone)]
pub struct NewKey {
    pub record: KeyRecord,
    pub secret: String,
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewKey").field("record", &self.record).finish_non_exhaustive()
    }
}

/// Whom a secret belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub key_id: String,
    pub owner: OwnerId,
    pub plan: Plan,
    /// What it has instead of the plan's.
    pub quota: QuotaRow,
}

/// Keys that were verified a moment ago, by digest. Several processes serve from one database, so
/// nothing in it is believed once any of them has revoked a key.
pub(crate) struct Cache {
    mark: Mark,
    kept: RwLock<Kept>,
}

#[derive(Default)]
struct Kept {
    /// What the mark was when these were read.
    seen: Option<Seen>,
    verified: HashMap<[u8; 32], (Instant, Verified)>,
}

impl Store {
    pub async fn create_key(
        &self,
        owner: &OwnerId,
        plan: Plan,
        format: KeyFormat,
        name: &str,
    ) -> Result<NewKey> {
        if name.is_empty() || name.len() > 100 || name.chars().any(char::is_control) {
            return Err(Error::invalid("name", "must be 1 to 100 printable characters"));
        }
        let secret = format.secret()?;
        let sha256 = digest(&secret);
        let record = KeyRecord {
            id: format!("key_{}", uuid::Uuid::new_v4().simple()),
            owner: owner.clone(),
            plan,
            name: name.to_owned(),
            prefix: secret[..format.prefix_len()].to_owned(),
            created_at: Timestamp::from_microsecond(Timestamp::now().as_microsecond())
                .context("read the clock")?,
            revoked_at: None,
        };
        let hashed = tokio::task::spawn_blocking(move || bcrypt::hash(hex(&sha256), BCRYPT_COST));
        let bcrypt = hashed.await.context("hash a key")?.context("hash a key")?;
        self.insert_key(record.clone(), sha256, bcrypt).await?;
        Ok(NewKey { record, secret })
    }

    /// Revoked ones too, newest first.
    pub async fn list_keys(&self, owner: &OwnerId) -> Result<Vec<KeyRecord>> {
        let owner = owner.clone();
        self.read(move |db| {
            let sql =
                "SELECT api_keys.id, api_keys.owner,
                       coalesce(owners.plan, organisations.plan, api_keys.plan),
                       api_keys.name, prefix,
                       api_keys.created_at, revoked_at
                       FROM api_keys JOIN owners ON owners.id = api_keys.owner
                       LEFT JOIN members ON members.owner = owners.id
                       LEFT JOIN organisations ON organisations.id = members.organisation
                       WHERE api_keys.owner = $1 ORDER BY api_keys.created_at DESC, api_keys.id DESC";
            db.all(sql, &[&owner.as_str()], key_record)
        })
        .await
    }

    /// `NotFound` for another owner's key. Revoking again is `Ok`.
    pub async fn revoke_key(&self, owner: &OwnerId, id: &str) -> Result<()> {
        let unknown = || Error::NotFound { what: "key", id: id.to_owned() };
        if id.contains('\0') {
            // `PostgreSQL` has no such text.
            return Err(unknown());
        }
        let (owner, key) = (owner.clone(), id.to_owned());
        let revoked = self.0.writer.submit(move |batch| {
            execute(
                &batch.db,
                "UPDATE api_keys SET revoked_at = coalesce(revoked_at, $1)
                 WHERE owner = $2 AND id = $3",
                &[&micros(Timestamp::now()), &owner.as_str(), &key],
            )
        });
        if revoked.await? == 0 {
            return Err(unknown());
        }
        self.0.keys.mark.change()?;
        Ok(())
    }

    /// Whose secret this is, if it is a live one. Cheap: a hash and a look into memory.
    pub async fn verify(&self, secret: &str) -> Result<Option<Verified>> {
        if !secret.starts_with("e2a_") || secret.len() > 128 {
            return Ok(None);
        }
        let sha256 = digest(secret);
        // Before the look, so that a revocation during it is not missed.
        let seen = self.0.keys.mark.look();
        if let Some(verified) = self.0.keys.look_up(&sha256, seen) {
            return Ok(Some(verified));
        }
        let asked_at = Instant::now();
        let found = self.find_key(sha256).await?;
        if let Some(verified) = &found {
            self.0.keys.remember(sha256, seen, (asked_at, verified.clone()));
        }
        Ok(found)
    }

    async fn insert_key(&self, record: KeyRecord, sha256: [u8; 32], bcrypt: String) -> Result<()> {
        let inserted = self.0.writer.submit(move |batch| {
            let created_at = micros(record.created_at);
            execute(
                &batch.db,
                "INSERT INTO owners (id, created_at) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                &[&record.owner.as_str(), &created_at],
            )?;
            execute(
                &batch.db,
                "INSERT INTO api_keys (id, owner, plan, name, prefix, sha256, bcrypt, created_at)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                &[
                    &record.id,
                    &record.owner.as_str(),
                    &record.plan.as_str(),
                    &record.name,
                    &record.prefix,
                    &sha256.as_slice(),
                    &bcrypt,
                    &created_at,
                ],
            )
        });
        inserted.await.map(drop)
    }

    async fn find_key(&self, sha256: [u8; 32]) -> Result<Option<Verified>> {
        self.read(move |db| {
            let found = db.first(
                "SELECT id, owner, plan FROM api_keys WHERE sha256 = $1 AND revoked_at IS NULL",
                &[&sha256.as_slice()],
                |row| Ok((row.get(0)?, row.parsed(1)?, plan(row, 2)?)),
            )?;
            let Some((key_id, owner, of_key)) = found else { return Ok(None) };
            let row = standing(db, &owner)?.unwrap_or_default();
            let plan = row.plan.unwrap_or(of_key);
            Ok(Some(Verified { key_id, owner, plan, quota: row.quota }))
        })
        .await
    }
}

impl Cache {
    pub(crate) fn open(database: &Path) -> Result<Self> {
        Ok(Self { mark: Mark::open(database)?, kept: RwLock::default() })
    }

    /// Nothing that any server remembers is believed any more.
    pub(crate) fn forget(&self) -> Result<()> {
        self.mark.change()
    }

    fn look_up(&self, sha256: &[u8; 32], seen: Option<Seen>) -> Option<Verified> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        if seen.is_none() || kept.seen != seen {
            return None;
        }
        let (at, verified) = kept.verified.get(sha256)?;
        (at.elapsed() < BELIEVED_FOR).then(|| verified.clone())
    }

    fn remember(&self, sha256: [u8; 32], seen: Option<Seen>, verified: (Instant, Verified)) {
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.seen != seen {
            kept.verified.clear();
            kept.seen = seen;
        }
        if kept.verified.len() >= CACHE_MAX {
            kept.verified.retain(|_, (at, _)| at.elapsed() < BELIEVED_FOR);
        }
        if kept.verified.len() < CACHE_MAX {
            kept.verified.insert(sha256, verified);
        }
    }
}

impl KeyFormat {
    fn beginning(self) -> &'static str {
        match self {
            Self::Live => "e2a_live_",
            Self::Tenant => "e2a_",
        }
    }

    /// Characters of a secret that are kept readable, to tell keys apart.
    fn prefix_len(self) -> usize {
        match self {
            Self::Live => self.beginning().len() + 6,
            Self::Tenant => self.beginning().len() + 4,
        }
    }

    fn secret(self) -> Result<String> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).context("read random bytes")?;
        Ok(format!("{}{}", self.beginning(), hex(&random)))
    }
}

fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn plan(row: &Row<'_>, column: usize) -> Result<Plan> {
    let text: String = row.get(column)?;
    Ok(Plan::parse(&text).with_context(|| format!("no such plan: {text}"))?)
}

pub(crate) fn plan_if_any(row: &Row<'_>, column: usize) -> Result<Option<Plan>> {
    let is_said = row.get::<Option<String>>(column)?.is_some();
    if is_said { plan(row, column).map(Some) } else { Ok(None) }
}

fn key_record(row: &Row<'_>) -> Result<KeyRecord> {
    let revoked_at: Option<i64> = row.get(6)?;
    Ok(KeyRecord {
        id: row.get(0)?,
        owner: row.parsed(1)?,
        plan: plan(row, 2)?,
        name: row.get(3)?,
        prefix: row.get(4)?,
        created_at: timestamp(row.get(5)?)?,
        revoked_at: revoked_at.map(timestamp).transpose()?,
    })
}
