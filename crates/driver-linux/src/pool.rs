//! Where the disks of sandboxes live, and what bounds them.
//!
//! A sandbox has two, side by side in a home of its own: the root's upper and the workspace. One limit
//! holds for both together. What a home is, and what sets the limit, depends on the host:
//!
//! | kind | home | limit |
//! |---|---|---|
//! | btrfs | a subvolume, on the data directory's own btrfs or on one in a sparse file | its quota group |
//! | image | a sparse ext4 image, mounted while it is used | its size |
//! | plain | a directory | none, which `capabilities` says |

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::Context;

mod btrfs;
mod config;
mod device;
mod images;
mod loop_device;
mod opening;
mod reserve;
mod tree;

use btrfs::Btrfs;
pub use config::{DiskConfig, DiskKind};
use images::Images;
pub(crate) use opening::describe;
use reserve::Reserve;

/// The open pool.
#[derive(Debug)]
pub(crate) struct DiskPool {
    data_dir: PathBuf,
    dir: PathBuf,
    kind: Kind,
    reserve: Reserve,
}

#[derive(Debug)]
enum Kind {
    Plain,
    Btrfs(Btrfs),
    Images(Images),
}

/// Which of a sandbox's two disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disk {
    Upper,
    Workspace,
}

const GIB: u64 = 1 << 30;
/// Begins the names of disks that are nobody's yet. No sandbox is named like that.
const BLANK: &str = ".blank-";

impl DiskPool {
    pub(crate) fn enforces_limits(&self) -> bool {
        !matches!(self.kind, Kind::Plain)
    }

    /// Whether disks in use can be bounded anew.
    pub(crate) fn changes_limits(&self) -> bool {
        !matches!(self.kind, Kind::Images(_))
    }

    pub(crate) fn path(&self, disk: Disk, sandbox: &str) -> PathBuf {
        let name = match disk {
            Disk::Upper => "u",
            Disk::Workspace => "w",
        };
        self.home(sandbox).join(name)
    }

    fn home(&self, sandbox: &str) -> PathBuf {
        self.dir.join(sandbox)
    }

    /// Makes both disks, ready to be used; what exists already is kept.
    pub(crate) fn create(&self, sandbox: &str, disk_gb: u32, user: u32) -> anyhow::Result<()> {
        self.create_upper(sandbox, disk_gb)?;
        let workspace = self.path(Disk::Workspace, sandbox);
        if make_dir(&workspace)? {
            chown(&workspace, Some(user), Some(user)).context("own the workspace")?;
        }
        Ok(())
    }

    /// Makes both disks of a sandbox that is yet to come, under a name of their own; `None` where that saves nothing.
    pub(crate) fn create_blank(&self, disk_gb: u32, user: u32) -> Option<anyhow::Result<String>> {
        let Kind::Btrfs(_) = &self.kind else { return None };
        let made = keeper::random_hex::<6>().and_then(|name| {
            let name = format!("{BLANK}{name}");
            if let Err(error) = self.create(&name, disk_gb, user) {
                // Nobody knows of half a blank.
                let _ = self.remove(&name);
                return Err(error);
            }
            Ok(name)
        });
        Some(made)
    }

    /// Makes the disks of `sandbox` from a blank; whether that was possible.
    pub(crate) fn use_blank(&self, blank: &str, sandbox: &str) -> bool {
        fs::rename(self.home(blank), self.home(sandbox)).is_ok()
    }

