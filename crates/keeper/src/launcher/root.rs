//! Builds the file system of a sandbox from inside its namespaces: what is the same in all of them by its PID 1, the
//! rest by the launcher once it has joined them, which takes PID 1 along into the new root.
//!
//! Everything is mounted by descriptor: nothing appears in the host's mount table, and the path
//! names of a hostile tree are never walked by the host.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use anyhow::Context;
use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount_change, move_mount, open_tree, unmount,
};

use crate::privilege::Privilege;
use crate::sys;

/// The trees that the launcher made, as root, for the sandbox to mount.
pub struct Trees {
    /// Idmapped, read-only, top first.
    pub layers: Vec<OwnedFd>,
    /// Idmapped; holds `upper` and `work`.
    pub upper: OwnedFd,
    pub workspace: OwnedFd,
    pub binds: Vec<(OwnedFd, String)>,
}

/// Where things are put together: the new root, its upper, and one a layer, by number.
const ROOT: &str = "root";
const UPPER: &str = "upper";
/// What the kernel makes, put together beside them before there is a root.
const KERNELS: [&str; 3] = ["proc", "sys", "dev"];
/// A second /proc with nothing over it.
const WHOLE: &str = "whole";

/// Files that tell about or act on the host.
const HIDDEN: [&str; 7] = [
    "proc/interrupts",
    "proc/kcore",
    "proc/keys",
    "proc/latency_stats",
    "proc/sched_debug",
    "proc/sysrq-trigger",
    "proc/timer_list",
];
/// Directories that tell about the host: its firmware, its disks (with the paths of their files), and
/// how full the disks of other sandboxes are.
const EMPTIED: [&str; 9] = [
    "proc/acpi",
    "proc/asound",
    "proc/fs",
    "proc/scsi",
    "sys/devices/virtual/block",
    "sys/devices/virtual/powercap",
    "sys/firmware",
    "sys/fs/btrfs",
    "sys/fs/ext4",
];
/// Where the second /proc is with `nesting`.
const WHOLE_PROC: &str = "dev/.proc";
/// What an agent is told, which is never on a disk.
const CONFIG: &str = "app/config";
const READ_ONLY: [&str; 3] = ["proc/sys", "proc/irq", "proc/bus"];

/// Opens `path` as a detached tree with the given attributes. Runs as root, outside.
pub fn detached(
    path: &Path,
    idmap: Option<BorrowedFd<'_>>,
    attributes: u64,
) -> anyhow::Result<OwnedFd> {
    let (tree, recursive) = match clone_tree(CWD, path) {
        // What the host mounted below it must not be uncovered by who may not unmount it.
        Err(_) if idmap.is_none() => (clone_whole_tree(CWD, path)?, true),
        tree => (tree?, false),
    };
    let attr = sys::MountAttr { set: attributes, idmap, recursive };
    sys::mount_setattr(&tree, &attr).with_context(|| format!("set up {}", path.display()))?;
    Ok(tree)
}

fn clone_whole_tree(dir: impl AsFd, path: &Path) -> anyhow::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(dir, path, flags).with_context(|| format!("open tree {}", path.display()))
}

fn clone_tree(dir: impl AsFd, path: &Path) -> anyhow::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(dir, path, flags).with_context(|| format!("open tree {}", path.display()))
}

/// What differs from root to root.
#[derive(Clone, Copy)]
pub(super) struct Ways {
    /// Skip flushing.
    pub(super) volatile: bool,
    /// The kernel knows one id inside.
    pub(super) one_id: bool,
    /// Programs may make namespaces of their own.
    pub(super) nesting: bool,
    /// Whose `/app/config` is, if there is one.
    pub(super) config_uid: Option<u32>,
}

