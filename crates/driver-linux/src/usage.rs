//! Counters of one incarnation, read on the host.

use std::path::Path;

use driver::Usage;

use crate::cgroup::value_of;
use crate::incarnation;
use crate::plan::RunRecord;

pub(crate) fn read(record: &RunRecord) -> Usage {
    Usage {
        cpu_usec: cpu_usec(record),
        memory_bytes: memory_bytes(record).unwrap_or_default(),
        pids: pids(record),
        disk_bytes: 0,
        oom_kills: oom_kills(record),
    }
}

/// Without control groups that of what has ended.
pub(crate) fn cpu_usec(record: &RunRecord) -> u64 {
    match &record.unified {
        Some(unified) => {
            text(unified, "cpu.stat").and_then(|text| value_of(&text, "usage_usec")).unwrap_or(0)
        }
        None => cpu_usec_of_first(record),
    }
}

/// 0 where nobody counts them.
pub(crate) fn pids(record: &RunRecord) -> u64 {
    first(record, "pids.current", "pids.current").and_then(|text| number(&text)).unwrap_or(0)
}

pub(crate) fn oom_kills(record: &RunRecord) -> u64 {
    let text = first(record, "memory.events", "memory.oom_control");
    text.and_then(|text| value_of(&text, "oom_kill")).unwrap_or(0)
}

fn memory_bytes(record: &RunRecord) -> Option<u64> {
    first(record, "memory.current", "memory.usage_in_bytes").and_then(|text| number(&text))
}

/// From whichever hierarchy has it.
fn first(record: &RunRecord, file: &str, legacy_file: &str) -> Option<String> {
    let unified = record.unified.as_deref()?;
    let legacy = || record.legacy.iter().find_map(|dir| text(dir, legacy_file));
    text(unified, file).or_else(legacy)
}

fn text(dir: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(dir.join(file)).ok()
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn cpu_usec_of_first(record: &RunRecord) -> u64 {
    const TICK_USEC: u64 = 10_000;
    let field = |number| incarnation::stat_field(record.pid, number).unwrap_or_default();
    if !incarnation::holds(record) {
        return 0;
    }
    let ticks: u64 = (14..=17).map(field).sum();
    ticks * TICK_USEC
}
