//! What a sandbox reached, or tried to: the last entries in memory, all of them (within bounds) in a
//! file beside the sandbox's spec, and a line each for the operator's log. Every one of the three has a
//! bounded rate, so that hostile code cannot fill a disk or a memory with it.

mod file;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use model::{Access, SandboxId, Verdict};
use tokio::time::Instant;
use tracing::info;

use self::file::LogFile;
use super::pace::Pace;

pub(crate) use self::file::read;

/// Entries a second that are written to the file; of more, only the number is kept.
const ENTRIES_PER_SECOND: u32 = 200;

/// Of each verdict one entry in this time is written also beyond that rate: a flood of one kind must not
/// hide the only trace of another.
const KIND_EVERY: Duration = Duration::from_secs(1);

/// Two questions for the same name.
const TWICE_WITHIN: Duration = Duration::from_secs(1);

/// Lines a second in the operator's log.
const LINES_PER_SECOND: u32 = 20;

/// The log of one sandbox.
#[derive(Debug)]
pub(super) struct AccessLog {
    sandbox: SandboxId,
    entries_max: usize,
    inner: Mutex<Inner>,
    file: Option<LogFile>,
}

#[derive(Debug)]
struct Inner {
    /// As they ended.
    ended: VecDeque<Access>,
    open: BTreeMap<u64, Arc<Record>>,
    begun: u64,
    last_seq: u64,
    refused: Option<(String, Instant)>,
    omitted: u64,
    entries: Pace,
    /// When an entry of this verdict was last written.
    written: BTreeMap<Verdict, Instant>,
    lines: Pace,
}

/// An entry that may still be open.
#[derive(Debug)]
pub(super) struct Record {
    number: u64,
    at: Timestamp,
    began: Instant,
    target: String,
    port: Option<u16>,
    address: OnceLock<IpAddr>,
    pub(super) bytes_up: AtomicU64,
    pub(super) bytes_down: AtomicU64,
}

impl AccessLog {
    /// `dir` is the sandbox's own; without one the log is in memory only.
    pub(super) fn new(sandbox: SandboxId, entries_max: usize, dir: Option<PathBuf>) -> Self {
        let inner = Inner {
            ended: VecDeque::new(),
            open: BTreeMap::new(),
            begun: 0,
            last_seq: 0,
            refused: None,
            omitted: 0,
            entries: Pace::per_second(ENTRIES_PER_SECOND),
            written: BTreeMap::new(),
            lines: Pace::per_second(LINES_PER_SECOND),
        };
        Self { sandbox, entries_max, inner: Mutex::new(inner), file: dir.map(LogFile::new) }
    }

    /// A connection begins. It must be ended.
    pub(super) fn begin(&self, target: String, port: u16) -> Arc<Record> {
        self.push(target, Some(port))
    }

    pub(super) fn end(&self, record: &Record, verdict: Verdict) {
        let duration = record.began.elapsed();
        let mut inner = self.inner();
        if inner.open.remove(&record.number).is_none() {
            return;
        }
        let mut entry = record.read(verdict, Some(duration));
        // Time, so that it goes on growing in the next server; never the same twice.
        let now = u64::try_from(entry.at.as_microsecond()).unwrap_or_default();
        inner.last_seq = now.saturating_add(micros(duration)).max(inner.last_seq + 1);
        entry.seq = inner.last_seq;
        if inner.lines.take() {
            self.tell(&entry);
        }
        if inner.may_write(verdict) {
            entry.omitted = std::mem::take(&mut inner.omitted);
            if let Some(file) = &self.file {
                file.push(entry.clone());
            }
        } else {
            inner.omitted += 1;
        }
        if inner.ended.len() >= self.entries_max {
            inner.ended.pop_front();
        }
        inner.ended.push_back(entry);
    }

    /// A name was looked up and refused. Resolvers ask twice, for either kind of address; that is
    /// one entry.
    pub(super) fn name_refused(&self, name: String) {
        let now = Instant::now();
        let last = self.inner().refused.replace((name.clone(), now));
        if last.is_some_and(|(last, at)| last == name && now < at + TWICE_WITHIN) {
            return;
        }
        let record = self.push(name, None);
        self.end(&record, Verdict::NotAllowed);
    }

    /// In the order of their ends, then those that are open.
    pub(super) fn entries(&self) -> Vec<Access> {
        let ended: Vec<Access> = self.inner().ended.iter().cloned().collect();
        ended.into_iter().chain(self.open()).collect()
    }

    /// Oldest first.
    pub(super) fn open(&self) -> Vec<Access> {
        let open = |record: &Arc<Record>| record.read(Verdict::Open, None);
        self.inner().open.values().map(open).collect()
    }

    /// Writes to the file what ends, for as long as it is polled.
    pub(super) async fn write_out(&self) {
        match &self.file {
            Some(file) => file.write_out().await,
            None => std::future::pending().await,
        }
    }

