//! The file of the master keys: 32 bytes each, the newest first, readable by its owner alone. It is
//! always replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::KEY_BYTES;

/// Puts a new key before those that are there. From now on it seals; the others still open.
pub fn add_key(path: &Path) -> Result<()> {
    let mut keys = draw()?;
    keys.extend(read(path)?.with_context(|| format!("there is no {}", path.display()))?);
    fs::rename(write_beside(path, &keys)?, path).context("put the master keys into place")?;
    sync_parent(path)
}

/// Keeps the newest key alone. What is still sealed with another one is lost.
pub fn forget_old_keys(path: &Path) -> Result<usize> {
    let keys = read(path)?.with_context(|| format!("there is no {}", path.display()))?;
    let newest = keys.get(..KEY_BYTES).context("the master key is too short")?;
    fs::rename(write_beside(path, newest)?, path).context("put the master key into place")?;
    sync_parent(path)?;
    Ok(keys.len() / KEY_BYTES - 1)
}

pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(keys) => Ok(Some(keys)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

/// Of several that make it at once, all use the key of the first.
pub(crate) fn read_or_make(path: &Path) -> Result<Vec<u8>> {
    if let Some(keys) = read(path)? {
        return Ok(keys);
    }
    let fresh = write_beside(path, &draw()?)?;
    let linked = fs::hard_link(&fresh, path);
    fs::remove_file(&fresh).context("remove the master key's first name")?;
    match linked {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).context("put the master key into place");
        }
        Ok(()) | Err(_) => sync_parent(path)?,
    }
    read(path)?.context("the master key was there a moment ago")
}

fn draw() -> Result<Vec<u8>> {
    let mut key = vec![0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(|error| anyhow::anyhow!("random source: {error}"))?;
    Ok(key)
}

fn write_beside(path: &Path, keys: &[u8]) -> Result<PathBuf> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| anyhow::anyhow!("random source: {error}"))?;
    let fresh = path.with_extension(format!("{:016x}.new", u64::from_ne_bytes(random)));
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)
        .with_context(|| format!("make {}", fresh.display()))?;
    file.write_all(keys).context("write the master key")?;
    file.sync_all().context("flush the master key")?;
    Ok(fresh)
}

fn sync_parent(path: &Path) -> Result<()> {
    let dir = path.parent().context("the master key has no directory")?;
    File::open(dir).and_then(|dir| dir.sync_all()).context("flush the master key's directory")
}
