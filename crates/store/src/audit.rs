//! The audit log: who did what to what, with which outcome, from where. It is written at its end
//! alone, and each entry's digest covers the one before, so that what is changed or left out shows. What is
//! too old is removed from its beginning, which then is the digest of the last that was removed.

use jiff::Timestamp;
use model::Result;
use sha2::{Digest, Sha256};

use crate::db::{Db, Row};
use crate::read::{micros, timestamp};
use crate::writer::Pending;
use crate::{Store, lease};

/// What comes before the very first entry.
pub const AUDIT_BEGINS: [u8; 32] = [0; 32];

/// Entries that one transaction removes.
const PRUNED_MAX: usize = 5000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    pub at: Timestamp,
    /// An owner, or nobody who is known.
    pub actor: String,
    /// A method and a route.
    pub action: String,
    pub target: String,
    pub outcome: String,
    pub address: String,
}

/// An entry in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// From 1, without gaps.
    pub number: i64,
    pub entry: AuditEntry,
    pub digest: [u8; 32],
}

impl AuditEntry {
    /// The digest of this entry after that one. Every part is preceded by its length, so that no two
    /// entries are the same bytes.
    pub fn digest(&self, previous: &[u8; 32], number: i64) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(previous);
        hash.update(number.to_be_bytes());
        hash.update(micros(self.at).to_be_bytes());
        for part in [&self.actor, &self.action, &self.target, &self.outcome, &self.address] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize().into()
    }
}

impl Store {
    pub fn audit(&self, entry: AuditEntry) -> Pending<()> {
        self.0.writer.submit(move |batch| append(&batch.db, entry))
    }

    /// Removes entries from the beginning that are older than that, at most so many as one transaction takes, and
    /// writes down that it did. How many: none means that there are no more.
    pub async fn prune_audit(&self, before: Timestamp, now: Timestamp) -> Result<usize> {
        let fence = self.1;
        let pruned = self.0.writer.submit(move |batch| {
            lease::check(&batch.db, fence)?;
            prune(&batch.db, before, now)
        });
        pruned.await
    }

    /// Entries after a number, oldest first.
    pub async fn audit_log(&self, after: i64, limit: u32) -> Result<Vec<AuditRecord>> {
        self.read(move |db| entries(db, after, limit)).await
    }

    /// The same with the number and the digest of what the first entry of all follows, of one moment: old
    /// entries may be going.
    pub async fn audit_page(
        &self,
        after: i64,
        limit: u32,
    ) -> Result<((i64, [u8; 32]), Vec<AuditRecord>)> {
        self.read(move |db| {
            db.at_one_moment(|| {
                let sql = "SELECT number, digest FROM audit_begins";
                let begins = db.first(sql, &[], |row| Ok((row.get(0)?, row.digest(1)?)))?;
                Ok((begins.unwrap_or((0, AUDIT_BEGINS)), entries(db, after, limit)?))
            })
        })
        .await
    }
}

fn entries(db: &Db<'_>, after: i64, limit: u32) -> Result<Vec<AuditRecord>> {
    let sql = "SELECT number, at, actor, action, target, outcome, address, digest FROM audit
               WHERE number > $1 ORDER BY number LIMIT $2";
    db.all(sql, &[&after, &i64::from(limit)], record)
}

fn append(db: &Db<'_>, mut entry: AuditEntry) -> Result<()> {
    // As it will be read back.
    entry.at = timestamp(micros(entry.at))?;
    for text in [&mut entry.actor, &mut entry.target, &mut entry.address] {
        if text.contains('\0') {
            // `PostgreSQL` has no such text.
            *text = text.replace('\0', "\u{fffd}");
        }
    }
    let last = "SELECT number, digest FROM audit ORDER BY number DESC LIMIT 1";
    let last = db.first(last, &[], |row| Ok((row.get::<i64>(0)?, row.digest(1)?)))?;
    let (last, previous) = last.unwrap_or((0, AUDIT_BEGINS));
    let number = last + 1;
    let digest = entry.digest(&previous, number);
    db.execute(
        "INSERT INTO audit (number, at, actor, action, target, outcome, address, digest)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        &[
            &number,
            &micros(entry.at),
            &entry.actor,
            &entry.action,
            &entry.target,
            &entry.outcome,
            &entry.address,
            &digest.as_slice(),
        ],
    )?;
    Ok(())
}

fn prune(db: &Db<'_>, before: Timestamp, now: Timestamp) -> Result<usize> {
    let sql = format!("SELECT number, at, digest FROM audit ORDER BY number LIMIT {PRUNED_MAX}");
    let oldest =
        db.all(&sql, &[], |row| Ok((row.get::<i64>(0)?, row.get::<i64>(1)?, row.digest(2)?)))?;
    let old = oldest.iter().take_while(|(_, at, _)| *at < micros(before));
    let Some((last, _, digest)) = old.last() else { return Ok(0) };
    let first = oldest[0].0;
    // First, so that the log is never without an entry: the next one's number follows from the last.
    append(
        db,
        AuditEntry {
            at: now,
            actor: String::new(),
            action: "audit.prune".into(),
            target: format!("{first}-{last}"),
            outcome: "removed".into(),
            address: String::new(),
        },
    )?;
    let begins = "INSERT INTO audit_begins (one, number, digest) VALUES (1, $1, $2)
                  ON CONFLICT (one) DO UPDATE SET number = excluded.number, digest = excluded.digest";
    db.execute(begins, &[last, &digest.as_slice()])?;
    db.execute("DELETE FROM audit WHERE number <= $1", &[last])
}

fn record(row: &Row<'_>) -> Result<AuditRecord> {
    Ok(AuditRecord {
        number: row.get(0)?,
        entry: AuditEntry {
            at: timestamp(row.get(1)?)?,
            actor: row.get(2)?,
            action: row.get(3)?,
            target: row.get(4)?,
            outcome: row.get(5)?,
            address: row.get(6)?,
        },
        digest: row.digest(7)?,
    })
}
