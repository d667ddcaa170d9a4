//! Disks as subvolumes of btrfs with simple quotas (kernel 6.7 and later): made, bounded and destroyed
//! in O(1).
//!
//! ```text
//!  0/SANDBOX: the limit of one ──► 2/POOL: what the host has left
//! ```
//!
//! A subvolume is made with its group, its limit and its place in the pool in one request: each further
//! one costs a look at all sandboxes. The groups of what is gone are empty once the kernel has freed it,
//! and the next sweep removes those that the kernel left.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, bail};
use rustix::mount::MountFlags;

use super::loop_device;

mod chunks;
mod ioctl;

const MAGIC: u64 = 0x9123_683E;
const SMALLEST_POOL: u64 = 256 << 20;
const LEVEL_POOL: u64 = 2 << 48;
const NUMBERS: u64 = (1 << 48) - 1;
/// For the few files that a start makes in a sandbox that is full.
const ROOM_BYTES: u64 = 16 << 20;

/// An open pool of this kind.
#[derive(Debug)]
pub(super) struct Btrfs {
    dir: PathBuf,
    /// The file it is in; none when the data directory is on btrfs itself.
    image: Option<PathBuf>,
    /// Where the kernel shows its groups.
    groups: PathBuf,
    /// The group of all sandboxes.
    all: u64,
    /// Bytes of the bookkeeping that the host has set aside.
    held_bytes: AtomicU64,
}

impl Btrfs {
    /// Uses the file system that `dir` is on, when it is btrfs and not the pool's own.
    pub(super) fn native(dir: &Path, data_dir: &Path) -> anyhow::Result<Option<Self>> {
        if !is_btrfs(dir)? || !is_btrfs(data_dir)? || !same_file_system(dir, data_dir)? {
            return Ok(None);
        }
        Self::open(dir, None).map(Some)
    }

