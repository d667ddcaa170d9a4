//! The lease of a data directory: of all servers on it, the one that holds it launches, stops and
//! reaps.
//!
//! It is a lock on the file `lease`, which the kernel takes back when its holder ends, however it
//! ends, and never before: a holder that is merely slow, or stopped, keeps it. Each holder takes the
//! next epoch from the store, which refuses what holders of earlier ones still write; and looks at the
//! file before it acts, in case somebody removed it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use store::{Epoch, Store};
use tokio::sync::oneshot;

const LEASE_FILE: &str = "lease";
/// How often its holder looks whether it still does.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The lock, taken; nobody was told yet.
pub struct Lock {
    file: File,
    path: PathBuf,
}

/// A held lease. Clones are one; it ends with the process.
#[derive(Clone)]
pub struct Lease {
    lock: Arc<Lock>,
    epoch: Epoch,
}

/// What the file says, for others to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) epoch: u64,
    pub(crate) pid: u32,
}

impl Lock {
    /// `None` when another server holds it.
    pub fn try_take(data_dir: &Path) -> Result<Option<Self>> {
        Self::take(data_dir, FlockOperation::NonBlockingLockExclusive)
    }

    /// Resolves once the servers before us have ended. A thread waits for it, which ends with the process.
    pub fn wait(data_dir: &Path) -> Result<oneshot::Receiver<Result<Self>>> {
        let (taken, waiting) = oneshot::channel();
        let dir = data_dir.to_owned();
        let wait = move || {
            let lock = loop {
                match Self::take(&dir, FlockOperation::LockExclusive) {
                    Ok(None) => {}
                    Ok(Some(lock)) => break Ok(lock),
                    Err(error) => break Err(error),
                }
            };
            // Fails when the server has ended meanwhile: then the lock is free again.
            let _ = taken.send(lock);
        };
        std::thread::Builder::new()
            .name("lease".into())
            .spawn(wait)
            .context("wait for the lease")?;
        Ok(waiting)
    }

    fn take(data_dir: &Path, how: FlockOperation) -> Result<Option<Self>> {
        let path = data_dir.join(LEASE_FILE);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).with_context(|| format!("open {}", path.display()))?;
        match flock(&file, how) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno).with_context(|| format!("lock {}", path.display())),
        }
        let lock = Self { file, path };
        // The file may have been replaced while we waited: then this is a lock on nothing.
        Ok(lock.is_the_one().then_some(lock))
    }

    fn is_the_one(&self) -> bool {
        let both = (self.file.metadata(), std::fs::metadata(&self.path));
        matches!(both, (Ok(ours), Ok(named)) if (ours.dev(), ours.ino()) == (named.dev(), named.ino()))
    }
}

impl Lease {
    /// Begins the next epoch.
    pub async fn begin(lock: Lock, store: &Store) -> Result<Self> {
        let epoch = store.next_epoch().await?;
        let holder = Holder { epoch: epoch.0, pid: std::process::id() };
        let mut file = &lock.file;
        file.set_len(0).context("write the lease")?;
        file.rewind().context("write the lease")?;
        let text = serde_json::to_string(&holder).context("write the lease")?;
        writeln!(file, "{text}").context("write the lease")?;
        Ok(Self { lock: Arc::new(lock), epoch })
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether it is still ours. A few microseconds.
    pub fn holds(&self) -> bool {
        self.lock.is_the_one()
            && read(&self.lock.path).is_some_and(|holder| holder.epoch == self.epoch.0)
    }

    /// Returns when it is lost, which takes somebody who removes the file.
    pub async fn lost(&self) {
        while self.holds() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Who holds the lease of this directory, or held it last.
pub(crate) fn holder(data_dir: &Path) -> Option<Holder> {
    read(&data_dir.join(LEASE_FILE))
}

fn read(path: &Path) -> Option<Holder> {
    let mut text = String::new();
    File::open(path).ok()?.take(1024).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests;
