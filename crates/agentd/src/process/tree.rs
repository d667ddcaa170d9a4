//! Who belongs to an agent: read off `/proc`.

use std::collections::HashMap;

use rustix::process::Pid;

use super::MARK;

/// Everything below a process.
pub(super) fn descendants(of: Pid) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in pids() {
        if let Some((_, parent)) = stat(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut todo = vec![of.as_raw_nonzero().get()];
    while let Some(pid) = todo.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            found.extend(Pid::from_raw(child));
            todo.push(child);
        }
    }
    found
}

/// What has this parent.
pub(super) fn children(of: Pid) -> Vec<Pid> {
    let parent = of.as_raw_nonzero().get();
    let is_child = |pid: &i32| stat(*pid).is_some_and(|(_, found)| found == parent);
    pids().into_iter().filter(is_child).filter_map(Pid::from_raw).collect()
}

/// Everything that was started with this mark, wherever it went since. Not what is dead already.
pub(super) fn marked(mark: &str) -> Vec<Pid> {
    let wanted = format!("{MARK}={mark}");
    let has_mark = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| {
            environ.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes())
        })
    };
    pids().into_iter().filter(has_mark).filter_map(Pid::from_raw).filter(|p| is_alive(*p)).collect()
}

/// A zombie is not.
pub(super) fn is_alive(pid: Pid) -> bool {
    stat(pid.as_raw_nonzero().get()).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

fn pids() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Its state and its parent.
fn stat(pid: i32) -> Option<(char, i32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything.
    let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}