    /// Removes the blanks of a server before this one.
    pub(crate) fn remove_blanks(&self) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if let Some(name) = entry.file_name().to_str()
                && name.starts_with(BLANK)
            {
                let _ = self.remove(name);
            }
        }
    }

    /// Makes a disk that has no workspace beside it, for now or for good.
    pub(crate) fn create_upper(&self, sandbox: &str, disk_gb: u32) -> anyhow::Result<()> {
        let home = self.home(sandbox);
        match &self.kind {
            Kind::Plain => drop(make_dir(&home)?),
            Kind::Images(images) => images.create(sandbox, disk_gb)?,
            Kind::Btrfs(pool) => match pool.create(&home, u64::from(disk_gb) * GIB) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.bound(sandbox, disk_gb)?;
                }
                made => made.with_context(|| format!("make disk {}", home.display()))?,
            },
        }
        let upper = self.path(Disk::Upper, sandbox);
        for dir in [&upper, &upper.join("upper"), &upper.join("work")] {
            make_dir(dir)?;
        }
        Ok(())
    }

    /// Sets the limit of both disks together.
    fn bound(&self, sandbox: &str, disk_gb: u32) -> anyhow::Result<()> {
        let Kind::Btrfs(pool) = &self.kind else { return Ok(()) };
        pool.bound(&self.home(sandbox), u64::from(disk_gb) * GIB).context("bound the disks")
    }

    /// Bounds disks anew (a warm sandbox that is claimed with another size).
    pub(crate) fn set_limit(&self, sandbox: &str, disk_gb: u32) -> anyhow::Result<()> {
        self.bound(sandbox, disk_gb)
    }

    /// Makes the disks of a stopped sandbox usable.
    pub(crate) fn ready(&self, sandbox: &str) -> anyhow::Result<()> {
        match &self.kind {
            Kind::Images(images) => images.mount(sandbox),
            Kind::Plain | Kind::Btrfs(_) => Ok(()),
        }
    }

    /// A start makes a few files, for which a full sandbox has no room: it gets some, until
    /// [`DiskPool::end_start`].
    pub(crate) fn begin_start(&self, sandbox: &str, disk_gb: u32) -> anyhow::Result<()> {
        match &self.kind {
            Kind::Plain => Ok(()),
            Kind::Btrfs(pool) => {
                let bytes = u64::from(disk_gb) * GIB;
                pool.make_room(&self.home(sandbox), bytes).context("make room for a start")
            }
            Kind::Images(images) => images.make_room(sandbox),
        }
    }

    pub(crate) fn end_start(&self, sandbox: &str, disk_gb: u32) -> anyhow::Result<()> {
        match &self.kind {
            Kind::Plain | Kind::Btrfs(_) => self.bound(sandbox, disk_gb),
            Kind::Images(images) => {
                images.take_room_back(sandbox);
                Ok(())
            }
        }
    }

    /// Nobody uses the disks of this sandbox for now.
    pub(crate) fn rest(&self, sandbox: &str) {
        match &self.kind {
            Kind::Images(images) => images.unmount(sandbox),
            Kind::Plain | Kind::Btrfs(_) => {}
        }
    }

    /// Removes what a sandbox changed of its root file system, and nothing else.
    pub(crate) fn remove_upper(&self, sandbox: &str) -> anyhow::Result<()> {
        let upper = self.path(Disk::Upper, sandbox);
        ignore_absent(tree::remove(&upper))
            .with_context(|| format!("remove disk {}", upper.display()))
    }

    /// Removes both disks; `Ok` when they are gone already.
    pub(crate) fn remove(&self, sandbox: &str) -> anyhow::Result<()> {
        self.reserve.something_was_removed();
        let home = self.home(sandbox);
        let gone = match &self.kind {
            Kind::Images(images) => return images.remove(sandbox),
            Kind::Btrfs(_) => Btrfs::remove(&home),
            Kind::Plain => tree::remove(&home),
        };
        ignore_absent(gone).with_context(|| format!("remove disk {}", home.display()))
    }

    /// Makes everything written to the workspace durable.
    pub(crate) fn sync(&self, sandbox: &str) -> anyhow::Result<()> {
        self.ready(sandbox)?;
        let file = File::open(self.path(Disk::Workspace, sandbox)).context("open the disk")?;
        let flushed = rustix::fs::syncfs(&file).context("flush the disk");
        let Kind::Images(_) = &self.kind else { return flushed };
        if let Err(error) = flushed {
            // The host has no room for it, and will not have: whoever wrote it was told so, and to mount
            // it anew is what makes the rest of use again.
            let error = format!("{error:#}");
            tracing::error!(sandbox, error, "what was written last is lost");
        }
        let dir = File::open(&self.dir).context("open the pool")?;
        dir.sync_all().context("flush the pool's directory")
    }

    /// The bare ids of all sandboxes that have a disk here.
    pub(crate) fn sandboxes(&self) -> anyhow::Result<Vec<String>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.dir).context("list disks")? {
            let name = entry.context("list disks")?.file_name().to_string_lossy().into_owned();
            let name = name.strip_suffix(".img").unwrap_or(&name);
            if !name.starts_with('.') && !ids.iter().any(|known| known == name) {
                ids.push(name.to_owned());
            }
        }
        Ok(ids)
    }

    /// Bytes of both disks, as the limit counts them; 0 where nothing counts.
    pub(crate) fn used_bytes(&self, sandbox: &str) -> u64 {
        match &self.kind {
            Kind::Plain => 0,
            Kind::Btrfs(pool) => pool.used(&self.home(sandbox)).unwrap_or_default(),
            Kind::Images(images) => images.used(sandbox),
        }
    }

    /// Takes note of bytes that could not be written. Until somebody did, the kernel mounts no root that
    /// skips flushing.
    pub(crate) fn see_write_errors(&self) {
        let seen = File::open(&self.dir).and_then(|dir| Ok(rustix::fs::syncfs(&dir)?));
        if let Err(error) = seen {
            tracing::error!(%error, "the disk of the sandboxes lost what was written to it");
        }
    }

    /// Whether the pool had to stop writing, and [`DiskPool::mount_again`] is what it needs.
    pub(crate) fn is_broken(&self) -> bool {
        match &self.kind {
            Kind::Btrfs(pool) if !pool.is_native() => {
                is_read_only(&self.dir) || !btrfs::is_mounted(&self.dir)
            }
            Kind::Plain | Kind::Btrfs(_) | Kind::Images(_) => false,
        }
    }

    /// Back to what was written last, when nothing uses it.
    pub(crate) fn mount_again(&self) -> anyhow::Result<()> {
        if btrfs::is_mounted(&self.dir) {
            rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::empty())
                .context("unmount the pool")?;
        }
        // What is known of it holds on: it is the same file system.
        Btrfs::mounted(&self.data_dir.join("pool.img"), &self.dir, None).map(drop)
    }

    /// Unmounts what nothing uses; loop devices go with it. Busy is fine: sandboxes run.
    pub(crate) fn close(&self) {
        match &self.kind {
            Kind::Plain => {}
            Kind::Btrfs(pool) => pool.close(),
            Kind::Images(images) => {
                self.sandboxes().unwrap_or_default().iter().for_each(|name| images.unmount(name));
            }
        }
    }
}

/// Whether it was made now.
fn make_dir(path: &Path) -> anyhow::Result<bool> {
    match fs::create_dir(path) {
        Ok(()) => {
            fs::set_permissions(path, PermissionsExt::from_mode(0o755))?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).with_context(|| format!("make disk {}", path.display())),
    }
}

fn ignore_absent(gone: io::Result<()>) -> io::Result<()> {
    match gone {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Whether what is mounted there takes no more writes.
fn is_read_only(dir: &Path) -> bool {
    let flags = rustix::fs::statvfs(dir).map(|stat| stat.f_flag);
    flags.is_ok_and(|flags| flags.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}
