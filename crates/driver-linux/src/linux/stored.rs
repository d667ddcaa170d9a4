//! The spec as it lies on the disk. Its environment may hold what is private to the tenant, so it
//! is sealed with the deployment's master key; everything else is plain for the operator to read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, bail};
use chacha20poly1305::aead::Aead;
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use driver::Ended;
use model::{EndReason, SandboxSpec};
use serde::{Deserialize, Serialize};

use super::layout;

/// What the driver remembers of a sandbox. New fields get `#[serde(default)]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) spec: SandboxSpec,
    /// The exact build of the template that its upper stands on.
    pub(super) template_digest: String,
    /// Hex of nonce and ciphertext; the spec's own `env` is empty on the disk.
    #[serde(default)]
    sealed_env: Option<String>,
}

/// Why the last compute ended, or is being ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) reason: EndReason,
    /// The incarnation that a stop is under way for: a server that finds it finishes the stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stopping: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<Last>,
}

/// What is billed of compute that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Last {
    incarnation: String,
    started_at: jiff::Timestamp,
    ended_at: jiff::Timestamp,
    cpu_usec: u64,
}

/// What is left of a destroyed sandbox for a minute (ruling 7).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Tomb {
    pub(super) stored: Stored,
    pub(super) destroyed_at: jiff::Timestamp,
    pub(super) reason: EndReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<Last>,
}

impl From<Ended> for Last {
    fn from(ended: Ended) -> Self {
        let Ended { incarnation, started_at, ended_at, cpu_usec } = ended;
        Self { incarnation, started_at, ended_at, cpu_usec }
    }
}

impl From<Last> for Ended {
    fn from(last: Last) -> Self {
        let Last { incarnation, started_at, ended_at, cpu_usec } = last;
        Self { incarnation, started_at, ended_at, cpu_usec }
    }
}

impl Stored {
    pub(super) fn new(spec: SandboxSpec, template_digest: String) -> Self {
        Self { spec, template_digest, sealed_env: None }
    }

    /// The form for the disk.
    pub(super) fn sealed(&self, sealer: &Sealer) -> anyhow::Result<Self> {
        let mut sealed = self.clone();
        sealed.sealed_env = None;
        let env = std::mem::take(&mut sealed.spec.env);
        if !env.is_empty() {
            let plain = serde_json::to_vec(&env).context("encode the environment")?;
            sealed.sealed_env = Some(sealer.seal(&plain)?);
        }
        Ok(sealed)
    }

    /// Without the environment: what a tombstone keeps.
    pub(super) fn without_env(mut self) -> Self {
        self.sealed_env = None;
        self.spec.env = BTreeMap::new();
        self
    }

    pub(super) fn opened(mut self, sealer: &Sealer) -> anyhow::Result<Self> {
        if let Some(text) = self.sealed_env.take() {
            let plain = sealer.open_sealed(&text)?;
            self.spec.env = serde_json::from_slice(&plain).context("decode the environment")?;
        }
        Ok(self)
    }
}

/// The master key of a deployment, a file of 0600.
pub(super) struct Sealer {
    cipher: XChaCha20Poly1305,
}

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;

impl Sealer {
    /// Reads the key, making it at the first start.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let key = match fs::read(path) {
            Ok(key) => key,
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_key(path)?,
            Err(error) => return Err(error).context("read the master key"),
        };
        if key.len() != KEY_BYTES {
            bail!("the master key {} is not {KEY_BYTES} bytes long", path.display());
        }
        let cipher = XChaCha20Poly1305::new_from_slice(&key).context("master key")?;
        Ok(Self { cipher })
    }

    fn seal(&self, plain: &[u8]) -> anyhow::Result<String> {
        let mut nonce = [0u8; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|error| anyhow::anyhow!("random source: {error}"))?;
        let sealed = self
            .cipher
            .encrypt(XNonce::from_slice(&nonce), plain)
            .map_err(|_| anyhow::anyhow!("seal the environment"))?;
        Ok(nonce.iter().chain(&sealed).map(|byte| format!("{byte:02x}")).collect())
    }

    fn open_sealed(&self, text: &str) -> anyhow::Result<Vec<u8>> {
        let pairs = text.as_bytes().chunks(2);
        let bytes: Option<Vec<u8>> = pairs
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        let bytes = bytes.context("the sealed environment is not hex")?;
        let (nonce, sealed) =
            bytes.split_at_checked(NONCE_BYTES).context("the sealed environment is too short")?;
        self.cipher.decrypt(XNonce::from_slice(nonce), sealed).map_err(|_| {
            anyhow::anyhow!("the sealed environment does not open with this master key")
        })
    }
}

fn make_key(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut key = vec![0u8; KEY_BYTES];
    getrandom::fill(&mut key).map_err(|error| anyhow::anyhow!("random source: {error}"))?;
    let temp = path.with_extension("unfinished");
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temp)?;
    file.write_all(&key).context("write the master key")?;
    file.sync_all().context("flush the master key")?;
    fs::rename(&temp, path).context("name the master key")?;
    layout::sync_dir(path.parent().context("master key")?)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_opens_with_the_same_key_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let sealer = Sealer::open(&dir.path().join("a")).unwrap();
        let text = sealer.seal(b"TOKEN=hush").unwrap();
        assert!(!text.contains("hush"));
        let again = Sealer::open(&dir.path().join("a")).unwrap();
        assert_eq!(again.open_sealed(&text).unwrap(), b"TOKEN=hush");
        let other = Sealer::open(&dir.path().join("b")).unwrap();
        assert!(other.open_sealed(&text).is_err());
        assert!(again.open_sealed("zz").is_err() && again.open_sealed("00").is_err());
    }
}
