//! What the kernel says of a process.

use std::fs;
use std::time::Duration;

use anyhow::Context;

/// A line of its status.
pub(super) fn kib(pid: u32, field: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.trim_start_matches(':').split_whitespace().next());
    number.and_then(|number| number.parse().ok()).context("read its memory")
}

/// What it has used of processors.
pub(super) fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit(')').next().unwrap_or_default();
    let used = after.split_whitespace().skip(11).take(2);
    let ticks: u64 = used.filter_map(|text| text.parse::<u64>().ok()).sum();
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis(ticks * 1000 / per_second.max(1)))
}
