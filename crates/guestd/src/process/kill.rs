//! Ending a tree without a cgroup: its group, its session, and whoever descends from it. Best effort:
//! a process that has both left the session and lost its parent is not found.

use std::collections::HashSet;
use std::fs;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// A tree that grows while it is killed is gone through again, this often at most.
const ROUNDS_MAX: usize = 8;

/// Everybody is stopped before anybody is killed, so that nobody sees the end of another one and
/// does something about it.
pub(super) fn tree(leader: Pid) {
    let _ = kill_process_group(leader, Signal::STOP);
    let mut stopped = HashSet::new();
    for _ in 0..ROUNDS_MAX {
        let mut members = members(leader.as_raw_nonzero().get());
        members.retain(|pid| stopped.insert(*pid));
        if members.is_empty() {
            break;
        }
        signal(members.iter(), Signal::STOP);
    }
    let _ = kill_process_group(leader, Signal::KILL);
    let _ = kill_process(leader, Signal::KILL);
    signal(stopped.iter(), Signal::KILL);
}

fn signal<'a>(pids: impl Iterator<Item = &'a i32>, signal: Signal) {
    for pid in pids.filter_map(|pid| Pid::from_raw(*pid)) {
        // Already gone is as good.
        let _ = kill_process(pid, signal);
    }
}

fn members(root: i32) -> HashSet<i32> {
    let all = all();
    let mut found = HashSet::from([root]);
    loop {
        let before = found.len();
        for (pid, parent, session) in &all {
            if *session == root || found.contains(parent) {
                found.insert(*pid);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Pid, parent and session of every process that is not a zombie.
fn all() -> Vec<(i32, i32, i32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // The name of the program is in parentheses and may contain anything.
            let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
            if fields.next()? == "Z" {
                return None;
            }
            let parent = fields.next()?.parse().ok()?;
            let session = fields.nth(1)?.parse().ok()?;
            Some((pid, parent, session))
        })
        .collect()
}
