//! The `/dev` that all sandboxes share: a read-only tmpfs with the harmless devices, cloned into
//! each as one mount instead of one bind a device.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

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

/// A detached mount; launches clone it.
pub(crate) fn make() -> anyhow::Result<OwnedFd> {
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).context("fsopen tmpfs")?;
    fsconfig_set_string(fs.as_fd(), "mode", "0755").context("tmpfs mode")?;
    fsconfig_set_string(fs.as_fd(), "size", "64k").context("tmpfs size")?;
    fsconfig_create(fs.as_fd()).context("create tmpfs")?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).context("mount")?;
    let root = format!("/proc/self/fd/{}", mount.as_raw_fd());
    let root = Path::new(&root);
    for (name, major, minor) in DEVICES {
        let path = CString::new(root.join(name).into_os_string().into_encoded_bytes())?;
        sys::make_char_device(&path, major, minor).with_context(|| format!("make {name}"))?;
        // The mode given to mknod went through the umask.
        std::fs::set_permissions(root.join(name), PermissionsExt::from_mode(0o666))?;
    }
    for directory in ["pts", "shm"] {
        std::fs::create_dir(root.join(directory)).with_context(|| format!("make {directory}"))?;
    }
    for (name, target) in LINKS {
        std::os::unix::fs::symlink(target, root.join(name))
            .with_context(|| format!("link {name}"))?;
    }
    let read_only = sys::MountAttr { set: sys::MOUNT_ATTR_RDONLY, ..Default::default() };
    sys::mount_setattr(&mount, &read_only).context("make /dev read-only")?;
    Ok(mount)
}
