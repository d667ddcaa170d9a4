//! btrfs by its ioctls: subvolumes with limits of simple quotas (kernel 6.7 and later).

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use rustix::mount::MountFlags;

use super::loop_device;
use crate::sys;

const IOC_SUBVOL_CREATE: u64 = 0x5000_940E;
const IOC_SNAP_DESTROY: u64 = 0x5000_940F;
const IOC_QUOTA_CTL: u64 = 0xC010_9428;
const IOC_QGROUP_LIMIT: u64 = 0x8030_942B;
const IOC_INO_LOOKUP: u64 = 0xD000_9412;
const IOC_FS_INFO: u64 = 0x8400_941F;
/// The root directory of every subvolume.
const FIRST_OBJECT: u64 = 256;
const QUOTA_ENABLE_SIMPLE: u64 = 4;
const LIMIT_MAX_REFERENCED: u64 = 1;
const MAGIC: u64 = 0x9123_683E;
const SMALLEST_POOL: u64 = 256 << 20;

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct VolumeArgs {
    fd: i64,
    name: [u8; 4088],
}

/// `struct btrfs_ioctl_quota_ctl_args`.
#[repr(C)]
struct QuotaArgs {
    command: u64,
    status: u64,
}

/// `struct btrfs_ioctl_qgroup_limit_args`.
#[repr(C)]
struct LimitArgs {
    group: u64,
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved_referenced: u64,
    reserved_exclusive: u64,
}

/// `struct btrfs_ioctl_ino_lookup_args`.
#[repr(C)]
struct LookupArgs {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

/// `struct btrfs_ioctl_fs_info_args`.
#[repr(C)]
struct FsInfo {
    numbers: [u64; 2],
    fsid: [u8; 16],
    rest: [u8; 992],
}

/// Mounts the file system in `image` at `dir`, making it first when it is absent.
pub(super) fn mount(image: &Path, dir: &Path, bytes: Option<u64>) -> anyhow::Result<()> {
    if is_btrfs(dir)? {
        return Ok(());
    }
    if !image.exists() {
        make(image, bytes)?;
    }
    let (device, _open) = loop_device::attach(image)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    rustix::mount::mount(&device, dir, "btrfs", flags, None::<&CStr>).context("mount the pool")?;
    let root = File::open(dir).context("open the pool")?;
    let mut quota = QuotaArgs { command: QUOTA_ENABLE_SIMPLE, status: 0 };
    sys::ioctl(&root, IOC_QUOTA_CTL, &mut quota)
        .context("turn on simple quotas (kernel 6.7 or later)")
}

fn is_btrfs(dir: &Path) -> anyhow::Result<bool> {
    let kind = rustix::fs::statfs(dir).context("statfs the pool")?.f_type;
    Ok(u64::try_from(kind).is_ok_and(|kind| kind == MAGIC))
}

/// Made under another name first: a half-made file system must not be taken for one.
fn make(image: &Path, bytes: Option<u64>) -> anyhow::Result<()> {
    let parent = image.parent().context("pool file")?;
    let free = rustix::fs::statvfs(parent).context("statvfs")?;
    let bytes = bytes.unwrap_or(free.f_bavail * free.f_frsize / 5 * 4).max(SMALLEST_POOL);
    let unfinished = image.with_extension("unfinished");
    let file = File::create(&unfinished).context("create the pool file")?;
    file.set_len(bytes).context("size the pool file")?;
    let output = Command::new("mkfs.btrfs")
        .args(["-q", "-f", "-K", "-m", "single", "-d", "single", "-L", "bastide"])
        .arg(&unfinished)
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let _ = fs::remove_file(&unfinished);
            bail!("mkfs.btrfs is missing\nhint: apt-get install btrfs-progs");
        }
        Err(error) => return Err(error).context("run mkfs.btrfs"),
    };
    if !output.status.success() {
        let _ = fs::remove_file(&unfinished);
        bail!("mkfs.btrfs: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    file.sync_all().context("flush the pool file")?;
    fs::rename(&unfinished, image).context("name the pool file")
}

/// Makes a subvolume that may refer to at most `bytes`.
pub(super) fn create_subvolume(path: &Path, bytes: u64) -> io::Result<()> {
    let (parent, mut args) = named(path)?;
    sys::ioctl(&parent, IOC_SUBVOL_CREATE, &mut args)?;
    set_limit(path, bytes)
}

/// Unlinks a subvolume; the kernel frees it in its own time.
pub(super) fn remove_subvolume(path: &Path) -> io::Result<()> {
    let (parent, mut args) = named(path)?;
    sys::ioctl(&parent, IOC_SNAP_DESTROY, &mut args)
}

pub(super) fn set_limit(path: &Path, bytes: u64) -> io::Result<()> {
    let volume = File::open(path)?;
    // Group 0 means the one of the subvolume that the descriptor is in.
    let mut args = LimitArgs {
        group: 0,
        flags: LIMIT_MAX_REFERENCED,
        max_referenced: bytes,
        max_exclusive: 0,
        reserved_referenced: 0,
        reserved_exclusive: 0,
    };
    sys::ioctl(&volume, IOC_QGROUP_LIMIT, &mut args)
}

/// Bytes that the subvolume refers to, as its limit counts them.
pub(super) fn used(path: &Path) -> io::Result<u64> {
    let volume = File::open(path)?;
    let mut lookup = LookupArgs { tree: 0, object: FIRST_OBJECT, name: [0; 4080] };
    sys::ioctl(&volume, IOC_INO_LOOKUP, &mut lookup)?;
    let mut info = FsInfo { numbers: [0; 2], fsid: [0; 16], rest: [0; 992] };
    sys::ioctl(&volume, IOC_FS_INFO, &mut info)?;
    let fsid = uuid::Uuid::from_bytes(info.fsid);
    let file = format!("/sys/fs/btrfs/{fsid}/qgroups/0_{}/referenced", lookup.tree);
    let text = fs::read_to_string(file)?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

fn named(path: &Path) -> io::Result<(File, VolumeArgs)> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let parent = File::open(path.parent().ok_or_else(invalid)?)?;
    let name = path.file_name().ok_or_else(invalid)?.as_encoded_bytes();
    let name = CString::new(name).map_err(|_| invalid())?;
    let mut args = VolumeArgs { fd: 0, name: [0; 4088] };
    for (to, from) in args.name.iter_mut().zip(name.as_bytes()) {
        *to = *from;
    }
    Ok((parent, args))
}
