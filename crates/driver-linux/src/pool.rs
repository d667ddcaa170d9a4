//! Where the disks of sandboxes live, and what bounds them.
//!
//! A sandbox has two: the root's upper (`u-ID`) and the workspace (`w-ID`). On btrfs each is a
//! subvolume with a limit of simple quotas: made, bounded and destroyed in O(1). The file system is
//! one loop file in the data directory, so that nothing of the host needs repartitioning.
//! Without btrfs they are plain directories and `disk_gb` is not enforced, which `capabilities` says.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::privilege::Privilege;

mod btrfs;
mod loop_device;

/// Which kind of pool to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DiskKind {
    /// btrfs where this host can, else plain directories.
    #[default]
    Auto,
    Btrfs,
    Plain,
}

/// Settings of the pool.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskConfig {
    pub kind: DiskKind,
    /// Size of the loop file, which is sparse; four fifths of the free space when absent.
    pub pool_gb: Option<u64>,
}

impl DiskConfig {
    /// Loop devices and the mounts of block devices are the host's.
    pub(crate) fn allowed(self, privilege: Privilege) -> Self {
        match privilege {
            Privilege::Host => self,
            Privilege::Namespace { .. } => Self { kind: DiskKind::Plain, ..self },
        }
    }
}

/// The open pool.
#[derive(Debug)]
pub(crate) struct DiskPool {
    dir: PathBuf,
    btrfs: bool,
}

/// Which of a sandbox's two disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disk {
    Upper,
    Workspace,
}

const GIB: u64 = 1 << 30;

impl DiskPool {
    /// Opens (makes, mounts) the pool of `data_dir`.
    pub(crate) fn open(data_dir: &Path, config: DiskConfig) -> anyhow::Result<Self> {
        let dir = data_dir.join("pool");
        fs::create_dir_all(&dir).context("make the pool directory")?;
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o700))?;
        let wanted = config.kind;
        let made_plain = dir.join(".plain").exists();
        if wanted == DiskKind::Plain || (wanted == DiskKind::Auto && made_plain) {
            File::create(dir.join(".plain")).context("mark the pool as plain")?;
            return Ok(Self { dir, btrfs: false });
        }
        match btrfs::mount(&data_dir.join("pool.img"), &dir, config.pool_gb.map(|gb| gb * GIB)) {
            Ok(()) => Ok(Self { dir, btrfs: true }),
            Err(error) if wanted == DiskKind::Auto && !data_dir.join("pool.img").exists() => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "no btrfs pool: disk_gb will not be enforced"
                );
                File::create(dir.join(".plain")).context("mark the pool as plain")?;
                Ok(Self { dir, btrfs: false })
            }
            Err(error) => Err(error.context("open the disk pool")),
        }
    }

    pub(crate) fn enforces_limits(&self) -> bool {
        self.btrfs
    }

    pub(crate) fn path(&self, disk: Disk, sandbox: &str) -> PathBuf {
        let kind = match disk {
            Disk::Upper => 'u',
            Disk::Workspace => 'w',
        };
        self.dir.join(format!("{kind}-{sandbox}"))
    }

    /// Makes both disks; what exists already is kept.
    pub(crate) fn create(&self, sandbox: &str, disk_gb: u32, user: u32) -> anyhow::Result<()> {
        self.create_upper(sandbox, disk_gb)?;
        let workspace = self.path(Disk::Workspace, sandbox);
        if self.make(&workspace, disk_gb)? {
            chown(&workspace, Some(user), Some(user)).context("own the workspace")?;
        }
        Ok(())
    }

    pub(crate) fn create_upper(&self, sandbox: &str, disk_gb: u32) -> anyhow::Result<()> {
        let upper = self.path(Disk::Upper, sandbox);
        if self.make(&upper, disk_gb)? {
            fs::create_dir(upper.join("upper")).context("make upper")?;
            fs::create_dir(upper.join("work")).context("make work")?;
        }
        Ok(())
    }

    /// Whether it was made now.
    fn make(&self, path: &Path, disk_gb: u32) -> anyhow::Result<bool> {
        let made = if self.btrfs {
            btrfs::create_subvolume(path, u64::from(disk_gb) * GIB)
        } else {
            fs::create_dir(path)
        };
        match made {
            Ok(()) => {
                fs::set_permissions(path, PermissionsExt::from_mode(0o755))?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error).with_context(|| format!("make disk {}", path.display())),
        }
    }

    /// Bounds a disk anew (a warm sandbox that is claimed with another size).
    pub(crate) fn set_limit(&self, disk: Disk, sandbox: &str, disk_gb: u32) -> anyhow::Result<()> {
        if !self.btrfs {
            return Ok(());
        }
        btrfs::set_limit(&self.path(disk, sandbox), u64::from(disk_gb) * GIB)
            .context("bound the disk")
    }

    /// Removes a disk; `Ok` when it is gone already.
    pub(crate) fn remove(&self, disk: Disk, sandbox: &str) -> anyhow::Result<()> {
        let path = self.path(disk, sandbox);
        let gone =
            if self.btrfs { btrfs::remove_subvolume(&path) } else { fs::remove_dir_all(&path) };
        match gone {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove disk {}", path.display()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Makes everything written to a disk durable.
    pub(crate) fn sync(&self, disk: Disk, sandbox: &str) -> anyhow::Result<()> {
        let file = File::open(self.path(disk, sandbox)).context("open the disk")?;
        rustix::fs::syncfs(&file).context("flush the disk")
    }

    /// The bare ids of all sandboxes that have a disk here.
    pub(crate) fn sandboxes(&self) -> anyhow::Result<Vec<String>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.dir).context("list disks")? {
            let name = entry.context("list disks")?.file_name();
            let name = name.to_string_lossy();
            let id = name.strip_prefix("u-").or_else(|| name.strip_prefix("w-"));
            if let Some(id) = id
                && !ids.iter().any(|known| known == id)
            {
                ids.push(id.to_owned());
            }
        }
        Ok(ids)
    }

    pub(crate) fn used_bytes(&self, disk: Disk, sandbox: &str) -> u64 {
        if !self.btrfs {
            return 0;
        }
        btrfs::used(&self.path(disk, sandbox)).unwrap_or_default()
    }

    /// Unmounts a pool that nothing uses; the loop device goes with it. Busy is fine: sandboxes run.
    pub(crate) fn close(&self) {
        if self.btrfs {
            let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::empty());
        }
    }
}
