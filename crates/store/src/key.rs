//! API keys: made once, shown once, looked up by SHA-256.

use jiff::Timestamp;
use model::{Error, OwnerId, Plan, Result};

use crate::Store;

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

/// Whom a secret belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub key_id: String,
    pub owner: OwnerId,
    pub plan: Plan,
}

impl Store {
    pub async fn create_key(&self, _owner: &OwnerId, _plan: Plan, _name: &str) -> Result<NewKey> {
        Err(Error::unavailable("not wired yet"))
    }

    /// Revoked ones too, newest first.
    pub async fn list_keys(&self, _owner: &OwnerId) -> Result<Vec<KeyRecord>> {
        Err(Error::unavailable("not wired yet"))
    }

    /// `NotFound` for another owner's key. Revoking again is `Ok`.
    pub async fn revoke_key(&self, _owner: &OwnerId, _id: &str) -> Result<()> {
        Err(Error::unavailable("not wired yet"))
    }

    /// Whose secret this is, if it is a live one. Cheap: a hash and a look into memory.
    pub async fn verify(&self, _secret: &str) -> Result<Option<Verified>> {
        Err(Error::unavailable("not wired yet"))
    }
}
