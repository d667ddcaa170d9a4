//! What btrfs is asked, one function a request.

use std::fs::File;
use std::io;
use std::path::Path;

use keeper::sys;

const SUBVOL_CREATE: u64 = 0x5000_9418;
const SNAP_DESTROY: u64 = 0x5000_940F;
const TREE_SEARCH: u64 = 0xD000_9411;
const INO_LOOKUP: u64 = 0xD000_9412;
const FS_INFO: u64 = 0x8400_941F;
const QUOTA_CTL: u64 = 0xC010_9428;
const QGROUP_CREATE: u64 = 0x4010_942A;
const QGROUP_LIMIT: u64 = 0x8030_942B;
const TRIM: u64 = 0xC018_5879;

/// The root directory of every subvolume.
const FIRST_OBJECT: u64 = 256;
const QUOTA_ENABLE_SIMPLE: u64 = 4;
/// A new subvolume's group gets a limit, and groups above it.
const INHERIT_GROUPS: u64 = 4;
const INHERIT_LIMIT: u64 = 1;
const LIMIT_MAX_REFERENCED: u64 = 1;
/// What the kernel takes as a bound for "none".
const NO_LIMIT: u64 = u64::MAX;
const FOUND_BYTES: usize = 3992;
const HEADER_BYTES: usize = 32;

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct VolumeArgs {
    fd: i64,
    name: [u8; 4088],
}

/// `struct btrfs_ioctl_vol_args_v2`.
#[repr(C)]
struct NewVolumeArgs {
    fd: i64,
    transaction: u64,
    flags: u64,
    inherit_bytes: u64,
    inherit: u64,
    unused: [u64; 2],
    name: [u8; 4040],
}

/// `struct btrfs_qgroup_inherit` with one group.
#[repr(C)]
struct Inherit {
    flags: u64,
    groups: u64,
    copies: [u64; 2],
    limit_flags: u64,
    max_referenced: u64,
    other_limits: [u64; 3],
    group: u64,
}

/// `struct btrfs_ioctl_quota_ctl_args`.
#[repr(C)]
struct QuotaArgs {
    command: u64,
    status: u64,
}

