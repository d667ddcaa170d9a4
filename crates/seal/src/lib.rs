//! The master keys of a deployment, and what is sealed with them (XChaCha20-Poly1305): environments of
//! sandboxes, bundles of secrets. The only crate that holds such a key.
//!
//! Several keys may be held at once, the newest first: it seals, all of them open. What is sealed names
//! its key, so that whoever keeps it can tell what has to be sealed anew. It is bound to what it is
//! about, so that one owner's things do not open in another's place.

mod file;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context, Result, bail, ensure};
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};

pub use file::{add_key, forget_old_keys};

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
const ID_BYTES: usize = 8;
/// What sealed bytes begin with.
const FORMAT: u8 = 1;
/// What sealed text begins with. Text of older versions is hex alone, and about nothing.
const TEXT_FORMAT: &str = "1:";

/// Seals and opens; clones share the keys.
#[derive(Clone)]
pub struct Sealer(Arc<Shared>);

struct Shared {
    /// Read again when something does not open: another process may have added a key.
    file: Option<PathBuf>,
    ring: RwLock<Ring>,
}

/// The newest first; never empty.
struct Ring(Vec<Key>);

struct Key {
    id: [u8; ID_BYTES],
    cipher: XChaCha20Poly1305,
}

impl Sealer {
    /// The keys in a file, which is made when absent, with one key.
    pub fn open(path: &Path) -> Result<Self> {
        let ring = Ring::of(&file::read_or_make(path)?)?;
        Ok(Self(Arc::new(Shared { file: Some(path.to_owned()), ring: RwLock::new(ring) })))
    }

    /// Keys as an operator writes them: 64 hex digits each, the newest first, with commas.
    pub fn given(text: &str) -> Result<Self> {
        let mut keys = Vec::new();
        for key in text.split(',') {
            let key = unhex(key.trim()).filter(|key| key.len() == KEY_BYTES);
            keys.extend(key.context("a master key must be 64 hex digits")?);
        }
        Ok(Self(Arc::new(Shared { file: None, ring: RwLock::new(Ring::of(&keys)?) })))
    }

    /// Takes keys that were added or removed since; whether another one is the newest now.
    pub fn reload(&self) -> Result<bool> {
        let Some(path) = &self.0.file else { return Ok(false) };
        let ring = Ring::of(&file::read(path)?.context("the master key is gone")?)?;
        let mut held = self.0.ring.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *held, ring);
        Ok(before.newest() != held.newest())
    }

    pub fn seal(&self, plain: &[u8], about: &str) -> Result<Vec<u8>> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|error| anyhow::anyhow!("random source: {error}"))?;
        let ring = self.0.ring.read().unwrap_or_else(PoisonError::into_inner);
        let key = ring.0.first().context("a sealer has a key")?;
        let payload = Payload { msg: plain, aad: about.as_bytes() };
        let sealed = key.cipher.encrypt(XNonce::from_slice(&nonce), payload);
        let sealed = sealed.map_err(|_| anyhow::anyhow!("seal"))?;
        let mut bytes = Vec::with_capacity(1 + ID_BYTES + NONCE_BYTES + sealed.len());
        bytes.push(FORMAT);
        bytes.extend_from_slice(&key.id);
        bytes.extend_from_slice(&nonce);
        bytes.extend_from_slice(&sealed);
        Ok(bytes)
    }

    /// `about` must be what it was sealed with.
    pub fn unseal(&self, sealed: &[u8], about: &str) -> Result<Vec<u8>> {
        if !self.knows(sealed) {
            self.reload()?;
        }
        let (id, sealed) = split(sealed)?;
        let ring = self.0.ring.read().unwrap_or_else(PoisonError::into_inner);
        let key = ring.0.iter().find(|key| key.id == id);
        key.context("it was sealed with a master key that is not here")?.open(sealed, about)
    }

    /// Whether it is under the newest key; what is not should be sealed anew.
    pub fn is_newest(&self, sealed: &[u8]) -> bool {
        let ring = self.0.ring.read().unwrap_or_else(PoisonError::into_inner);
        split(sealed).is_ok_and(|(id, _)| ring.newest() == Some(id))
    }

    /// [`Sealer::seal`] as text.
    pub fn seal_text(&self, plain: &[u8], about: &str) -> Result<String> {
        Ok(format!("{TEXT_FORMAT}{}", hex(&self.seal(plain, about)?)))
    }

    /// [`Sealer::unseal`] of text, also of what older versions wrote.
    pub fn unseal_text(&self, text: &str, about: &str) -> Result<Vec<u8>> {
        if let Some(text) = text.strip_prefix(TEXT_FORMAT) {
            return self.unseal(&unhex(text).context("what is sealed is not hex")?, about);
        }
        let bytes = unhex(text).context("what is sealed is not hex")?;
        let ring = self.0.ring.read().unwrap_or_else(PoisonError::into_inner);
        let opened = ring.0.iter().find_map(|key| key.open(&bytes, "").ok());
        opened.context("it does not open with this master key")
    }

    /// [`Sealer::is_newest`] of text.
    pub fn is_newest_text(&self, text: &str) -> bool {
        let bytes = text.strip_prefix(TEXT_FORMAT).and_then(unhex);
        bytes.is_some_and(|bytes| self.is_newest(&bytes))
    }

    fn knows(&self, sealed: &[u8]) -> bool {
        let ring = self.0.ring.read().unwrap_or_else(PoisonError::into_inner);
        split(sealed).is_ok_and(|(id, _)| ring.0.iter().any(|key| key.id == id))
    }
}

impl Ring {
    fn of(bytes: &[u8]) -> Result<Self> {
        ensure!(
            !bytes.is_empty() && bytes.len().is_multiple_of(KEY_BYTES),
            "the master key is not {KEY_BYTES} bytes long"
        );
        let keys = bytes.chunks(KEY_BYTES).map(|key| {
            let cipher = XChaCha20Poly1305::new_from_slice(key).context("take a master key")?;
            // Says which key it is, and nothing else about it.
            let digest = Sha256::new().chain_update("bastide key id\n").chain_update(key);
            let digest: [u8; 32] = digest.finalize().into();
            let id = *digest.first_chunk().context("a digest is longer than an id")?;
            Ok(Key { id, cipher })
        });
        Ok(Self(keys.collect::<Result<_>>()?))
    }

    fn newest(&self) -> Option<[u8; ID_BYTES]> {
        self.0.first().map(|key| key.id)
    }
}

impl Key {
    fn open(&self, sealed: &[u8], about: &str) -> Result<Vec<u8>> {
        let (nonce, sealed) =
            sealed.split_at_checked(NONCE_BYTES).context("what is sealed is too short")?;
        let payload = Payload { msg: sealed, aad: about.as_bytes() };
        let opened = self.cipher.decrypt(XNonce::from_slice(nonce), payload);
        opened.map_err(|_| anyhow::anyhow!("it does not open with this master key"))
    }
}

/// The id of its key, and the rest.
fn split(sealed: &[u8]) -> Result<([u8; ID_BYTES], &[u8])> {
    let Some((&FORMAT, rest)) = sealed.split_first() else {
        bail!("what is sealed is of an unknown format")
    };
    let (id, rest) = rest.split_first_chunk().context("what is sealed is too short")?;
    Ok((*id, rest))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests;
