//! What a sandbox reached, or tried to: a bounded list per sandbox, and a line each for the
//! operator's log, at a bounded rate so that hostile code cannot fill a disk with it.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use model::SandboxId;
use tokio::time::Instant;
use tracing::info;

use super::pace::Pace;

/// One connection, or one name that was not resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    pub at: Timestamp,
    /// The name that was asked for, or the address when a program wrote a number.
    pub target: String,
    /// `None` for a name that was refused when it was looked up.
    pub port: Option<u16>,
    /// The address that was dialled.
    pub address: Option<IpAddr>,
    pub verdict: Verdict,
    pub bytes_up: u64,
    pub bytes_down: u64,
    /// `None` while it is open.
    pub duration: Option<Duration>,
}

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Allowed, and still open (or being dialled).
    Open,
    /// Allowed, and ended by one of its ends.
    Ended,
    /// The policy has no rule for this name or address, and port.
    NotAllowed,
    /// An address of our range that stands for no name, or the listener's own.
    UnknownAddress,
    /// The name resolves only to addresses that are private, or the host's own, and not listed.
    NotPublic,
    /// The name does not resolve, or not in time.
    Unresolved,
    /// No address answered in time.
    Unreachable,
    /// TLS was begun for another name.
    SniDiffers,
    /// HTTP was spoken to another host.
    HostDiffers,
    /// It began like TLS or HTTP, but could not be read far enough to compare names.
    Unreadable,
    /// The policy changed, and no longer allows it.
    PolicyChanged,
    /// No byte in either direction for too long.
    Idle,
    /// The sandbox was closed.
    Closed,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Ended => "ended",
            Self::NotAllowed => "not allowed",
            Self::UnknownAddress => "unknown address",
            Self::NotPublic => "not a public address",
            Self::Unresolved => "does not resolve",
            Self::Unreachable => "unreachable",
            Self::SniDiffers => "sni differs",
            Self::HostDiffers => "host differs",
            Self::Unreadable => "unreadable head",
            Self::PolicyChanged => "policy changed",
            Self::Idle => "idle",
            Self::Closed => "closed",
        }
    }
}

/// The list of one sandbox.
#[derive(Debug)]
pub(super) struct AccessLog {
    sandbox: SandboxId,
    entries_max: usize,
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    entries: VecDeque<Arc<Record>>,
    lines: Pace,
}

/// An entry that may still be open.
#[derive(Debug)]
pub(super) struct Record {
    at: Timestamp,
    began: Instant,
    target: String,
    port: Option<u16>,
    address: OnceLock<IpAddr>,
    end: OnceLock<(Verdict, Duration)>,
    pub(super) bytes_up: AtomicU64,
    pub(super) bytes_down: AtomicU64,
}

impl AccessLog {
    pub(super) fn new(sandbox: SandboxId, entries_max: usize) -> Self {
        let ring = Ring { entries: VecDeque::new(), lines: Pace::per_second(20) };
        Self { sandbox, entries_max, ring: Mutex::new(ring) }
    }

    /// A connection begins.
    pub(super) fn begin(&self, target: String, port: u16) -> Arc<Record> {
        self.push(Record::new(target, Some(port)))
    }

    pub(super) fn end(&self, record: &Record, verdict: Verdict) {
        if record.end.set((verdict, record.began.elapsed())).is_ok() {
            self.tell(record, verdict);
        }
    }

    /// A name was looked up and refused.
    pub(super) fn name_refused(&self, name: String) {
        let record = self.push(Record::new(name, None));
        self.end(&record, Verdict::NotAllowed);
    }

    /// Oldest first.
    pub(super) fn entries(&self) -> Vec<Access> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.entries.iter().map(|record| record.read()).collect()
    }

    fn push(&self, record: Record) -> Arc<Record> {
        let record = Arc::new(record);
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.entries.len() >= self.entries_max {
            ring.entries.pop_front();
        }
        ring.entries.push_back(Arc::clone(&record));
        record
    }

    fn tell(&self, record: &Record, verdict: Verdict) {
        if !self.ring.lock().unwrap_or_else(PoisonError::into_inner).lines.take() {
            return;
        }
        info!(
            sandbox.id = %self.sandbox,
            target = record.target,
            port = record.port,
            address = record.address.get().map(tracing::field::display),
            verdict = verdict.as_str(),
            bytes_up = record.bytes_up.load(Ordering::Relaxed),
            bytes_down = record.bytes_down.load(Ordering::Relaxed),
            "egress"
        );
    }
}

impl Record {
    fn new(target: String, port: Option<u16>) -> Self {
        Self {
            at: Timestamp::now(),
            began: Instant::now(),
            target,
            port,
            address: OnceLock::new(),
            end: OnceLock::new(),
            bytes_up: AtomicU64::new(0),
            bytes_down: AtomicU64::new(0),
        }
    }

    pub(super) fn dialled(&self, address: IpAddr) {
        // Only ever set once: a connection is dialled once.
        let _ = self.address.set(address);
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        self.address.get().copied()
    }

    fn read(&self) -> Access {
        let end = self.end.get().copied();
        Access {
            at: self.at,
            target: self.target.clone(),
            port: self.port,
            address: self.address(),
            verdict: end.map_or(Verdict::Open, |(verdict, _)| verdict),
            bytes_up: self.bytes_up.load(Ordering::Relaxed),
            bytes_down: self.bytes_down.load(Ordering::Relaxed),
            duration: end.map(|(_, duration)| duration),
        }
    }
}