/// `struct btrfs_ioctl_qgroup_create_args`.
#[repr(C)]
struct GroupArgs {
    create: u64,
    group: u64,
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

/// `struct fstrim_range`.
#[repr(C)]
struct TrimRange {
    start: u64,
    length: u64,
    shortest: u64,
}

/// `struct btrfs_ioctl_search_args`.
#[repr(C)]
struct SearchArgs {
    tree: u64,
    object_min: u64,
    object_max: u64,
    offset_min: u64,
    offset_max: u64,
    transaction_min: u64,
    transaction_max: u64,
    kind_min: u32,
    kind_max: u32,
    items: u32,
    unused: u32,
    unused_too: [u64; 4],
    found: [u8; FOUND_BYTES],
}

/// One item of a tree of the file system.
pub(super) struct Item {
    pub(super) offset: u64,
    pub(super) data: Vec<u8>,
}

/// Makes a subvolume whose group may reference so many bytes and is one of `group`'s.
pub(super) fn create_subvolume(path: &Path, group: u64, bytes: u64) -> io::Result<()> {
    let inherit = Inherit {
        flags: INHERIT_LIMIT,
        groups: 1,
        copies: [0; 2],
        limit_flags: LIMIT_MAX_REFERENCED,
        max_referenced: bytes,
        other_limits: [0; 3],
        group,
    };
    let (parent, name) = named(path)?;
    let mut args = NewVolumeArgs {
        fd: 0,
        transaction: 0,
        flags: INHERIT_GROUPS,
        inherit_bytes: size_of::<Inherit>() as u64,
        inherit: (&raw const inherit).expose_provenance() as u64,
        unused: [0; 2],
        name,
    };
    sys::ioctl(&parent, SUBVOL_CREATE, &mut args)
}

/// Unlinks it; the kernel frees it in its own time, and its group with it.
pub(super) fn destroy_subvolume(path: &Path) -> io::Result<()> {
    let (parent, name) = named(path)?;
    sys::ioctl(&parent, SNAP_DESTROY, &mut VolumeArgs { fd: 0, name })
}

/// The number of the subvolume at `path`, which is also that of its own group.
pub(super) fn tree_of(path: &Path) -> io::Result<u64> {
    let mut lookup = LookupArgs { tree: 0, object: FIRST_OBJECT, name: [0; 4080] };
    sys::ioctl(&File::open(path)?, INO_LOOKUP, &mut lookup)?;
    Ok(lookup.tree)
}

pub(super) fn fsid(root: &File) -> io::Result<uuid::Uuid> {
    let mut info = FsInfo { numbers: [0; 2], fsid: [0; 16], rest: [0; 992] };
    sys::ioctl(root, FS_INFO, &mut info)?;
    Ok(uuid::Uuid::from_bytes(info.fsid))
}

/// Leaves quotas of another kind as they are, if they are on: they bound as well.
pub(super) fn enable_quotas(root: &File) -> io::Result<()> {
    let mut args = QuotaArgs { command: QUOTA_ENABLE_SIMPLE, status: 0 };
    ignore_exists(sys::ioctl(root, QUOTA_CTL, &mut args))
}

pub(super) fn create_group(root: &File, group: u64) -> io::Result<()> {
    ignore_exists(sys::ioctl(root, QGROUP_CREATE, &mut GroupArgs { create: 1, group }))
}

/// Refused as busy while anything is in it.
pub(super) fn destroy_group(root: &File, group: u64) -> io::Result<()> {
    sys::ioctl(root, QGROUP_CREATE, &mut GroupArgs { create: 0, group })
}

pub(super) fn limit(root: &File, group: u64, bytes: Option<u64>) -> io::Result<()> {
    let mut args = LimitArgs {
        group,
        flags: LIMIT_MAX_REFERENCED,
        max_referenced: bytes.unwrap_or(NO_LIMIT),
        max_exclusive: 0,
        reserved_referenced: 0,
        reserved_exclusive: 0,
    };
    sys::ioctl(root, QGROUP_LIMIT, &mut args)
}

/// Gives the free space of a stretch of the file system back to what it lies on.
pub(super) fn trim(root: &File, start: u64, length: u64, shortest: u64) -> io::Result<()> {
    sys::ioctl(root, TRIM, &mut TrimRange { start, length, shortest })
}

/// All items of one kind below one object.
pub(super) fn items(root: &File, tree: u64, object: u64, kind: u32) -> io::Result<Vec<Item>> {
    let mut all = Vec::new();
    let mut next = Some(0);
    while let Some(offset_min) = next {
        let mut args = SearchArgs {
            tree,
            object_min: object,
            object_max: object,
            offset_min,
            offset_max: u64::MAX,
            transaction_min: 0,
            transaction_max: u64::MAX,
            kind_min: kind,
            kind_max: kind,
            items: u32::MAX,
            unused: 0,
            unused_too: [0; 4],
            found: [0; FOUND_BYTES],
        };
        sys::ioctl(root, TREE_SEARCH, &mut args)?;
        let before = all.len();
        read_items(&args, kind, &mut all);
        next = all.get(before..).and_then(<[Item]>::last).and_then(|it| it.offset.checked_add(1));
    }
    Ok(all)
}

fn read_items(args: &SearchArgs, kind: u32, all: &mut Vec<Item>) {
    let mut rest = args.found.as_slice();
    for _ in 0..args.items {
        let Some((header, after)) = rest.split_at_checked(HEADER_BYTES) else { return };
        let length = u32_at(header, 28).and_then(|length| usize::try_from(length).ok());
        let Some((data, after)) = length.and_then(|length| after.split_at_checked(length)) else {
            return;
        };
        rest = after;
        if let (Some(offset), Some(found)) = (u64_at(header, 16), u32_at(header, 24))
            && found == kind
        {
            all.push(Item { offset, data: data.to_vec() });
        }
    }
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn ignore_exists(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// The directory that it is in, and its name with zeros behind it.
fn named<const N: usize>(path: &Path) -> io::Result<(File, [u8; N])> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let parent = File::open(path.parent().ok_or_else(invalid)?)?;
    let name = path.file_name().ok_or_else(invalid)?.as_encoded_bytes();
    let mut padded = [0; N];
    // One zero at least ends it.
    padded[..N - 1].get_mut(..name.len()).ok_or_else(invalid)?.copy_from_slice(name);
    Ok((parent, padded))
}
