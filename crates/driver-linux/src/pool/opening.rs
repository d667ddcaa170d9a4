//! Which kind of pool a data directory has. The first start decides; a pool that exists is not left for
//! another kind, which would not find the disks.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, bail};

use super::btrfs::Btrfs;
use super::images::Images;
use super::reserve::Reserve;
use super::{DiskConfig, DiskKind, DiskPool, GIB, Kind};

/// Of a pool that is not on btrfs, in its directory.
const MARKS: [(DiskKind, &str); 2] = [(DiskKind::Plain, ".plain"), (DiskKind::Image, ".images")];

impl DiskPool {
    /// Opens (makes, mounts) the pool of `data_dir`.
    pub(crate) fn open(data_dir: &Path, config: DiskConfig) -> anyhow::Result<Self> {
        let dir = data_dir.join("pool");
        fs::create_dir_all(&dir).context("make the pool directory")?;
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o700))?;
        let kind = match (config.kind, existing(data_dir, &dir)) {
            (DiskKind::Auto, None) => first_that_works(data_dir, &dir, config)?,
            (DiskKind::Auto, Some(kind)) => open_as(kind, data_dir, &dir, config)?,
            (wanted, Some(found)) if wanted != found => {
                bail!("the disk pool is of kind {}, not {}", word(found), word(wanted));
            }
            (wanted, _) => open_as(wanted, data_dir, &dir, config)?,
        };
        let reserve = Reserve::new(config.reserve_bytes);
        let pool = Self { data_dir: data_dir.to_owned(), dir, kind, reserve };
        pool.watch_host();
        Ok(pool)
    }
}

/// What an earlier start decided.
fn existing(data_dir: &Path, dir: &Path) -> Option<DiskKind> {
    if data_dir.join("pool.img").exists() || dir.join(".btrfs").exists() {
        return Some(DiskKind::Btrfs);
    }
    MARKS.iter().find(|(_, mark)| dir.join(mark).exists()).map(|(kind, _)| *kind)
}

/// What the pool of a data directory is, and whether it enforces limits. Looks only.
pub(crate) fn describe(data_dir: &Path) -> Option<(&'static str, bool)> {
    let described = match existing(data_dir, &data_dir.join("pool"))? {
        DiskKind::Auto | DiskKind::Btrfs if data_dir.join("pool.img").exists() => {
            ("btrfs in the file pool.img", true)
        }
        DiskKind::Auto | DiskKind::Btrfs => ("the data directory's own btrfs", true),
        DiskKind::Image => ("an ext4 image for each sandbox", true),
        DiskKind::Plain => ("plain directories: disk_gb is not enforced", false),
    };
    Some(described)
}

fn first_that_works(data_dir: &Path, dir: &Path, config: DiskConfig) -> anyhow::Result<Kind> {
    for kind in [DiskKind::Btrfs, DiskKind::Image] {
        match open_as(kind, data_dir, dir, config) {
            Ok(opened) => return Ok(opened),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(error, "this host has no disk pool of kind {}", word(kind));
            }
        }
    }
    open_as(DiskKind::Plain, data_dir, dir, config)
}

/// As the configuration calls it.
fn word(kind: DiskKind) -> &'static str {
    match kind {
        DiskKind::Auto => "auto",
        DiskKind::Btrfs => "btrfs",
        DiskKind::Image => "image",
        DiskKind::Plain => "plain",
    }
}

fn open_as(
    kind: DiskKind,
    data_dir: &Path,
    dir: &Path,
    config: DiskConfig,
) -> anyhow::Result<Kind> {
    let opened = match kind {
        DiskKind::Auto | DiskKind::Btrfs => {
            let image = data_dir.join("pool.img");
            let native = if image.exists() { None } else { Btrfs::native(dir, data_dir)? };
            if let Some(native) = native {
                File::create(dir.join(".btrfs")).context("mark the pool")?;
                return Ok(Kind::Btrfs(native));
            }
            let bytes = config.pool_gb.map(|gb| gb * GIB);
            Kind::Btrfs(Btrfs::mounted(&image, dir, bytes).context("open the disk pool")?)
        }
        DiskKind::Image => Kind::Images(Images::open(dir).context("open the disk pool")?),
        DiskKind::Plain => Kind::Plain,
    };
    if let Some((_, mark)) = MARKS.iter().find(|(marked, _)| *marked == kind) {
        File::create(dir.join(mark)).context("mark the pool")?;
    }
    Ok(opened)
}
