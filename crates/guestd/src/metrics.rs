//! `/metrics`: what the sandbox uses, as it sees it itself. For display; money is counted on the
//! host.

use std::fs;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::connect::time;
use crate::refusal::{Refusal, Result};
use crate::state::State;

/// Times of the kernel, at the last look.
#[derive(Debug, Default)]
pub(crate) struct CpuMeter(Mutex<CpuTimes>);

#[derive(Debug, Default, Clone, Copy)]
struct CpuTimes {
    busy: u64,
    total: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    ts: u64,
    cpu_count: usize,
    cpu_used_pct: f32,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    mem_total_mib: u64,
    mem_used_mib: u64,
    disk_total: u64,
    disk_used: u64,
}

pub(crate) fn sample(state: &State) -> Result<Sample> {
    let memory = fs::read_to_string("/proc/meminfo").map_err(|e| Refusal::io("read memory", &e))?;
    let stat = fs::read_to_string("/proc/stat").map_err(|e| Refusal::io("read cpu", &e))?;
    let field = |name: &str| kibibytes(&memory, name) * 1024;
    let mem_total = field("MemTotal:");
    let mem_used = mem_total.saturating_sub(field("MemAvailable:"));
    let disk = rustix::fs::statvfs("/").map_err(|errno| Refusal::errno("read disk", errno))?;
    Ok(Sample {
        ts: time::now(),
        cpu_count: stat.lines().filter(|line| is_one_cpu(line)).count(),
        cpu_used_pct: state.cpu.used_percent(cpu_times(&stat)),
        mem_total,
        mem_used,
        mem_cache: field("Cached:"),
        mem_total_mib: mem_total >> 20,
        mem_used_mib: mem_used >> 20,
        disk_total: disk.f_blocks * disk.f_frsize,
        disk_used: disk.f_blocks.saturating_sub(disk.f_bfree) * disk.f_frsize,
    })
}

impl CpuMeter {
    /// Since the last look, or since the start.
    fn used_percent(&self, now: CpuTimes) -> f32 {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = now.busy.saturating_sub(last.busy);
        let total = now.total.saturating_sub(last.total);
        *last = now;
        // In hundredths of a percent, which a float holds exactly enough.
        let hundredths = (busy * 10_000).checked_div(total).unwrap_or(0).min(10_000);
        f32::from(u16::try_from(hundredths).unwrap_or(10_000)) / 100.0
    }
}

fn is_one_cpu(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn cpu_times(stat: &str) -> CpuTimes {
    let line = stat.lines().next().unwrap_or("");
    let times: Vec<u64> = line
        .split_ascii_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|text| text.parse().ok())
        .collect();
    let total = times.iter().sum();
    let idle: u64 = times.iter().skip(3).take(2).sum();
    CpuTimes { busy: total - idle, total }
}

fn kibibytes(memory: &str, name: &str) -> u64 {
    let value = memory.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}
