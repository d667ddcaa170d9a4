//! What a server keeps for the next one, and here there is none: guests that go on, the mounted disk
//! pool, its loop device, and empty cgroups.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};

use super::clock::wait_until;
use super::peers::run;
use super::tree::remove_cgroup;
use crate::say;

/// Ends and removes all of it, for the data directory of a server and keeper that have ended.
pub(super) fn leave_nothing(data: &Path) {
    for cgroup in cgroups(data) {
        if let Err(error) = empty(&cgroup) {
            say::error(&format!("{}: {error:#}", cgroup.display()));
        }
    }
    let own = data.display().to_string();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    for point in points.filter(|point| point.starts_with(&own)).collect::<Vec<_>>().iter().rev() {
        if let Err(errno) = unmount(*point, UnmountFlags::DETACH) {
            say::error(&format!("unmount {point}: {errno}"));
        }
    }
    detach_loops(&own);
}

fn detach_loops(own: &str) {
    let columns = ["--list", "--noheadings", "--output", "NAME,BACK-FILE"];
    let listed = Command::new("losetup").args(columns).output();
    let listed = listed.map(|output| output.stdout).unwrap_or_default();
    for line in String::from_utf8_lossy(&listed).lines().filter(|line| line.contains(own)) {
        let device = line.split_whitespace().next().unwrap_or_default();
        if let Err(error) = run(Command::new("losetup").args(["--detach", device])) {
            say::error(&format!("{error:#}"));
        }
    }
}

/// Those that carry the instance of this data directory, in every hierarchy.
pub(super) fn cgroups(data: &Path) -> Vec<PathBuf> {
    let instance = fs::read_to_string(data.join("instance")).unwrap_or_default();
    let instance = instance.trim();
    let mut parents = vec![PathBuf::from("/sys/fs/cgroup/bastide")];
    let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    parents.extend(hierarchies.map(|hierarchy| hierarchy.path().join("bastide")));
    let entries = parents.into_iter().flat_map(|parent| fs::read_dir(parent).into_iter().flatten());
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| is_of(name, instance)))
        .map(|entry| entry.path())
        .collect()
}

/// A directory's name is the instance, or the beginning of it.
fn is_of(name: &str, instance: &str) -> bool {
    name.len() >= 8 && instance.starts_with(name)
}

fn empty(cgroup: &Path) -> anyhow::Result<()> {
    let kill = cgroup.join("cgroup.kill");
    if kill.exists() {
        fs::write(kill, "1")?;
        let events = cgroup.join("cgroup.events");
        wait_until(Duration::from_secs(5), || {
            fs::read_to_string(&events).unwrap_or_default().contains("populated 0")
        });
    }
    remove_tree(cgroup)
}

fn remove_tree(cgroup: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(cgroup)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    remove_cgroup(cgroup)
}
