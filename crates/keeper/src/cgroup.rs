//! Control groups: v2 for placement, freeze and kill; limits in v2 where it has the controller,
//! else in v1 (hybrid hosts). The layout of the host is detected once.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

mod limits;

use crate::privilege::Privilege;

/// Where this instance's cgroups live.
#[derive(Debug, Clone)]
pub struct Hierarchy {
    /// `…/bastide/<instance>` in the v2 mount.
    /// `None` on a host that gives us no group: then nothing is limited, paused or counted.
    unified: Option<PathBuf>,
    /// The controllers that v2 offers there.
    unified_has: Vec<String>,
    /// v1 mounts of the controllers that it does not: (controller, `…/bastide/<instance>`).
    legacy: Vec<(&'static str, PathBuf)>,
    /// Whether v2 bounds reads and writes of disks.
    unified_has_io: bool,
    /// Where v1 does; made when somebody is bounded.
    legacy_io: Option<PathBuf>,
}

/// The cgroups of one incarnation, named after it.
#[derive(Debug, Clone)]
pub struct Leaf {
    /// The cgroup v2 directory: placement, freeze, kill.
    pub unified: Option<PathBuf>,
    /// v1 directories of the controllers that v2 does not have.
    pub legacy: Vec<PathBuf>,
}

/// The controllers that we set limits in.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// cgroups of one sandbox: its own and one per exec.
const DESCENDANTS_MAX: u32 = 4096;

impl Hierarchy {
    /// Reads the mounts and makes this instance's parents.
    pub fn detect(instance: &str) -> anyhow::Result<Self> {
        if Privilege::current() != Privilege::Host {
            return Ok(delegated::find(instance));
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("read mountinfo")?;
        let root = unified_mount(&mounts).context(
            "no cgroup v2 mount: mount one, for example at /sys/fs/cgroup/unified (mount -t cgroup2)",
        )?;
        let below = Path::new("bastide").join(instance);
        let unified = root.join(&below);
        std::fs::create_dir_all(&unified).context("make the cgroup v2 parent")?;
        let offered = std::fs::read_to_string(root.join("cgroup.controllers"))?;
        let mut unified_has = Vec::new();
        let mut legacy = Vec::new();
        for controller in CONTROLLERS {
            if offered.split_whitespace().any(|name| name == controller) {
                turn_on(&root, &unified, controller)?;
                unified_has.push(controller.to_owned());
            } else if let Some(mount) = legacy_mount(&mounts, controller) {
                let parent = mount.join(&below);
                std::fs::create_dir_all(&parent).context("make the cgroup v1 parent")?;
                legacy.push((controller, parent));
            } else {
                bail!("no cgroup controller {controller}, neither v1 nor v2");
            }
        }
        let unified_has_io = offered.split_whitespace().any(|name| name == "io")
            && turn_on(&root, &unified, "io").is_ok();
        let legacy_io = legacy_mount(&mounts, "blkio").map(|mount| mount.join(&below));
        Ok(Self { unified: Some(unified), unified_has, legacy, unified_has_io, legacy_io })
    }

    /// Whether this host gives us control groups at all.
    pub fn has_groups(&self) -> bool {
        self.unified.is_some()
    }

    /// Whether a controller limits what sandboxes use.
    pub fn bounds(&self, controller: &str) -> bool {
        self.unified_has.iter().any(|has| has == controller)
            || self.legacy.iter().any(|(has, _)| *has == controller)
    }

    pub fn bounds_all(&self) -> bool {
        CONTROLLERS.iter().all(|controller| self.bounds(controller))
    }

    /// Whether reads and writes of disks can be bounded.
    pub fn bounds_io(&self) -> bool {
        self.unified_has_io || self.legacy_io.is_some()
    }

    pub fn leaf(&self, incarnation: &str) -> Leaf {
        let legacy = self.legacy.iter().map(|(_, parent)| parent.join(incarnation));
        let io = self.legacy_io.iter().map(|parent| parent.join(incarnation));
        let legacy = legacy.chain(io.filter(|dir| dir.exists())).collect();
        Leaf { unified: self.unified.as_ref().map(|parent| parent.join(incarnation)), legacy }
    }

    /// Removes this instance's parents, which must be empty.
    pub fn remove(&self) {
        let Some(unified) = &self.unified else { return };
        let legacy = self.legacy.iter().map(|(_, dir)| dir).chain(&self.legacy_io);
        remove(unified, &legacy.cloned().collect::<Vec<_>>());
    }

    /// The incarnations that have a cgroup now.
    pub fn leaves(&self) -> anyhow::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        let parents = self.legacy.iter().map(|(_, parent)| parent);
        let io = self.legacy_io.iter().filter(|parent| parent.exists());
        for parent in self.unified.iter().chain(parents).chain(io) {
            for entry in std::fs::read_dir(parent).context("list cgroups")? {
                let entry = entry.context("list cgroups")?;
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    names.insert(entry.file_name().to_string_lossy().into_owned());
                }
            }
        }
        Ok(names)
    }
}

