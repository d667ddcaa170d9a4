//! What is there beyond what may be: after every process, mount, group, disk and file of the town was
//! counted against the sandboxes that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::town::{Town, control_groups, processes};

/// The most that a soak may be told to keep waiting.
const WAITING_MAX: usize = 4;

/// Empty when nothing leaked. `live` are the bare ids of all sandboxes, `running` of those with compute.
pub(super) fn leaks(
    town: &Town,
    live: &BTreeSet<String>,
    running: &BTreeSet<String>,
) -> anyhow::Result<Vec<String>> {
    town.reap()?;
    let data = town.data();
    let mut found = Vec::new();
    let mut extra = |what: &str, dir: &Path, allowed: &dyn Fn(&str) -> bool| {
        for name in names(dir) {
            if !allowed(&name) {
                found.push(format!("{what} {name}"));
            }
        }
    };
    let is_live = |name: &str| live.contains(name);
    let waiting: BTreeSet<String> = names(&data.join("warm")).into_iter().collect();
    let waits = |name: &str| waiting.contains(name);
    extra("a directory of a sandbox", &data.join("sandboxes"), &is_live);
    extra("an unfinished delete", &data.join("deleting"), &|_| false);
    extra("a waiting sandbox", &data.join("warm"), &|_| waiting.len() <= WAITING_MAX);
    extra("a socket", &data.join("run/g"), &|name| running.contains(name) || waits(name));
    let groups_of_ours = control_groups(&town.instance()?);
    let has_group = |name: &str| groups_of_ours.iter().any(|group| group.join(name).is_dir());
    extra("a socket of a guest to come", &data.join("run/next"), &has_group);
    extra("what is left of a build", &data.join("builds"), &|_| false);
    extra("a note of an exit", &data.join("run/exits"), &|_| false);
    let is_blank = |name: &str| name.starts_with(".blank-");
    let disk = |name: &str| live.contains(name) || waits(name) || is_blank(name);
    extra("a disk", &data.join("pool"), &disk);
    extra("half a tombstone", &data.join("tombstones"), &|name| name.ends_with(".json"));
    for bare in live {
        let kept = [
            "spec.json",
            "run.json",
            "end.json",
            "boot",
            "in-use",
            "egress.jsonl",
            "greeted",
            "tomb",
        ];
        let dir = data.join("sandboxes").join(bare);
        extra("a file of a sandbox", &dir, &|name| kept.contains(&name));
    }
    groups(town, running, &mut found)?;
    mounts(&data, &mut found);
    zombies(town, &mut found)?;
    Ok(found)
}

/// Every group is that of a sandbox that runs, or of a launcher that waits.
fn groups(town: &Town, running: &BTreeSet<String>, found: &mut Vec<String>) -> anyhow::Result<()> {
    let launchers: BTreeSet<i32> = town.launchers()?.into_iter().collect();
    let guests: BTreeSet<i32> = town
        .guests()
        .into_iter()
        .filter(|(bare, _)| running.contains(bare))
        .chain(town.waiting())
        .map(|(_, pid)| pid)
        .collect();
    let mut known = BTreeSet::new();
    let mut groups = control_groups(&town.instance()?);
    // The second version first: only there does a group say by its processes whose it is.
    groups.sort_by_key(|group| !group.join("cgroup.kill").exists());
    for group in groups {
        for leaf in names(&group).into_iter().filter(|name| group.join(name).is_dir()) {
            let members = fs::read_to_string(group.join(&leaf).join("cgroup.procs"));
            let members = members.unwrap_or_default();
            let mut pids = members.lines().filter_map(|line| line.parse::<i32>().ok());
            if pids.any(|pid| launchers.contains(&pid) || guests.contains(&pid)) {
                known.insert(leaf);
            } else if !known.contains(&leaf) {
                let who = members.replace('\n', " ");
                found.push(format!("a group {} of [{who}]", group.join(&leaf).display()));
            }
        }
    }
    Ok(())
}

/// One mount, of the pool, over one loop device.
fn mounts(data: &Path, found: &mut Vec<String>) {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let ours: Vec<&str> = points.filter(|point| Path::new(point).starts_with(data)).collect();
    if ours.len() > 1 {
        found.push(format!("mounts {ours:?}"));
    }
    let image = data.join("pool.img");
    let over = names(Path::new("/sys/block")).into_iter().filter(|device| {
        let file = format!("/sys/block/{device}/loop/backing_file");
        fs::read_to_string(file).is_ok_and(|file| Path::new(file.trim_end()) == image)
    });
    let over: Vec<String> = over.collect();
    if over.len() > 1 {
        found.push(format!("loop devices {over:?}"));
    }
}

/// Of the keeper's and of the server's making; ours were reaped a moment ago.
fn zombies(town: &Town, found: &mut Vec<String>) -> anyhow::Result<()> {
    let us = rustix::process::getpid().as_raw_nonzero().get();
    let all = processes()?;
    let ours: BTreeSet<i32> = {
        let mut ours = BTreeSet::from([us]);
        // Parents come before their children in age only: go round until nobody is added.
        while all.iter().any(|one| ours.contains(&one.parent) && ours.insert(one.pid)) {}
        ours
    };
    let dead = all.iter().filter(|one| one.is_zombie && ours.contains(&one.pid));
    found.extend(dead.map(|one| format!("a zombie {} of {}", one.pid, one.parent)));
    if town.keepers()?.iter().filter(|one| one.parent == us || one.parent == 1).count() > 1 {
        found.push("a second keeper".to_owned());
    }
    Ok(())
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