    /// Mounts the file system in `image` at `dir`, making it first when it is absent.
    pub(super) fn mounted(image: &Path, dir: &Path, bytes: Option<u64>) -> anyhow::Result<Self> {
        // One that had to stop writing is of use again once it was put away; if nothing uses it.
        if is_btrfs(dir)? && super::is_read_only(dir) {
            let _ = rustix::mount::unmount(dir, rustix::mount::UnmountFlags::empty());
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
        if is_btrfs(dir)? {
            // Of a server before us, perhaps with options of its own.
            let _ = rustix::mount::mount_remount(dir, flags, OPTIONS);
            return Self::open(dir, Some(image.to_owned()));
        }
        if !image.exists() {
            make(image, bytes)?;
        }
        let (device, _open) = loop_device::attach(image)?;
        rustix::mount::mount(&device, dir, "btrfs", flags, OPTIONS).context("mount the pool")?;
        Self::open(dir, Some(image.to_owned()))
    }

    fn open(dir: &Path, image: Option<PathBuf>) -> anyhow::Result<Self> {
        let root = File::open(dir).context("open the pool")?;
        ioctl::enable_quotas(&root).context("turn on simple quotas (kernel 6.7 or later)")?;
        let fsid = ioctl::fsid(&root).context("name the pool")?;
        let shown = PathBuf::from(format!("/sys/fs/btrfs/{fsid}"));
        // Several data directories may be on one file system.
        let tree = ioctl::tree_of(dir).context("find the pool's subvolume")?;
        let number = root.metadata().context("look at the pool")?.ino() ^ (tree << 24);
        let all = LEVEL_POOL | (number & NUMBERS);
        ioctl::create_group(&root, all).context("make the pool's group")?;
        if image.is_some() {
            // Bookkeeping is set aside on the host, so not more than needed at a time.
            let _ = fs::write(shown.join("allocation/metadata/chunk_size"), "268435456");
        }
        let pool = Self {
            dir: dir.to_owned(),
            image,
            groups: shown.join("qgroups"),
            all,
            held_bytes: AtomicU64::new(0),
        };
        pool.bound_all(None).context("bound the pool")?;
        Ok(pool)
    }

    pub(super) fn is_native(&self) -> bool {
        self.image.is_none()
    }

    fn root(&self) -> io::Result<File> {
        File::open(&self.dir)
    }

    /// Makes a subvolume that may hold so many bytes.
    pub(super) fn create(&self, path: &Path, bytes: u64) -> io::Result<()> {
        ioctl::create_subvolume(path, self.all, bytes)
    }

    pub(super) fn remove(path: &Path) -> io::Result<()> {
        ioctl::destroy_subvolume(path)
    }

    /// Bounds one anew.
    pub(super) fn bound(&self, path: &Path, bytes: u64) -> io::Result<()> {
        ioctl::limit(&self.root()?, ioctl::tree_of(path)?, Some(bytes))
    }

    /// Bounds a sandbox a little less tightly, so that a full one can be started.
    pub(super) fn make_room(&self, path: &Path, bytes: u64) -> io::Result<()> {
        self.bound(path, bytes + ROOM_BYTES)
    }

    /// Bytes of a sandbox, as its limit counts them.
    pub(super) fn used(&self, path: &Path) -> io::Result<u64> {
        self.referenced(ioctl::tree_of(path)?)
    }

    /// Bytes of all sandboxes.
    pub(super) fn used_by_all(&self) -> io::Result<u64> {
        self.referenced(self.all)
    }

    pub(super) fn bound_all(&self, bytes: Option<u64>) -> io::Result<()> {
        ioctl::limit(&self.root()?, self.all, bytes)
    }

    fn referenced(&self, group: u64) -> io::Result<u64> {
        let name = format!("{}_{}/referenced", group >> 48, group & NUMBERS);
        let text = fs::read_to_string(self.groups.join(name))?;
        text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Removes the groups of what is gone.
    pub(super) fn remove_empty_groups(&self) -> io::Result<()> {
        let root = self.root()?;
        // The kernel removes them too, but not those that it finds in use when it looks; it refuses where
        // the subvolume is still there.
        for entry in fs::read_dir(&self.groups)? {
            let name = entry?.file_name();
            let number = name.to_string_lossy().strip_prefix("0_").and_then(|n| n.parse().ok());
            if let Some(group) = number
                && self.referenced(group).is_ok_and(|bytes| bytes == 0)
            {
                let _ = ioctl::destroy_group(&root, group);
            }
        }
        Ok(())
    }

    /// Has the host set aside what the pool's bookkeeping lies on.
    pub(super) fn hold_bookkeeping(&self) -> io::Result<()> {
        let Some(image) = &self.image else { return Ok(()) };
        let root = self.root()?;
        let bytes = chunks::bookkeeping_bytes(&root)?;
        if self.held_bytes.load(Ordering::Relaxed) != bytes {
            chunks::hold_bookkeeping(&root, image)?;
            self.held_bytes.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Gives the host back what sandboxes no longer use.
    pub(super) fn trim(&self) -> io::Result<()> {
        if self.is_native() { Ok(()) } else { chunks::trim_data(&self.root()?) }
    }

    /// Unmounts what was mounted for it, if nothing uses it.
    pub(super) fn close(&self) {
        if !self.is_native() {
            let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::empty());
        }
    }
}

/// What is free is given back by us, and not where bookkeeping lies.
const OPTIONS: &CStr = c"nodiscard";

/// Whether the pool is there.
pub(super) fn is_mounted(dir: &Path) -> bool {
    is_btrfs(dir).unwrap_or_default()
}

fn is_btrfs(dir: &Path) -> anyhow::Result<bool> {
    let kind = rustix::fs::statfs(dir).context("statfs the pool")?.f_type;
    Ok(u64::try_from(kind).is_ok_and(|kind| kind == MAGIC))
}

fn same_file_system(one: &Path, other: &Path) -> anyhow::Result<bool> {
    let fsid = |dir: &Path| ioctl::fsid(&File::open(dir)?);
    Ok(fsid(one).context("name the pool")? == fsid(other).context("name the file system")?)
}

/// Made under another name first: a half-made file system must not be taken for one.
fn make(image: &Path, bytes: Option<u64>) -> anyhow::Result<()> {
    let parent = image.parent().context("pool file")?;
    let free = rustix::fs::statvfs(parent).context("statvfs")?;
    let bytes = bytes.unwrap_or(free.f_bavail * free.f_frsize / 5 * 4).max(SMALLEST_POOL);
    let unfinished = image.with_extension("unfinished");
    let file = File::create(&unfinished).context("create the pool file")?;
    if let Err(error) = file.set_len(bytes) {
        let _ = fs::remove_file(&unfinished);
        return Err(error).context("size the pool file");
    }
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