/// Makes the directories and moves this process in; what it forks is born there.
///
/// The first move after a while waits for an RCU grace period (6 ms on a busy host), which is why
/// launchers do this before there is anything to launch.
pub fn enter(leaf: &Leaf) -> anyhow::Result<()> {
    let Some(unified) = &leaf.unified else { return Ok(()) };
    for dir in std::iter::once(unified).chain(&leaf.legacy) {
        std::fs::create_dir(dir).with_context(|| format!("make cgroup {}", dir.display()))?;
    }
    for dir in std::iter::once(unified).chain(&leaf.legacy) {
        set(&dir.join("cgroup.procs"), "0")?;
    }
    set(&unified.join("cgroup.max.descendants"), &DESCENDANTS_MAX.to_string())
}

/// Lets `uid` make cgroups below it, one for each exec, and move its own processes there.
pub fn delegate_to(leaf: &Leaf, uid: u32) -> anyhow::Result<()> {
    let Some(unified) = &leaf.unified else { return Ok(()) };
    for name in ["", "cgroup.procs"] {
        chown(unified.join(name), Some(uid), Some(uid)).context("delegate the cgroup")?;
    }
    Ok(())
}

/// Whose it is: the base uid of the range it was delegated to; `None` when it was not.
pub fn owner(leaf: &Leaf) -> Option<u32> {
    let uid = std::fs::metadata(leaf.unified.as_ref()?).ok()?.uid();
    (uid != 0).then_some(uid)
}

pub fn set(file: &Path, value: &str) -> anyhow::Result<()> {
    std::fs::write(file, value).with_context(|| format!("write {value} to {}", file.display()))
}

/// Kills every process in it and below. `Ok` when it does not exist.
pub fn kill(unified: &Path) -> anyhow::Result<()> {
    match std::fs::write(unified.join("cgroup.kill"), "1") {
        Ok(()) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) => Err(error).context("kill the cgroup"),
    }
}

/// Stops (or lets go) every process in it and below; answers when they stand still.
pub fn freeze(unified: &Path, on: bool) -> anyhow::Result<()> {
    set(&unified.join("cgroup.freeze"), if on { "1" } else { "0" })
}

pub fn is_frozen(unified: &Path) -> bool {
    event(unified, "frozen") == Some(1)
}

pub fn freeze_asked(unified: &Path) -> bool {
    std::fs::read_to_string(unified.join("cgroup.freeze")).is_ok_and(|text| text.trim() == "1")
}

/// Whether any process lives in it. An absent cgroup is empty.
pub fn is_populated(unified: &Path) -> bool {
    event(unified, "populated") == Some(1)
}

fn event(unified: &Path, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(unified.join("cgroup.events")).ok()?;
    value_of(&text, key)
}

/// What became of the cgroup of an incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// By this call, and by no other.
    Now,
    Before,
    /// Something lives in it.
    Not,
}

/// Removes the cgroups of an incarnation and tells whether it was this call that did.
pub fn remove_leaf(unified: &Path, legacy: &[PathBuf]) -> Removed {
    if let Ok(entries) = std::fs::read_dir(unified) {
        for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
            remove_below(&entry.path(), 1);
        }
    }
    let removed = match std::fs::remove_dir(unified) {
        Ok(()) => Removed::Now,
        Err(error) if is_gone(&error) => Removed::Before,
        Err(_) => Removed::Not,
    };
    for dir in legacy {
        let _ = std::fs::remove_dir(dir);
    }
    removed
}

/// Removes its directories, inner ones first. What is still populated stays for `collect`.
/// Gives how many went.
pub fn remove(unified: &Path, legacy: &[PathBuf]) -> u32 {
    let mut removed = remove_below(unified, 0);
    for dir in legacy {
        removed += u32::from(std::fs::remove_dir(dir).is_ok());
    }
    removed
}

/// The kernel bounds the depth by `max.descendants`; the bound here is for our stack.
fn remove_below(dir: &Path, depth: u32) -> u32 {
    const DEPTH_MAX: u32 = 64;
    let mut removed = 0;
    if depth < DEPTH_MAX
        && let Ok(entries) = std::fs::read_dir(dir)
    {
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                removed += remove_below(&entry.path(), depth + 1);
            }
        }
    }
    removed + u32::from(std::fs::remove_dir(dir).is_ok())
}

/// A number of a file of `NAME NUMBER` lines.
pub fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// On a pure v2 host, lets the instance's subtree use `controller`.
fn turn_on(root: &Path, unified: &Path, controller: &str) -> anyhow::Result<()> {
    let between = unified.strip_prefix(root).context("cgroup parent")?;
    let mut dir = root.to_owned();
    for part in [None].into_iter().chain(between.components().map(Some)) {
        if let Some(part) = part {
            dir.push(part);
        }
        set(&dir.join("cgroup.subtree_control"), &format!("+{controller}"))?;
    }
    Ok(())
}

fn unified_mount(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        after.starts_with("cgroup2 ").then(|| before.split(' ').nth(4).map(PathBuf::from))?
    })
}

fn legacy_mount(mountinfo: &str, controller: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let options = after.strip_prefix("cgroup ")?.rsplit(' ').next()?;
        let has = options.split(',').any(|option| option == controller);
        has.then(|| before.split(' ').nth(4).map(PathBuf::from))?
    })
}

mod delegated;
#[cfg(test)]
mod tests;
