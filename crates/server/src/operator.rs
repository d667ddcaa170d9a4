//! The operator's own key: made at first start, kept in `DIR/operator.key`, readable by its owner.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use model::{OwnerId, Plan};
use store::{KeyFormat, Store};

pub const OPERATOR_KEY_FILE: &str = "operator.key";
const OPERATOR: &str = "usr_operator";

/// Makes the key unless the one in the file works. Answers where the file is.
pub async fn ensure_operator_key(store: &Store, data_dir: &Path) -> Result<PathBuf> {
    let file = data_dir.join(OPERATOR_KEY_FILE);
    if let Some(secret) = read(&file)? {
        if store.verify(&secret).await?.is_some() {
            return Ok(file);
        }
        tracing::warn!("the key in {} is not known to the store: making a new one", file.display());
    }
    let owner = owner();
    let key = store.create_key(&owner, Plan::Operator, KeyFormat::Live, "operator").await?;
    write(data_dir, &file, &key.secret)?;
    tracing::info!("the operator's key is in {}", file.display());
    Ok(file)
}

/// Whom the operator's own things belong to.
pub(crate) fn owner() -> OwnerId {
    OPERATOR.parse().expect("a constant id")
}

/// `None` when there is no file, or an empty one that a crash left behind.
fn read(file: &Path) -> Result<Option<String>> {
    let mut text = String::new();
    match File::open(file) {
        Ok(mut open) => open.read_to_string(&mut text).context("read the operator's key")?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context(format!("open {}", file.display())),
    };
    let secret = text.trim().to_owned();
    Ok((!secret.is_empty()).then_some(secret))
}

/// Whole or not at all: a new file made exclusively, flushed, then renamed into place.
fn write(data_dir: &Path, file: &Path, secret: &str) -> Result<()> {
    let fresh = data_dir.join(format!(".{OPERATOR_KEY_FILE}.new"));
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).context("remove a half-written key");
        }
        Ok(()) | Err(_) => {}
    }
    let mut open = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)
        .with_context(|| format!("make {}", fresh.display()))?;
    writeln!(open, "{secret}").context("write the operator's key")?;
    open.sync_all().context("flush the operator's key")?;
    std::fs::rename(&fresh, file).context("put the operator's key into place")?;
    File::open(data_dir).and_then(|dir| dir.sync_all()).context("flush the data directory")
}
