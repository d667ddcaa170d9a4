//! The processes of one incarnation, whoever counts them: its control group, or on a host that gives
//! us none, its PID 1, with which the kernel ends everything in its pid namespace.
//!
//! A pid is proved by its start time, and a kill goes through a descriptor of the process, so that a
//! pid that was given to somebody else is never hit.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cgroup::{self, Removed};
use crate::plan::RunRecord;

/// Kills every process of it. `Ok` when none lives.
pub fn kill(record: &RunRecord) -> anyhow::Result<()> {
    match &record.unified {
        Some(unified) => cgroup::kill(unified),
        None => kill_first(record),
    }
}

fn kill_first(record: &RunRecord) -> anyhow::Result<()> {
    let Some(pid) = Pid::from_raw(record.pid) else { return Ok(()) };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
    // Looked at after it was opened: from here on it cannot become another one.
    if started_ticks(record.pid) != Some(record.started_ticks) {
        return Ok(());
    }
    match pidfd_send_signal(&process, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno).context("kill the sandbox's first process"),
    }
}

/// Whether any process of it lives.
pub fn is_populated(record: &RunRecord) -> bool {
    match &record.unified {
        Some(unified) => cgroup::is_populated(unified),
        None => holds(record),
    }
}

/// Whether the recorded pid is the recorded process still.
pub fn holds(record: &RunRecord) -> bool {
    match &record.unified {
        // Nobody else can have made it a member.
        Some(unified) => {
            let members = fs::read_to_string(unified.join("cgroup.procs")).unwrap_or_default();
            let pid = record.pid.to_string();
            members.lines().any(|line| line == pid)
        }
        None => started_ticks(record.pid) == Some(record.started_ticks),
    }
}

/// Whether its launcher took the old root away, with which it is whole. One that was killed a moment before, did not.
pub fn is_whole(record: &RunRecord) -> bool {
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", record.pid)).unwrap_or_default();
    let roots = mounts.lines().filter(|line| line.split(' ').nth(4) == Some("/"));
    roots.count() == 1
}

pub fn freeze_asked(record: &RunRecord) -> bool {
    record.unified.as_deref().is_some_and(cgroup::freeze_asked)
}

/// Removes what it had among the control groups, and tells whether it was this call that did.
pub fn remove(record: &RunRecord) -> Removed {
    match &record.unified {
        Some(unified) => cgroup::remove_leaf(unified, &record.legacy),
        None if holds(record) => Removed::Not,
        None => Removed::Now,
    }
}

/// Whether anything of it is there: a process, or the group that it had.
pub fn has_remains(record: &RunRecord) -> bool {
    match &record.unified {
        Some(unified) => unified.exists(),
        None => holds(record),
    }
}

/// After a kill, until nothing of it lives. Blocks.
pub fn wait_until_gone(record: &RunRecord) -> anyhow::Result<()> {
    wait_until(|| !is_populated(record))
        .with_context(|| format!("of the processes of {}", record.incarnation))
}

/// The same of a control group.
pub fn wait_until_empty(unified: &Path) -> anyhow::Result<()> {
    wait_until(|| !cgroup::is_populated(unified))
        .with_context(|| format!("of the processes in {}", unified.display()))
}

#[expect(clippy::disallowed_methods, reason = "bounded; callers are blocking threads")]
fn wait_until(are_gone: impl Fn() -> bool) -> anyhow::Result<()> {
    /// Killed processes go within milliseconds.
    const GONE_WITHIN_MS: u32 = 5000;
    for _ in 0..GONE_WITHIN_MS {
        if are_gone() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    bail!("some do not die")
}

/// When a process began, in clock ticks since boot. `None` for one that is not there, or dead.
pub fn started_ticks(pid: i32) -> Option<u64> {
    stat_field(pid, 22)
}

/// A number of `/proc/PID/stat`, counted from 1 as its manual does. `None` for a process that is not there, or dead.
pub fn stat_field(pid: i32, number: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may contain anything.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    if matches!(fields.clone().next()?, "Z" | "X") {
        return None;
    }
    fields.nth(number.checked_sub(3)?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(pid: u32) -> RunRecord {
        let pid = i32::try_from(pid).unwrap();
        RunRecord {
            incarnation: "1".into(),
            nonce: String::new(),
            pid,
            boot_id: String::new(),
            uid_base: 0,
            started_ticks: started_ticks(pid).unwrap(),
            unified: None,
            legacy: Vec::new(),
            socket: "/nowhere".into(),
            started_at: jiff::Timestamp::now(),
        }
    }

    #[test]
    fn without_a_control_group_the_recorded_process_is_killed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let record = record(child.id());
        assert!(is_populated(&record) && holds(&record));
        kill(&record).unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(!is_populated(&record));
        kill(&record).unwrap();
    }

    #[test]
    fn a_pid_that_is_somebody_elses_now_is_left_alone() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut record = record(child.id());
        record.started_ticks += 1;
        assert!(!holds(&record));
        kill(&record).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