/// What is the same in every sandbox: puts together what the kernel makes, in a directory to build on, which is the
/// root directory then. Runs inside, as root there. Gives the directory of the sandbox's own cgroup, if it has one,
/// for the guest to make those of commands in.
///
/// All mounts of the host are left: as long as a copy of theirs is here they would not go, there.
pub(super) fn prepare(
    devices: OwnedFd,
    (privilege, groups): (Privilege, bool),
    nesting: bool,
) -> anyhow::Result<Option<OwnedFd>> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).context("make mounts private")?;
    let whole = new_mount("proc", &[], guarded())?;
    let proc = new_mount("proc", &[], guarded())?;
    let sys = new_mount("sysfs", &[], guarded_read_only())?;
    enter_place()?;
    become_root_directory()?;
    leave_old()?;
    attach_to(whole, WHOLE)?;
    for (mount, place) in [proc, sys, devices].into_iter().zip(KERNELS) {
        attach_to(mount, place)?;
    }
    let terminals = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let options = [("mode", "0620"), ("ptmxmode", "0666"), ("gid", "5")];
    // Where no group 5 is, terminals stay with whoever opens them.
    let options = if privilege.has_one_id() { &options[..2] } else { &options[..] };
    mount_new("devpts", options, terminals, "dev/pts")?;
    let shared_memory = [("mode", "1777"), ("size", "64m")];
    mount_new("tmpfs", &shared_memory, guarded(), "dev/shm")?;
    let cgroup = cgroups(groups)?;
    match nesting {
        true => bound_namespaces(&KINDS, NESTED_MAX)?,
        false => bound_namespaces(&["user"], "0")?,
    }
    mask()?;
    Ok(cgroup)
}

/// Over a directory of the host: the working directory, which the kernel carried over into this mount namespace,
/// where the way to it from `/` is closed to this user.
fn enter_place() -> anyhow::Result<()> {
    let place = new_mount("tmpfs", &[("mode", "0700"), ("size", "1m")], guarded())?;
    attach_to(&place, ".")?;
    rustix::process::fchdir(&place).context("go to the place to build on")?;
    for name in [ROOT, UPPER, WHOLE].into_iter().chain(KERNELS) {
        make_place(name)?;
    }
    Ok(())
}

fn make_place(name: &str) -> anyhow::Result<()> {
    rustix::fs::mkdir(name, rustix::fs::Mode::RWXU).with_context(|| format!("make {name}"))
}

/// The old root lies over the new one then, where no path leads to it: see [`leave_old`].
fn become_root_directory() -> anyhow::Result<()> {
    rustix::process::pivot_root(".", ".").context("pivot_root")
}

/// Takes the old root away, right after a root was made in the working directory. The kernel takes 0.1 ms for that.
pub(super) fn leave_old() -> anyhow::Result<()> {
    unmount(".", UnmountFlags::DETACH).context("detach the old root")?;
    rustix::process::chdir("/").context("chdir to the new root")
}

/// Mounts the rest and makes it the root of PID 1 and of this process, which has joined its namespaces after
/// [`prepare`], as root there. [`leave_old`] is still to do.
pub(super) fn enter(trees: &Trees, ways: Ways) -> anyhow::Result<()> {
    // The overlay takes only layers of our own mount namespace, so each is attached somewhere in
    // it first; all of that goes with the old root.
    attach_to(&trees.upper, UPPER)?;
    for (number, layer) in trees.layers.iter().enumerate() {
        let place = number.to_string();
        make_place(&place)?;
        attach_to(layer, &place)?;
    }
    let root = overlay(trees, ways.volatile)?;
    let views = views(trees)?;
    attach_to(root, ROOT)?;
    rustix::process::chdir(ROOT).context("enter the new root")?;
    for (tree, target) in &views {
        attach_to(tree, target)?;
    }
    attach_to(&trees.workspace, "workspace")?;
    for kernel in KERNELS {
        move_to(kernel, kernel)?;
    }
    if ways.nesting {
        move_to(WHOLE, WHOLE_PROC)?;
    }
    if let Some(uid) = ways.config_uid {
        // Where the kernel knows one id inside, everything is that one's.
        let uid = if ways.one_id { 0 } else { uid }.to_string();
        let options = [("mode", "0700"), ("uid", &*uid), ("gid", &*uid), ("size", "2m")];
        mount_new("tmpfs", &options, guarded(), CONFIG)?;
    }
    become_root_directory()
}

