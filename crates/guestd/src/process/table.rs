//! The processes that are remembered: all that run, and those that ended a while ago, so that a
//! client that comes back still learns how.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{Process, Until};
use crate::refusal::{Code, Refusal, Result};

/// Beyond these, starting is refused.
const RUNNING_MAX: usize = 1024;

/// Beyond these, the oldest are forgotten early. Each may hold a full ring.
const ENDED_MAX: usize = 32;

/// After the end was read, or, for envd, after the end (ruling 18).
const KEPT_AFTER_READ: Duration = Duration::from_secs(30);

/// When nobody read the end of a command.
const KEPT_UNREAD: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    by_key: HashMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    process: Arc<Process>,
    ended_at: Option<Instant>,
    read_at: Option<Instant>,
}

impl Table {
    /// Before anything is started.
    pub(crate) fn check_room(&self, id: Option<&str>) -> Result<()> {
        let entries = self.lock();
        if entries.by_key.values().filter(|entry| entry.ended_at.is_none()).count() >= RUNNING_MAX {
            let message = format!("more than {RUNNING_MAX} commands are running");
            return Err(Refusal::new(Code::ResourceExhausted, message));
        }
        let taken = |entry: &Entry| id.is_some() && entry.process.start.id.as_deref() == id;
        if entries.by_key.values().any(taken) {
            return Err(Refusal::new(Code::AlreadyExists, "a command with that id is known"));
        }
        Ok(())
    }

    pub(crate) fn add(&self, process: Arc<Process>) -> u64 {
        let mut entries = self.lock();
        entries.forget_old();
        let key = entries.next;
        entries.next += 1;
        entries.by_key.insert(key, Entry { process, ended_at: None, read_at: None });
        key
    }

    pub(crate) fn ended(&self, key: u64) {
        let mut entries = self.lock();
        if let Some(entry) = entries.by_key.get_mut(&key) {
            entry.ended_at = Some(Instant::now());
        }
        entries.forget_old();
    }

    /// Nobody can ask for it again.
    pub(crate) fn forget(&self, process: &Arc<Process>) {
        self.lock().by_key.retain(|_, entry| !Arc::ptr_eq(&entry.process, process));
    }

    /// Forgets what is due; `None` when nothing will become due by itself.
    pub(crate) fn sweep(&self) -> Option<Instant> {
        let mut entries = self.lock();
        entries.forget_old();
        entries.by_key.values().filter_map(Entry::due).min()
    }

    pub(crate) fn by_id(&self, id: &str) -> Result<Arc<Process>> {
        self.find(|process| process.start.id.as_deref() == Some(id))
            .ok_or_else(|| Refusal::not_found(format!("no such command: {id}")))
    }

    /// Among those of envd; the newest when a pid came twice.
    pub(crate) fn by_pid(&self, pid: u32) -> Result<Arc<Process>> {
        self.find(|process| process.start.id.is_none() && process.pid == pid)
            .ok_or_else(|| Refusal::not_found(format!("process with pid {pid} not found")))
    }

    pub(crate) fn by_tag(&self, tag: &str) -> Result<Arc<Process>> {
        self.find(|process| process.start.id.is_none() && process.start.tag.as_deref() == Some(tag))
            .ok_or_else(|| Refusal::not_found(format!("process with tag {tag} not found")))
    }

    pub(crate) fn running(&self) -> Vec<Arc<Process>> {
        let entries = self.lock();
        let running = entries.by_key.iter().filter(|(_, entry)| entry.process.is_running());
        let mut running: Vec<_> =
            running.map(|(key, entry)| (*key, Arc::clone(&entry.process))).collect();
        running.sort_unstable_by_key(|(key, _)| *key);
        running.into_iter().map(|(_, process)| process).collect()
    }

    fn find(&self, is_it: impl Fn(&Process) -> bool) -> Option<Arc<Process>> {
        let mut entries = self.lock();
        entries.forget_old();
        let newest = entries.by_key.iter().filter(|(_, entry)| is_it(&entry.process));
        newest.max_by_key(|(key, _)| **key).map(|(_, entry)| Arc::clone(&entry.process))
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn forget_old(&mut self) {
        let now = Instant::now();
        for entry in self.by_key.values_mut() {
            if entry.read_at.is_none()
                && entry.ended_at.is_some()
                && entry.process.output.end_read()
            {
                entry.read_at = Some(now);
            }
        }
        self.by_key.retain(|_, entry| entry.due().is_none_or(|due| due > now));
        let mut ended: Vec<_> = self
            .by_key
            .iter()
            .filter_map(|(key, entry)| Some((entry.read_at.is_none(), entry.ended_at?, *key)))
            .collect();
        let excess = ended.len().saturating_sub(ENDED_MAX);
        ended.sort_unstable();
        for (.., key) in ended.into_iter().take(excess) {
            self.by_key.remove(&key);
        }
    }
}

impl Entry {
    fn due(&self) -> Option<Instant> {
        let ended_at = self.ended_at?;
        if self.process.start.until == Until::Closed {
            return Some(ended_at + KEPT_AFTER_READ);
        }
        Some(self.read_at.map_or(ended_at + KEPT_UNREAD, |read_at| read_at + KEPT_AFTER_READ))
    }
}
