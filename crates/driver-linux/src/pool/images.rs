//! Disks as images of ext4, for hosts without btrfs: `ID.img` is sparse, holds both disks of a sandbox,
//! and is mounted at `ID` while somebody uses it. Its size is the limit, of bytes and of inodes.
//!
//! A file system is made once a size; every image of that size is a sparse copy of it. A loop device
//! goes with the last mount of it, so what a crash leaves is a mount, which the sweep finds here.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context, bail};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::mount::{MountFlags, UnmountFlags};

use super::{GIB, loop_device};

/// One inode for so many bytes; a GiB has 131,072.
const BYTES_PER_INODE: &str = "8192";
const OPTIONS: &CStr = c"errors=remount-ro,noinit_itable,discard";
/// A device that is found may detach itself before it is mounted.
const ATTEMPTS: u32 = 8;

/// A start makes a few files, for which a full image has no room: it keeps this for it, where nobody
/// inside can see it.
const BALLAST: &str = "ballast";
const BALLAST_BYTES: u64 = 1 << 20;
const BALLAST_STEP: u64 = 64 << 10;
const BALLAST_FILES: u32 = 16;

/// An open pool of this kind.
#[derive(Debug)]
pub(super) struct Images {
    dir: PathBuf,
    /// Held while the file system for a size is made, and while a device is taken.
    making: Mutex<()>,
}

impl Images {
    pub(super) fn open(dir: &Path) -> anyhow::Result<Self> {
        let images = Self { dir: dir.to_owned(), making: Mutex::new(()) };
        if !Path::new("/dev/loop-control").exists() {
            bail!("no loop devices: no /dev/loop-control\nhint: modprobe loop");
        }
        images.empty_image(1)?;
        Ok(images)
    }

    fn mount_point(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn image(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.img"))
    }

    /// Makes the image of a sandbox, if need be, and mounts it.
    pub(super) fn create(&self, name: &str, disk_gb: u32) -> anyhow::Result<()> {
        let image = self.image(name);
        if !image.exists() {
            let from = self.empty_image(disk_gb)?;
            let unfinished = self.dir.join(format!(".{name}.unfinished"));
            copy_sparse(&from, &unfinished).context("copy the empty image")?;
            fs::rename(&unfinished, &image).context("name the image")?;
        }
        self.mount(name)?;
        self.take_room_back(name);
        Ok(())
    }

    /// Makes room in an image that may be full, until [`Images::take_room_back`].
    pub(super) fn make_room(&self, name: &str) -> anyhow::Result<()> {
        let place = self.mount_point(name);
        super::tree::remove(&place.join(BALLAST)).context("drop the ballast")?;
        // What was freed can be used once that is on the disk.
        let root = File::open(&place).context("open an image")?;
        rustix::fs::syncfs(&root).context("flush an image")
    }

    /// As much of it as there is: what a start needed is there again for the next one.
    pub(super) fn take_room_back(&self, name: &str) {
        let dir = self.mount_point(name).join(BALLAST);
        let Ok(()) = fs::create_dir(&dir) else { return };
        let mut left = BALLAST_BYTES;
        for number in 0..BALLAST_FILES {
            let Ok(file) = File::create(dir.join(number.to_string())) else { return };
            while number == 0 && left > 0 {
                match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, left) {
                    Ok(()) => break,
                    Err(_) => left -= BALLAST_STEP,
                }
            }
        }
    }

