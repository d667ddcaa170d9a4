//! The `/dev` of a sandbox: a read-only tmpfs with the harmless devices, one mount instead of one
//! bind a device. Each has its own, because inotify and flock go by inode: over a shared one sandboxes
//! would see when their neighbours use `/dev/null`. Launchers make it while they wait for a plan.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use rustix::thread::UnshareFlags;

use crate::privilege::Privilege;
use crate::sys;

const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

const LINKS: [(&str, &str); 6] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("core", "/proc/kcore"),
];

/// A detached tree. `at` is an empty directory for a process that may make no device nodes: it gets
/// mounts of its own by this.
pub fn make(privilege: Privilege, at: &Path) -> anyhow::Result<OwnedFd> {
    match privilege {
        Privilege::Host => made(),
        Privilege::Namespace { .. } => bound(at),
    }
}

/// The host's own devices over empty files: only the host's root may make device nodes. Put together
/// in a mount namespace of this process alone, because kernels before 6.15 attach nothing to what is
/// attached nowhere itself.
fn bound(at: &Path) -> anyhow::Result<OwnedFd> {
    sys::unshare(UnshareFlags::NEWNS).context("mounts of one's own")?;
    let mount = tmpfs()?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&mount, "", CWD, at, flags).context("attach /dev")?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    for (name, ..) in DEVICES {
        let place = at.join(name);
        std::fs::File::create(&place).with_context(|| format!("make {name}"))?;
        let host = Path::new("/dev").join(name);
        let device = open_tree(CWD, &host, clone).with_context(|| format!("clone {name}"))?;
        move_mount(&device, "", CWD, &place, flags).with_context(|| format!("attach {name}"))?;
    }
    directories_and_links(at)?;
    let read_only = sys::MountAttr { set: sys::MOUNT_ATTR_RDONLY, ..Default::default() };
    sys::mount_setattr(&mount, &read_only).context("make /dev read-only")?;
    open_tree(CWD, at, clone | OpenTreeFlags::AT_RECURSIVE).context("detach /dev")
}

fn tmpfs() -> anyhow::Result<OwnedFd> {
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).context("fsopen tmpfs")?;
    fsconfig_set_string(fs.as_fd(), "mode", "0755").context("tmpfs mode")?;
    fsconfig_set_string(fs.as_fd(), "size", "64k").context("tmpfs size")?;
    fsconfig_create(fs.as_fd()).context("create tmpfs")?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).context("mount tmpfs")
}

fn directories_and_links(root: &Path) -> anyhow::Result<()> {
    for directory in ["pts", "shm", ".proc"] {
        std::fs::create_dir(root.join(directory)).with_context(|| format!("make {directory}"))?;
    }
    for (name, target) in LINKS {
        std::os::unix::fs::symlink(target, root.join(name))
            .with_context(|| format!("link {name}"))?;
    }
    Ok(())
}

/// A detached mount with device nodes of its own.
fn made() -> anyhow::Result<OwnedFd> {
    let mount = tmpfs()?;
    let root = format!("/proc/self/fd/{}", mount.as_raw_fd());
    let root = Path::new(&root);
    for (name, major, minor) in DEVICES {
        let path = CString::new(root.join(name).into_os_string().into_encoded_bytes())?;
        sys::make_char_device(&path, major, minor).with_context(|| format!("make {name}"))?;
        // The mode given to mknod went through the umask.
        std::fs::set_permissions(root.join(name), PermissionsExt::from_mode(0o666))?;
    }
    directories_and_links(root)?;
    let read_only = sys::MountAttr { set: sys::MOUNT_ATTR_RDONLY, ..Default::default() };
    sys::mount_setattr(&mount, &read_only).context("make /dev read-only")?;
    Ok(mount)
}
