//! What a build leaves that was killed: a yard with sandboxes, a keeper and a mounted pool. Found by
//! its directory, taken over by its lock, and removed as any sandbox is.

use std::path::{Path, PathBuf};

use driver::Driver;
use model::{EndReason, Result};

use crate::{LinuxConfig, LinuxDriver};

/// Removes the yards of builds that nobody works on any more; answers how many.
///
/// # Errors
/// What could not be removed; the next call tries again.
pub async fn clean_up(
    data_dir: &Path,
    keeper_command: &[PathBuf],
    runtime_dir: &Path,
) -> Result<u32> {
    let mut removed = 0;
    for dir in std::fs::read_dir(data_dir.join("builds")).into_iter().flatten().flatten() {
        if clean_one(&dir.path(), keeper_command, runtime_dir).await? {
            removed += 1;
        }
    }
    Ok(removed)
}

/// One yard; whether there was one and it is gone.
pub(crate) async fn clean_one(
    dir: &Path,
    keeper_command: &[PathBuf],
    runtime_dir: &Path,
) -> Result<bool> {
    if !dir.exists() {
        return Ok(false);
    }
    if is_busy(dir) {
        return Ok(false);
    }
    let mut config = LinuxConfig::new(dir.to_owned(), keeper_command.to_vec());
    config.runtime_dir = runtime_dir.to_owned();
    let driver = LinuxDriver::open(config).await?;
    for observed in driver.list().await? {
        driver.remove(observed.spec.id, EndReason::UserRequest).await?;
    }
    driver.collect().await?;
    driver.close().await;
    // Somebody may have begun to work there since.
    let Some(_lock) = locked(dir) else { return Ok(false) };
    remove_dir(dir);
    Ok(true)
}

/// Whether a process works there.
pub(crate) fn is_busy(dir: &Path) -> bool {
    dir.join("lock").exists() && locked(dir).is_none()
}

/// Its lock, if nobody has it.
fn locked(dir: &Path) -> Option<std::fs::File> {
    let file = std::fs::File::open(dir.join("lock")).ok()?;
    let flock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&file, flock).ok().map(|()| file)
}

/// The directory of a yard whose driver is closed. A pool that is still mounted keeps it for the next
/// time: nothing below a mount point is deleted by path.
pub(super) fn remove_dir(dir: &Path) {
    let pool = dir.join("pool");
    let _ = rustix::mount::unmount(&pool, rustix::mount::UnmountFlags::empty());
    let device = |path: &Path| {
        std::fs::metadata(path).map(|meta| std::os::unix::fs::MetadataExt::dev(&meta)).ok()
    };
    if pool.exists() && device(&pool) != device(dir) {
        return;
    }
    let _ = std::fs::remove_dir_all(dir);
}
