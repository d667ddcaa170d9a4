//! The file half of an access log: one JSON line an entry, in the sandbox's own directory, so that it
//! goes with the sandbox. Two files, the older of which is replaced: never more than twice
//! [`BYTES_MAX`]. Nothing is flushed to the disk: this is no ledger.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::Access;
use tokio::sync::Notify;
use tokio::time::sleep;

pub(crate) const CURRENT: &str = "egress.jsonl";
pub(crate) const PREVIOUS: &str = "egress.1.jsonl";

/// Of one file.
pub(super) const BYTES_MAX: u64 = 512 << 10;

/// Entries that wait to be written; more push out the oldest.
const PENDING_MAX: usize = 1024;

/// What ends together is written together.
const GATHER: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct LogFile {
    shared: Arc<Shared>,
    more: Notify,
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    pending: Mutex<VecDeque<Access>>,
    /// Held while the file is written: one writer at a time.
    writing: Mutex<()>,
}

impl LogFile {
    pub(super) fn new(dir: PathBuf) -> Self {
        let shared = Shared { dir, pending: Mutex::default(), writing: Mutex::default() };
        Self { shared: Arc::new(shared), more: Notify::new() }
    }

    pub(super) fn push(&self, entry: Access) {
        let mut pending = self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.len() >= PENDING_MAX {
            pending.pop_front();
        }
        pending.push_back(entry);
        drop(pending);
        self.more.notify_one();
    }

    /// Until it is dropped.
    pub(super) async fn write_out(&self) {
        loop {
            self.more.notified().await;
            sleep(GATHER).await;
            self.flush().await;
        }
    }

    pub(super) async fn flush(&self) {
        let shared = Arc::clone(&self.shared);
        let written = tokio::task::spawn_blocking(move || shared.write()).await;
        // A sandbox that is being removed has no directory any more, and needs no log.
        if let Ok(Err(error)) = written
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(error = error.to_string(), "could not write an access log");
        }
    }
}

impl Shared {
    fn write(&self) -> io::Result<()> {
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let entries =
            std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        let mut text = Vec::new();
        for entry in &entries {
            serde_json::to_writer(&mut text, entry)?;
            text.push(b'\n');
        }
        if text.is_empty() {
            return Ok(());
        }
        let path = self.dir.join(CURRENT);
        let size = fs::metadata(&path).map_or(0, |meta| meta.len());
        if size + text.len() as u64 > BYTES_MAX && size > 0 {
            fs::rename(&path, self.dir.join(PREVIOUS))?;
        }
        let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?;
        file.write_all(&text)
    }
}

/// Entries of a sandbox, in order: the first `limit` after `after`, or without it the last `limit`.
pub(crate) fn read(dir: &Path, after: Option<u64>, limit: usize) -> Vec<Access> {
    let mut kept = VecDeque::new();
    for name in [PREVIOUS, CURRENT] {
        // Absent, or gone this moment: there is no more to tell.
        let text = fs::read_to_string(dir.join(name)).unwrap_or_default();
        // A line that a crash cut off is passed over.
        for entry in text.lines().filter_map(|line| serde_json::from_str::<Access>(line).ok()) {
            match after {
                Some(after) if entry.seq <= after || kept.len() >= limit => {}
                Some(_) => kept.push_back(entry),
                None => {
                    if kept.len() >= limit {
                        kept.pop_front();
                    }
                    kept.push_back(entry);
                }
            }
        }
    }
    kept.into()
}
