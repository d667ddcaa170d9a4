//! Signs links, and tells whether one is good: for this sandbox, this port, until then. The key is in
//! a file of the data directory; without it, or after another was put in its place, no link works.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use model::SandboxId;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

const FILE: &str = "signing.key";
const KEY_BYTES: usize = 32;
/// Longer ones are not looked at.
const TOKEN_BYTES_MAX: usize = 100;

#[derive(Clone)]
pub(crate) struct Signer(hmac::Key);

impl Signer {
    /// The key of this data directory, made on first use.
    pub(crate) fn open(data_dir: &Path) -> Result<Self> {
        let path = data_dir.join(FILE);
        let key = match fs::read(&path) {
            Ok(key) => key,
            Err(error) if error.kind() == ErrorKind::NotFound => make(data_dir, &path)?,
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        ensure!(key.len() == KEY_BYTES, "{}: not a key of ours", path.display());
        Ok(Self::new(&key))
    }

    fn new(key: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// `EXPIRES.MAC`: seconds since 1970, and what proves them.
    pub(super) fn sign(&self, sandbox: SandboxId, port: u16, expires: Timestamp) -> String {
        let expires = expires.as_second();
        let tag = hmac::sign(&self.0, &message(sandbox, port, expires));
        format!("{expires}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// How long a link works still; `None` when it does not.
    pub(super) fn seconds_left(
        &self,
        token: &str,
        sandbox: SandboxId,
        port: u16,
        now: Timestamp,
    ) -> Option<u64> {
        let (expires, tag) = Some(token).filter(|t| t.len() <= TOKEN_BYTES_MAX)?.split_once('.')?;
        let expires: i64 = expires.parse().ok()?;
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        hmac::verify(&self.0, &message(sandbox, port, expires), &tag).ok()?;
        u64::try_from(expires - now.as_second()).ok().filter(|left| *left > 0)
    }
}

fn message(sandbox: SandboxId, port: u16, expires: i64) -> Vec<u8> {
    format!("bastide port link\n{sandbox}\n{port}\n{expires}").into_bytes()
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
    use super::*;

    #[test]
    fn a_link_is_good_for_its_own_port_until_it_expires_and_not_when_changed() {
        let dir = tempfile::tempdir().unwrap();
        let signer = Signer::open(dir.path()).unwrap();
        let (id, other) = (SandboxId::generate(), SandboxId::generate());
        let at = |second| Timestamp::from_second(second).unwrap();
        let token = signer.sign(id, 8000, at(1000));
        let again = Signer::open(dir.path()).unwrap();
        assert_eq!(again.seconds_left(&token, id, 8000, at(400)), Some(600));
        assert_eq!(again.seconds_left(&token, id, 8000, at(1000)), None);
        assert_eq!(again.seconds_left(&token, id, 8001, at(400)), None);
        assert_eq!(again.seconds_left(&token, other, 8000, at(400)), None);
        let (expires, tag) = token.split_once('.').unwrap();
        for bad in
            ["", ".", "1000.", "9999", tag, &format!("1001.{tag}"), &format!("{expires}.A{tag}")]
        {
            assert_eq!(again.seconds_left(bad, id, 8000, at(400)), None, "{bad}");
        }
        let elsewhere = Signer::open(tempfile::tempdir().unwrap().path()).unwrap();
        assert_eq!(elsewhere.seconds_left(&token, id, 8000, at(400)), None);
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &fs::metadata(dir.path().join(FILE)).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
    }
}
