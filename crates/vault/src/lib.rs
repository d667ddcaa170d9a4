//! What tenants keep secret: bundles of values that go in and never come out, but into a session of
//! their owner. Sealed in the store with the master key, or kept by AWS Secrets Manager; a bundle says
//! which, so that a deployment can change its mind and old bundles still open.
//!
//! Beside them, what agents are to do, and where conversations are kept too: see `orders` and `targets`.
//!
//! The only crate that knows AWS's SDK.

mod aws;
mod orders;
mod targets;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use model::{BundleName, Error, OwnerId, Result, SecretText, SecretValues};
use seal::Sealer;
use store::{BundleRecord, Kept, Store};

pub use aws::{AwsConfig, Credentials};

/// Bundles of one session (000 *POST /v1/sessions*).
pub const BUNDLES_PER_SESSION_MAX: usize = 10;

const LOOK_FOR_KEYS_EVERY: Duration = Duration::from_secs(30);

const CLEAN_EVERY: Duration = Duration::from_secs(600);
/// Longer than any write takes.
const NOBODYS_AFTER: SignedDuration = SignedDuration::from_hours(2);

const SEALED: &str = "sealed";
const AWS: &str = "aws";

/// Clones share one.
#[derive(Clone)]
pub struct Vault {
    store: Store,
    sealer: Sealer,
    aws: Option<aws::Manager>,
    new_ones: Place,
}

/// Where new values go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Sealed,
    Aws,
}

impl Vault {
    pub fn new(store: Store, sealer: Sealer, new_ones: Place, aws: Option<AwsConfig>) -> Self {
        Self { store, sealer, aws: aws.map(aws::Manager::new), new_ones }
    }

    /// `Conflict` when there is one of that name.
    pub async fn create(
        &self,
        owner: &OwnerId,
        name: &BundleName,
        values: SecretValues,
    ) -> Result<BundleRecord> {
        let record = BundleRecord {
            owner: owner.clone(),
            name: name.clone(),
            key_names: values.key_names(),
            created_at: now()?,
            rotated_at: None,
        };
        if self.new_ones == Place::Aws && self.store.bundle(owner, name).await?.is_some() {
            // It would be refused anyway; nothing has to travel for that.
            let detail = format!("you already have a bundle named {name}");
            return Err(Error::Conflict { code: model::Conflict::NameTaken, detail });
        }
        let kept = self.keep(owner, name, values).await?;
        if let Err(failure) = self.store.create_bundle(record.clone(), kept.clone()).await {
            self.forget_refused(&kept, &failure).await;
            return Err(failure);
        }
        Ok(record)
    }

    /// Replaces all values; keys may come and go.
    pub async fn rotate(
        &self,
        owner: &OwnerId,
        name: &BundleName,
        values: SecretValues,
    ) -> Result<BundleRecord> {
        self.get(owner, name).await?;
        let key_names = values.key_names();
        let kept = self.keep(owner, name, values).await?;
        let at = now()?;
        let rotated = self.store.rotate_bundle(owner, name, &key_names, (kept.clone(), at)).await;
        match rotated {
            Ok(before) => self.forget(&before).await,
            Err(failure) => {
                self.forget_refused(&kept, &failure).await;
                return Err(failure);
            }
        }
        self.get(owner, name).await
    }

    pub async fn list(&self, owner: &OwnerId) -> Result<Vec<BundleRecord>> {
        self.store.list_bundles(owner).await
    }

    pub async fn get(&self, owner: &OwnerId, name: &BundleName) -> Result<BundleRecord> {
        let found = self.store.bundle(owner, name).await?;
        found.map(|(record, _)| record).ok_or_else(|| no_bundle(name))
    }

    pub async fn delete(&self, owner: &OwnerId, name: &BundleName) -> Result<()> {
        let kept = self.store.delete_bundle(owner, name).await?;
        self.forget(&kept).await;
        Ok(())
    }

    /// The values of all these bundles together, for a session of their owner. `NotFound` names the
    /// bundle that is not there; the same key in two of them is a mistake of the caller.
    pub async fn resolve(
        &self,
        owner: &OwnerId,
        names: &[BundleName],
    ) -> Result<BTreeMap<String, SecretText>> {
        if names.len() > BUNDLES_PER_SESSION_MAX {
            let detail = format!("at most {BUNDLES_PER_SESSION_MAX} bundles");
            return Err(Error::invalid("secrets", detail));
        }
        let mut all = BTreeMap::new();
        for name in names {
            let found = self.store.bundle(owner, name).await?;
            let (_, kept) = found.ok_or_else(|| no_bundle(name))?;
            for (key, value) in self.read(owner, name, &kept).await? {
                if all.contains_key(&key) {
                    let detail = format!("the key {key} of {name} is in another bundle too");
                    return Err(Error::invalid("secrets", detail));
                }
                all.insert(key, value);
            }
        }
        Ok(all)
    }

