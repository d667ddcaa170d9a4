//! A mailbox for servers that send nothing: `DATA/mail`, a file for each mail, for its owner alone.
//! The newest are kept.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lettre::Message;

const KEPT_MAX: usize = 1000;

pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn new(data_dir: &Path) -> Self {
        Self(data_dir.join("mail"))
    }

    pub(super) async fn put(&self, mail: Message) -> Result<()> {
        let dir = self.0.clone();
        let put = tokio::task::spawn_blocking(move || put(&dir, &mail.formatted()));
        put.await.context("write a mail")?
    }
}

fn put(dir: &Path, mail: &[u8]) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("make {}", dir.display()))?;
    // Sorts by time.
    let name = format!("{}.eml", model::SandboxId::generate().bare());
    let hidden = dir.join(format!(".{name}"));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&hidden)
        .with_context(|| format!("make {}", hidden.display()))?;
    file.write_all(mail).context("write a mail")?;
    fs::rename(&hidden, dir.join(name)).context("put a mail into the mailbox")?;
    forget_old(dir)
}

fn forget_old(dir: &Path) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
    let mut names: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
    names.sort();
    for name in names.iter().take(names.len().saturating_sub(KEPT_MAX)) {
        match fs::remove_file(dir.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).context("forget an old mail");
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}