    /// What has ended is in the file.
    pub(super) async fn flush(&self) {
        if let Some(file) = &self.file {
            file.flush().await;
        }
    }

    fn push(&self, target: String, port: Option<u16>) -> Arc<Record> {
        let mut inner = self.inner();
        inner.begun += 1;
        let record = Arc::new(Record {
            number: inner.begun,
            at: Timestamp::now(),
            began: Instant::now(),
            target,
            port,
            address: OnceLock::new(),
            bytes_up: AtomicU64::new(0),
            bytes_down: AtomicU64::new(0),
        });
        inner.open.insert(record.number, Arc::clone(&record));
        record
    }

    fn tell(&self, entry: &Access) {
        info!(
            sandbox.id = %self.sandbox,
            target = entry.target,
            port = entry.port,
            address = entry.address.map(tracing::field::display),
            verdict = entry.verdict.as_str(),
            bytes_up = entry.bytes_up,
            bytes_down = entry.bytes_down,
            "egress"
        );
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn may_write(&mut self, verdict: Verdict) -> bool {
        let now = Instant::now();
        let in_pace = self.entries.take();
        let last = self.written.get(&verdict);
        let may = in_pace || last.is_none_or(|last| *last + KIND_EVERY <= now);
        if may {
            self.written.insert(verdict, now);
        }
        may
    }
}

impl Record {
    pub(super) fn dialled(&self, address: IpAddr) {
        // Only ever set once: a connection is dialled once.
        let _ = self.address.set(address);
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        self.address.get().copied()
    }

    fn read(&self, verdict: Verdict, duration: Option<Duration>) -> Access {
        Access {
            seq: 0,
            at: self.at,
            target: self.target.clone(),
            port: self.port,
            address: self.address(),
            verdict,
            bytes_up: self.bytes_up.load(Ordering::Relaxed),
            bytes_down: self.bytes_down.load(Ordering::Relaxed),
            duration_ms: duration.map(|duration| micros(duration) / 1000),
            omitted: 0,
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::file::{CURRENT, PREVIOUS};
    use super::*;

    fn log(dir: Option<PathBuf>) -> AccessLog {
        AccessLog::new(SandboxId::generate(), 100, dir)
    }

    #[tokio::test]
    async fn what_ended_is_in_the_file_in_order_and_read_from_where_one_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(Some(dir.path().to_owned()));
        for name in ["a.test", "b.test", "c.test"] {
            log.name_refused(name.into());
        }
        let open = log.begin("open.test".into(), 1);
        log.flush().await;
        let all = read(dir.path(), None, 10);
        let names: Vec<&str> = all.iter().map(|entry| entry.target.as_str()).collect();
        assert_eq!(names, ["a.test", "b.test", "c.test"]);
        assert!(all.is_sorted_by(|a, b| a.seq < b.seq));
        assert_eq!(read(dir.path(), Some(all[0].seq), 1)[0].target, "b.test");
        assert_eq!(read(dir.path(), None, 1)[0].target, "c.test");
        assert_eq!(log.open()[0].target, "open.test");
        log.end(&open, Verdict::Ended);
        log.flush().await;
        let newest = read(dir.path(), Some(all[2].seq), 10);
        assert_eq!((newest.len(), newest[0].verdict), (1, Verdict::Ended));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_takes_bounded_room_and_says_how_much_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(Some(dir.path().to_owned()));
        let long = "x".repeat(250);
        for second in 0..100 {
            for name in 0..1000 {
                log.name_refused(format!("{second}.{name}.{long}"));
            }
            tokio::time::advance(Duration::from_millis(100)).await;
            log.flush().await;
        }
        let size = |name| std::fs::metadata(dir.path().join(name)).unwrap().len();
        assert!(size(CURRENT) + size(PREVIOUS) <= 2 * file::BYTES_MAX, "{}", size(CURRENT));
        assert!(log.entries().len() <= 100);
        let all = read(dir.path(), None, 100_000);
        assert!(all.len() > 1000, "{}", all.len());
        let told: u64 = all.iter().map(|entry| 1 + entry.omitted).sum();
        assert!(told > 50_000, "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_kind_does_not_hide_another() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(Some(dir.path().to_owned()));
        for name in 0..1000 {
            log.name_refused(format!("{name}.test"));
        }
        for _ in 0..2 {
            let record = log.begin("metadata.test".into(), 80);
            log.end(&record, Verdict::NotPublic);
        }
        log.flush().await;
        let all = read(dir.path(), None, 100_000);
        let of_it = all.iter().filter(|entry| entry.verdict == Verdict::NotPublic).count();
        assert_eq!((of_it, all.last().map(|entry| entry.omitted)), (1, Some(980)));
    }

    #[tokio::test]
    async fn a_sandbox_that_is_gone_gets_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        let log = log(Some(gone.clone()));
        log.name_refused("a.test".into());
        log.flush().await;
        assert!(!gone.exists());
        assert_eq!(read(&gone, None, 10), []);
    }
}
