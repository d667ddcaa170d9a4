//! The one signing key of a deployment: from a file that the settings name, else made at first start
//! in the data directory. What is signed with it says what it is for, so that nothing signed for one
//! purpose is good for another.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

const FILE: &str = "signing.key";
const KEY_BYTES: usize = 32;

#[derive(Clone)]
pub(crate) struct SigningKey(Vec<u8>);

impl SigningKey {
    /// Of the data directory, made on first use, unless a file is named.
    pub(crate) fn open(data_dir: &Path, named: Option<&Path>) -> Result<Self> {
        let own = data_dir.join(FILE);
        let path = named.unwrap_or(&own);
        let key = match fs::read(path) {
            Ok(key) => key,
            Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => {
                make(data_dir, path)?
            }
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        let long_enough = key.len() >= KEY_BYTES;
        ensure!(long_enough, "{}: a key has at least {KEY_BYTES} bytes", path.display());
        Ok(Self(key))
    }

    /// For links to ports.
    pub(crate) fn of_links(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }

    /// A key of its own for a purpose.
    pub(crate) fn of(&self, purpose: &str) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let tag = hmac::sign(&key, format!("bastide key for\n{purpose}").as_bytes());
        tag.as_ref().try_into().expect("a tag of 32 bytes")
    }
}

/// Whole or not at all; of two servers that start at once, both use the key of the first.
fn make(data_dir: &Path, path: &Path) -> Result<Vec<u8>> {
    let mut key = vec![0; KEY_BYTES];
    SystemRandom::new().fill(&mut key).ok().context("draw a signing key")?;
    let fresh = data_dir.join(format!(".{FILE}.{}", std::process::id()));
    let mut open = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)
        .with_context(|| format!("make {}", fresh.display()))?;
    open.write_all(&key).context("write the signing key")?;
    open.sync_all().context("flush the signing key")?;
    let linked = fs::hard_link(&fresh, path);
    fs::remove_file(&fresh).context("remove the signing key's first name")?;
    match linked {
        Ok(()) => Ok(key),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::read(path).context("read the signing key")
        }
        Err(error) => Err(error).context("put the signing key into place"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_for_its_owner_alone_unless_a_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let own = SigningKey::open(dir.path(), None).unwrap();
        assert_eq!(SigningKey::open(dir.path(), None).unwrap().0, own.0);
        let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let named = dir.path().join("named");
        assert!(SigningKey::open(dir.path(), Some(&named)).is_err(), "it is not there");
        fs::write(&named, "short").unwrap();
        assert!(SigningKey::open(dir.path(), Some(&named)).is_err());
        fs::write(&named, "x".repeat(40)).unwrap();
        let named = SigningKey::open(dir.path(), Some(&named)).unwrap();
        assert_ne!(named.of("a"), own.of("a"));
        assert_ne!(named.of("a"), named.of("b"));
    }
}