/// An upper must never be in two overlays at once. It is not: the kernel takes down a dead
/// sandbox's mounts before its PID 1 can be waited for, and a start waits for that. (Those of one that is removed may be
/// held for a moment; it is never started again.)
fn overlay(trees: &Trees, volatile: bool) -> anyhow::Result<OwnedFd> {
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).context("fsopen overlay")?;
    // By names below the mount point, which are ours: kernels before 6.13 take no descriptors here.
    let numbers: Vec<String> = (0..trees.layers.len()).map(|number| number.to_string()).collect();
    let lower = numbers.join(":");
    for (key, value) in
        [("lowerdir", lower.as_str()), ("upperdir", "upper/upper"), ("workdir", "upper/work")]
    {
        fsconfig_set_string(fs.as_fd(), key, value).with_context(|| format!("overlay {key}"))?;
    }
    fsconfig_set_flag(fs.as_fd(), "userxattr").context("overlay userxattr")?;
    if volatile {
        fsconfig_set_flag(fs.as_fd(), "volatile").context("overlay volatile")?;
    }
    fsconfig_create(fs.as_fd()).map_err(|errno| kernel_says(&fs, errno)).context("overlay")?;
    fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV)
        .context("mount overlay")
}

/// Read-only overlays over the directories of the host that are shown, one each. Shown as they are, a
/// sandbox could watch (inotify) which programs the host and its neighbours run, and lock (flock)
/// their files: both go by inode, and an overlay has inodes of its own.
fn views(trees: &Trees) -> anyhow::Result<Vec<(OwnedFd, &str)>> {
    let mut views = Vec::new();
    for (number, (tree, target)) in trees.binds.iter().enumerate() {
        let place = (trees.layers.len() + number).to_string();
        make_place(&place)?;
        attach_to(tree, &place)?;
        let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).context("fsopen overlay")?;
        // It takes two; the other one is empty.
        fsconfig_set_string(fs.as_fd(), "lowerdir", format!("{place}:{ROOT}"))
            .context("overlay view")?;
        fsconfig_set_flag(fs.as_fd(), "userxattr").context("overlay userxattr")?;
        fsconfig_create(fs.as_fd()).map_err(|errno| kernel_says(&fs, errno)).context("overlay")?;
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOSUID;
        let mount = fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes);
        views.push((mount.context("mount overlay view")?, target.as_str()));
    }
    Ok(views)
}

/// The kernel's own words about a failed mount, where it has some.
fn kernel_says(fs: &OwnedFd, errno: rustix::io::Errno) -> anyhow::Error {
    let mut text = [0u8; 512];
    let said = rustix::io::read(fs, &mut text).unwrap_or(0);
    let error = anyhow::Error::from(errno);
    if said == 0 {
        return error;
    }
    error.context(String::from_utf8_lossy(&text[..said]).trim().to_owned())
}

/// A read-only view for programs, and the guest's own descriptor of the same directory.
///
/// That descriptor must not be one of the host's mount: whoever gets hold of a directory of the host
/// (`/proc/self/fd/N`, behind a link that the guest is asked to read) walks up from it to the host's
/// root. This one's mount is attached nowhere, so that its `..` is itself.
///
/// Without a group of its own, the root of what it would see is the host's, or the user's: nothing is
/// shown.
fn cgroups(groups: bool) -> anyhow::Result<Option<OwnedFd>> {
    use rustix::fs::{Mode, OFlags};
    if !groups {
        attach_to(nothing()?, "sys/fs/cgroup")?;
        return Ok(None);
    }
    let mount = new_mount("cgroup2", &[], guarded())?;
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let own = rustix::fs::openat(&mount, ".", flags, Mode::empty()).context("open the cgroup")?;
    // Not a copy of the first: kernels before 6.15 copy only what is attached somewhere.
    mount_new("cgroup2", &[], guarded_read_only(), "sys/fs/cgroup")?;
    Ok(Some(own))
}