    /// Seals anew what is sealed with an older master key, now and whenever a key is added. Never ends.
    pub async fn keep_resealing(&self) {
        let mut due = true;
        loop {
            match self.sealer.reload() {
                Ok(changed) => due |= changed,
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "could not read the master keys");
                }
            }
            if due {
                match self.reseal().await {
                    Ok(0) => due = false,
                    Ok(count) => {
                        due = false;
                        tracing::info!(count, "sealed secrets anew with the newest master key");
                    }
                    Err(failure) => {
                        let error = format!("{:#}", anyhow::Error::from(failure));
                        tracing::warn!(error, "could not seal all bundles anew");
                    }
                }
            }
            tokio::time::sleep(LOOK_FOR_KEYS_EVERY).await;
        }
    }

    /// The same once. How many that were.
    pub async fn reseal(&self) -> Result<usize> {
        self.sealer.reload().context("read the master keys")?;
        let (mut after, mut resealed) = (None, self.reseal_orders().await?);
        resealed += self.reseal_targets().await?;
        loop {
            let page = self.store.sealed_bundles(after).await?;
            let Some((last, _)) = page.last() else { return Ok(resealed) };
            after = Some((last.owner.clone(), last.name.clone()));
            for (record, kept) in page {
                if self.sealer.is_newest(&kept.value) {
                    continue;
                }
                let about = about(&record.owner, &record.name);
                let plain = self.sealer.unseal(&kept.value, &about).context("open a bundle")?;
                let sealed = self.sealer.seal(&plain, &about).context("seal a bundle anew")?;
                let anew = Kept { place: SEALED.into(), value: sealed };
                resealed += usize::from(self.store.rekeep_bundle(&record, kept, anew).await?);
            }
        }
    }

    async fn keep(&self, owner: &OwnerId, name: &BundleName, values: SecretValues) -> Result<Kept> {
        let plain: BTreeMap<_, _> =
            values.into_map().into_iter().map(|(key, SecretText(value))| (key, value)).collect();
        let plain = serde_json::to_vec(&plain).context("write a bundle")?;
        match (self.new_ones, &self.aws) {
            (Place::Sealed, _) => {
                let value = self.sealer.seal(&plain, &about(owner, name)).context("seal")?;
                Ok(Kept { place: SEALED.into(), value })
            }
            (Place::Aws, Some(aws)) => {
                let found_at = aws.place_for(owner, name, &plain);
                // First, so that a crash in between leaves nothing there that is not known.
                self.store.announce_secret(found_at.as_bytes(), Timestamp::now()).await?;
                let written = aws.put(&found_at, &plain).await;
                let kept = Kept { place: AWS.into(), value: found_at.into_bytes() };
                if let Err(failure) = written {
                    self.forget(&kept).await;
                    return Err(failure);
                }
                Ok(kept)
            }
            (Place::Aws, None) => Err(not_configured()),
        }
    }

    async fn read(
        &self,
        owner: &OwnerId,
        name: &BundleName,
        kept: &Kept,
    ) -> Result<BTreeMap<String, SecretText>> {
        let plain = match (kept.place.as_str(), &self.aws) {
            (SEALED, _) => {
                self.sealer.unseal(&kept.value, &about(owner, name)).context("open a bundle")?
            }
            (AWS, Some(aws)) => aws.get(found_at(kept)?).await?,
            (AWS, None) => return Err(not_configured()),
            (other, _) => return Err(anyhow::anyhow!("kept in an unknown place: {other}").into()),
        };
        let values: BTreeMap<String, String> =
            // Its error would repeat what it cannot read.
            serde_json::from_slice(&plain).map_err(|_| anyhow::anyhow!("a bundle is no JSON"))?;
        Ok(values.into_iter().map(|(key, value)| (key, SecretText(value))).collect())
    }

    /// What nothing refers to any more. A failure leaves it where it is, and is told to the operator.
    async fn forget(&self, kept: &Kept) {
        let (AWS, Some(aws)) = (kept.place.as_str(), &self.aws) else { return };
        let forgotten = async {
            aws.delete(found_at(kept)?).await?;
            self.store.forget_secret(&kept.value).await
        };
        if let Err(failure) = forgotten.await {
            let error = format!("{:#}", anyhow::Error::from(failure));
            tracing::warn!(
                error,
                "could not delete a secret that is no longer used; it is tried again"
            );
        }
    }

    /// The same after a write that failed. When it is not known whether a bundle refers to it, it stays; if none
    /// does, it is found by [`Vault::clean`].
    async fn forget_refused(&self, kept: &Kept, failure: &Error) {
        if !matches!(failure, Error::Unavailable { .. } | Error::Internal(_)) {
            self.forget(kept).await;
        }
    }

    /// Deletes elsewhere what crashes and failures left there, now and from time to time. Never ends.
    pub async fn keep_clean(&self) {
        loop {
            let before = Timestamp::now() - NOBODYS_AFTER;
            if let Err(failure) = self.clean(before).await {
                let error = format!("{:#}", anyhow::Error::from(failure));
                tracing::warn!(error, "could not delete secrets that nothing refers to");
            }
            tokio::time::sleep(CLEAN_EVERY).await;
        }
    }

    /// The same once, of what is older than that.
    pub async fn clean(&self, before: Timestamp) -> Result<()> {
        let Some(aws) = &self.aws else { return Ok(()) };
        for value in self.store.unclaimed_secrets(before).await? {
            let kept = Kept { place: AWS.into(), value };
            aws.delete(found_at(&kept)?).await?;
            self.store.forget_secret(&kept.value).await?;
        }
        Ok(())
    }
}

fn found_at(kept: &Kept) -> Result<&str> {
    Ok(std::str::from_utf8(&kept.value).context("read where a bundle is")?)
}

fn not_configured() -> Error {
    Error::unavailable("the bundle is in AWS Secrets Manager, which is not configured here")
}

fn no_bundle(name: &BundleName) -> Error {
    Error::NotFound { what: "secret bundle", id: name.to_string() }
}

fn about(owner: &OwnerId, name: &BundleName) -> String {
    format!("secret bundle {owner}/{name}")
}

/// As the store keeps it.
fn now() -> Result<Timestamp> {
    let micros = Timestamp::now().as_microsecond();
    Ok(Timestamp::from_microsecond(micros).context("read the clock")?)
}
