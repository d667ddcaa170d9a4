//! Builds the file system of a sandbox from inside its namespaces and moves into it.
//!
//! Everything is mounted by descriptor: nothing appears in the host's mount table, and the path
//! names of a hostile tree are never walked by the host.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use anyhow::Context;
use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_fd, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree, unmount,
};

use crate::sys;

/// The trees that the launcher made, as root, for the sandbox to mount.
pub(crate) struct Trees {
    /// Idmapped, read-only, top first.
    pub(crate) layers: Vec<OwnedFd>,
    /// Idmapped; holds `upper` and `work`.
    pub(crate) upper: OwnedFd,
    pub(crate) workspace: OwnedFd,
    pub(crate) binds: Vec<(OwnedFd, String)>,
    /// The shared `/dev`.
    pub(crate) devices: OwnedFd,
}

/// Directories below the mount point: the new root, its upper, and one a layer, by number.
const ROOT: &str = "root";
const UPPER: &str = "upper";
/// More layers than any template has; the kernel takes 500.
pub(crate) const LAYERS_MAX: usize = 32;

/// Makes the empty directories that every launch builds on.
pub(crate) fn make_mount_points(mount_point: &Path) -> anyhow::Result<()> {
    let numbers = (0..LAYERS_MAX).map(|number| number.to_string());
    for name in [ROOT.to_owned(), UPPER.to_owned()].into_iter().chain(numbers) {
        let path = mount_point.join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
    }
    Ok(())
}

/// Files of /proc that tell about or act on the host.
const HIDDEN: [&str; 5] =
    ["proc/kcore", "proc/keys", "proc/sysrq-trigger", "proc/timer_list", "proc/latency_stats"];
const READ_ONLY: [&str; 4] = ["proc/sys", "proc/irq", "proc/bus", "proc/fs"];

/// Opens `path` as a detached tree with the given attributes. Runs as root, outside.
pub(crate) fn detached(
    path: &Path,
    idmap: BorrowedFd<'_>,
    attributes: u64,
) -> anyhow::Result<OwnedFd> {
    let tree = clone_tree(CWD, path)?;
    let attr = sys::MountAttr { set: attributes, idmap: Some(idmap), recursive: false };
    sys::mount_setattr(&tree, &attr).with_context(|| format!("map ids of {}", path.display()))?;
    Ok(tree)
}

fn clone_tree(dir: impl AsFd, path: &Path) -> anyhow::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(dir, path, flags).with_context(|| format!("open tree {}", path.display()))
}

/// Mounts everything and makes it this process's root. Runs inside.
///
/// The working directory is the mount point: the kernel carried it over into this mount namespace,
/// where the way to it from `/` is closed to this user.
pub(crate) fn enter(trees: &Trees, volatile: bool) -> anyhow::Result<()> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).context("make mounts private")?;
    // The overlay takes only layers of our own mount namespace, so each is attached somewhere in
    // it first; all of that goes with the old root.
    attach_to(&trees.upper, UPPER)?;
    for (number, layer) in trees.layers.iter().enumerate() {
        attach_to(layer, &number.to_string())?;
    }
    let root = overlay(trees, volatile)?;
    attach_to(root, ROOT)?;
    rustix::process::chdir(ROOT).context("enter the new root")?;
    for (tree, target) in &trees.binds {
        attach_to(tree, target)?;
    }
    attach_to(&trees.workspace, "workspace")?;
    kernel_file_systems(trees)?;
    forbid_namespaces()?;
    mask()?;
    rustix::process::pivot_root(".", ".").context("pivot_root")?;
    unmount(".", UnmountFlags::DETACH).context("detach the old root")?;
    rustix::process::chdir("/").context("chdir to the new root")
}

/// An upper must never be in two overlays at once. It is not: the kernel takes down a dead
/// sandbox's mounts before its PID 1 can be waited for, and a start waits for that.
fn overlay(trees: &Trees, volatile: bool) -> anyhow::Result<OwnedFd> {
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).context("fsopen overlay")?;
    for layer in &trees.layers {
        fsconfig_set_fd(fs.as_fd(), "lowerdir+", layer.as_fd()).context("overlay lower layer")?;
    }
    let open = |name: &str| {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::openat(&trees.upper, name, flags, rustix::fs::Mode::empty())
    };
    let upper = open("upper").context("open upper")?;
    let work = open("work").context("open work")?;
    fsconfig_set_fd(fs.as_fd(), "upperdir", upper.as_fd()).context("overlay upper")?;
    fsconfig_set_fd(fs.as_fd(), "workdir", work.as_fd()).context("overlay work")?;
    fsconfig_set_flag(fs.as_fd(), "userxattr").context("overlay userxattr")?;
    if volatile {
        fsconfig_set_flag(fs.as_fd(), "volatile").context("overlay volatile")?;
    }
    fsconfig_create(fs.as_fd()).map_err(|errno| kernel_says(&fs, errno)).context("overlay")?;
    fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV)
        .context("mount overlay")
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

fn kernel_file_systems(trees: &Trees) -> anyhow::Result<()> {
    let guarded = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let read_only = guarded | MountAttrFlags::MOUNT_ATTR_RDONLY;
    mount_new("proc", &[], guarded, "proc")?;
    mount_new("sysfs", &[], read_only, "sys")?;
    mount_new("cgroup2", &[], read_only, "sys/fs/cgroup")?;
    attach_to(&trees.devices, "dev")?;
    let terminals = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let options = [("mode", "0620"), ("ptmxmode", "0666"), ("gid", "5")];
    mount_new("devpts", &options, terminals, "dev/pts")?;
    let shared_memory = [("mode", "1777"), ("size", "64m")];
    mount_new("tmpfs", &shared_memory, guarded, "dev/shm")
}

/// User namespaces below this one, and with them every other kind, are refused by the kernel's own
/// count: the filter lets `clone3` pass, whose flags it cannot see.
fn forbid_namespaces() -> anyhow::Result<()> {
    std::fs::write("proc/sys/user/max_user_namespaces", "0").context("forbid user namespaces")
}

fn mask() -> anyhow::Result<()> {
    for path in HIDDEN {
        if rustix::fs::access(path, rustix::fs::Access::EXISTS).is_ok() {
            attach_to(clone_tree(CWD, Path::new("dev/null"))?, path)?;
        }
    }
    let attr = sys::MountAttr { set: sys::MOUNT_ATTR_RDONLY, ..Default::default() };
    for path in READ_ONLY {
        if rustix::fs::access(path, rustix::fs::Access::EXISTS).is_ok() {
            let tree = clone_tree(CWD, Path::new(path))?;
            sys::mount_setattr(&tree, &attr).with_context(|| format!("protect {path}"))?;
            attach_to(tree, path)?;
        }
    }
    Ok(())
}

fn mount_new(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
    target: &str,
) -> anyhow::Result<()> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).with_context(|| format!("fsopen {kind}"))?;
    for (key, value) in options {
        fsconfig_set_string(fs.as_fd(), *key, *value)
            .with_context(|| format!("{kind} {key}={value}"))?;
    }
    fsconfig_create(fs.as_fd()).with_context(|| format!("create {kind}"))?;
    let mount = fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .with_context(|| format!("mount {kind}"))?;
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