/// Namespaces of each kind with `nesting`.
const NESTED_MAX: &str = "64";
const KINDS: [&str; 8] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];

/// User namespaces below this one, and with them every other kind, are refused by the kernel's own
/// count: the filter lets `clone3` pass, whose flags it cannot see. With `nesting` they are counted,
/// and there is a second /proc with nothing over it: the kernel lets a namespace mount its own only
/// where a whole one is in sight already. What is hidden in the first is hidden for tidiness; what
/// keeps root inside out of it is that it is nobody to the host.
fn bound_namespaces(kinds: &[&str], most: &str) -> anyhow::Result<()> {
    for kind in kinds {
        let file = format!("{WHOLE}/sys/user/max_{kind}_namespaces");
        std::fs::write(&file, most).with_context(|| format!("bound namespaces: {kind}"))?;
    }
    Ok(())
}

fn mask() -> anyhow::Result<()> {
    for path in HIDDEN {
        if exists(path) {
            attach_to(clone_tree(CWD, Path::new("dev/null"))?, path)?;
        }
    }
    let emptied: Vec<_> = EMPTIED.into_iter().filter(|path| exists(path)).collect();
    if let Some((last, others)) = emptied.split_last() {
        let empty = nothing()?;
        for path in others {
            // Kernels before 6.15 copy only what is attached somewhere.
            attach_to(clone_tree(&empty, Path::new(".")).or_else(|_| nothing())?, path)?;
        }
        // Closed without being attached, it would have the kernel wait.
        attach_to(empty, last)?;
    }
    let attr = sys::MountAttr { set: sys::MOUNT_ATTR_RDONLY, ..Default::default() };
    for path in READ_ONLY {
        if exists(path) {
            let tree = clone_tree(CWD, Path::new(path))?;
            sys::mount_setattr(&tree, &attr).with_context(|| format!("protect {path}"))?;
            attach_to(tree, path)?;
        }
    }
    Ok(())
}

fn nothing() -> anyhow::Result<OwnedFd> {
    new_mount("tmpfs", &[("mode", "0555"), ("size", "4k")], guarded_read_only())
}

fn exists(path: &str) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXISTS).is_ok()
}

fn guarded() -> MountAttrFlags {
    MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
}

fn guarded_read_only() -> MountAttrFlags {
    guarded() | MountAttrFlags::MOUNT_ATTR_RDONLY
}

fn mount_new(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
    target: &str,
) -> anyhow::Result<()> {
    attach_to(new_mount(kind, options, attributes)?, target)
}

/// A file system of its own, attached nowhere yet.
fn new_mount(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> anyhow::Result<OwnedFd> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).with_context(|| format!("fsopen {kind}"))?;
    for (key, value) in options {
        fsconfig_set_string(fs.as_fd(), *key, *value)
            .with_context(|| format!("{kind} {key}={value}"))?;
    }
    fsconfig_create(fs.as_fd()).with_context(|| format!("create {kind}"))?;
    fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .with_context(|| format!("mount {kind}"))
}

/// Moves what is attached at `place` beside the new root, with all that is attached to it, below the new root, which
/// is the working directory.
fn move_to(place: &str, target: &str) -> anyhow::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount =
        open_tree(CWD, format!("../{place}"), flags).with_context(|| format!("open {place}"))?;
    attach_to(mount, target)
}

/// Attaches below the working directory, refusing to follow a link that the tree may hold there.
fn attach_to(mount: impl AsFd, target: &str) -> anyhow::Result<()> {
    use rustix::fs::{Mode, OFlags, ResolveFlags};
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let place = rustix::fs::openat2(CWD, target, flags, Mode::empty(), inside)
        .with_context(|| format!("open {target}"))?;
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", &place, "", both).with_context(|| format!("attach at {target}"))
}
