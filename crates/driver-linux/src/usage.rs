//! Counters of one incarnation, read on the host.

use std::path::{Path, PathBuf};

use driver::Usage;

use crate::cgroup::value_of;
use crate::incarnation;
use crate::plan::RunRecord;

pub(crate) fn read(record: &RunRecord) -> Usage {
    match &record.unified {
        Some(unified) => of_groups(unified, &record.legacy),
        None => of_first(record),
    }
}

/// From whichever hierarchy has them.
fn of_groups(unified: &Path, legacy: &[PathBuf]) -> Usage {
    let read = |dir: &Path, file: &str| std::fs::read_to_string(dir.join(file)).ok();
    let number = |text: Option<String>| text.and_then(|t| t.trim().parse::<u64>().ok());
    let any_legacy = |file: &str| legacy.iter().find_map(|dir| read(dir, file));
    let cpu = read(unified, "cpu.stat").and_then(|text| value_of(&text, "usage_usec"));
    let memory = number(read(unified, "memory.current"))
        .or_else(|| number(any_legacy("memory.usage_in_bytes")));
    let oom = read(unified, "memory.events")
        .or_else(|| any_legacy("memory.oom_control"))
        .and_then(|text| value_of(&text, "oom_kill"));
    let pids = number(read(unified, "pids.current")).or_else(|| number(any_legacy("pids.current")));
    Usage {
        cpu_usec: cpu.unwrap_or_default(),
        memory_bytes: memory.unwrap_or_default(),
        pids: pids.unwrap_or_default(),
        disk_bytes: 0,
        oom_kills: oom.unwrap_or_default(),
    }
}

/// Without control groups only processor time is known, and that of what has ended.
fn of_first(record: &RunRecord) -> Usage {
    const TICK_USEC: u64 = 10_000;
    let field = |number| incarnation::stat_field(record.pid, number).unwrap_or_default();
    if !incarnation::holds(record) {
        return Usage::default();
    }
    let ticks: u64 = (14..=17).map(field).sum();
    Usage { cpu_usec: ticks * TICK_USEC, ..Usage::default() }
}