    /// Mounts an image that exists; `Ok` when it is mounted.
    pub(super) fn mount(&self, name: &str) -> anyhow::Result<()> {
        let place = self.mount_point(name);
        match fs::create_dir(&place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(error).context("make a mount point");
            }
            Ok(()) | Err(_) => {}
        }
        if self.is_mounted(&place) {
            if !super::is_read_only(&place) {
                return Ok(());
            }
            // It had to stop writing; nothing uses it, so it may begin anew.
            self.unmount(name);
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
        let _one_at_a_time = self.making.lock().expect("no holder of this lock panics");
        for attempt in 1.. {
            let (device, _open) = loop_device::attach(&self.image(name))?;
            match rustix::mount::mount(&device, &place, "ext4", flags, OPTIONS) {
                Ok(()) => break,
                Err(error) if attempt == ATTEMPTS => return Err(error).context("mount an image"),
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn is_mounted(&self, place: &Path) -> bool {
        let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).ok();
        device(place).is_some_and(|dev| Some(dev) != device(&self.dir))
    }

    /// Lets go of an image that nothing uses. One that is busy stays.
    pub(super) fn unmount(&self, name: &str) {
        let place = self.mount_point(name);
        if self.is_mounted(&place) {
            let _ = rustix::mount::unmount(&place, UnmountFlags::empty());
        }
    }

    /// Bytes and inodes go with the file, whatever is in it.
    pub(super) fn remove(&self, name: &str) -> anyhow::Result<()> {
        let place = self.mount_point(name);
        while self.is_mounted(&place) {
            rustix::mount::unmount(&place, UnmountFlags::DETACH).context("unmount an image")?;
        }
        for gone in [fs::remove_file(self.image(name)), fs::remove_dir(&place)] {
            match gone {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).context("remove an image");
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    pub(super) fn used(&self, name: &str) -> u64 {
        let place = self.mount_point(name);
        let stat = rustix::fs::statvfs(&place).ok().filter(|_| self.is_mounted(&place));
        stat.map_or(0, |stat| (stat.f_blocks - stat.f_bfree) * stat.f_frsize)
    }

    /// The file system that images of this size begin as.
    fn empty_image(&self, disk_gb: u32) -> anyhow::Result<PathBuf> {
        let path = self.dir.join(format!(".empty-{disk_gb}.img"));
        let _one_at_a_time = self.making.lock().expect("no holder of this lock panics");
        if path.exists() {
            return Ok(path);
        }
        let unfinished = path.with_extension("unfinished");
        let file = File::create(&unfinished).context("create an image")?;
        file.set_len(u64::from(disk_gb) * GIB).context("size an image")?;
        make_file_system(&unfinished)?;
        file.sync_all().context("flush an image")?;
        fs::rename(&unfinished, &path).context("name an image")?;
        Ok(path)
    }
}

fn make_file_system(file: &Path) -> anyhow::Result<()> {
    let output = Command::new("mkfs.ext4")
        .args(["-q", "-F", "-b", "4096", "-i", BYTES_PER_INODE, "-m", "0", "-J", "size=16"])
        .args(["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0"])
        .arg(file)
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("mkfs.ext4 is missing\nhint: apt-get install e2fsprogs");
        }
        Err(error) => return Err(error).context("run mkfs.ext4"),
    };
    if !output.status.success() {
        bail!("mkfs.ext4: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Copies what a file has, and leaves out what it has not.
fn copy_sparse(from: &Path, to: &Path) -> anyhow::Result<()> {
    let from = File::open(from).context("open")?;
    let to = File::create(to).context("create")?;
    let length = from.metadata().context("size")?.len();
    to.set_len(length).context("size")?;
    let mut at = 0;
    while at < length {
        let start = match rustix::fs::seek(&from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(errno) => return Err(errno).context("find data"),
        };
        let end = rustix::fs::seek(&from, SeekFrom::Hole(start)).context("find a hole")?;
        copy_range((&from, &to), start, end)?;
        at = end;
    }
    Ok(())
}

fn copy_range((from, to): (&File, &File), start: u64, end: u64) -> anyhow::Result<()> {
    let (mut read, mut written) = (start, start);
    while read < end {
        let rest = usize::try_from(end - read).unwrap_or(usize::MAX);
        let copied =
            rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), rest);
        if copied.context("copy")? == 0 {
            bail!("the image ended early");
        }
    }
    Ok(())
}
