//! What a build leaves that was killed: a yard with sandboxes, a keeper and a mounted pool. Found by
//! its directory, taken over by its lock, and removed as any sandbox is.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use driver::Driver;
use model::{EndReason, Result};

use crate::lock_file::{self, Lock};
use crate::{LinuxConfig, LinuxDriver};

/// Its file in a yard.
const LOCK: &str = "lock";

/// Removes the yards of builds that nobody works on any more; answers how many.
///
/// # Errors
/// What could not be removed; the next call tries again.
pub async fn clean_up(data_dir: &Path, runtime_dir: &Path) -> Result<u32> {
    let mut removed = 0;
    for dir in fs::read_dir(data_dir.join("builds")).into_iter().flatten().flatten() {
        if clean_one(&dir.path(), runtime_dir).await? {
            removed += 1;
        }
    }
    Ok(removed)
}

/// One yard; whether there was one and it is gone.
pub(crate) async fn clean_one(dir: &Path, runtime_dir: &Path) -> Result<bool> {
    if !dir.exists() {
        return Ok(false);
    }
    if is_busy(dir) {
        return Ok(false);
    }
    let mut config = LinuxConfig::new(dir.to_owned());
    config.runtime_dir = runtime_dir.to_owned();
    let driver = LinuxDriver::open(config).await?;
    for observed in driver.list().await? {
        driver.remove(observed.spec.id, EndReason::UserRequest).await?;
    }
    driver.collect().await?;
    driver.close().await;
    Ok(remove_if_free(dir))
}

/// Removes a yard whose driver is closed, unless somebody has begun to work there since.
pub(super) fn remove_if_free(dir: &Path) -> bool {
    let Some(_lock) = locked(dir) else { return false };
    remove_dir(dir);
    true
}

/// Whether a process works there.
pub(crate) fn is_busy(dir: &Path) -> bool {
    dir.join(LOCK).exists() && locked(dir).is_none()
}

/// Its lock, if it is there and nobody has it.
fn locked(dir: &Path) -> Option<File> {
    match lock_file::take(&dir.join(LOCK), |lock| File::open(lock)).ok()? {
        Lock::Alone(file) => Some(file),
        Lock::Busy | Lock::Gone => None,
    }
}

/// The directory of a yard, for who has its lock and no driver. A pool that is still mounted keeps it
/// for the next time: nothing below a mount point is deleted by path.
pub(crate) fn remove_dir(dir: &Path) {
    let pool = dir.join("pool");
    let _ = rustix::mount::unmount(&pool, rustix::mount::UnmountFlags::empty());
    let device = |path: &Path| {
        fs::metadata(path).map(|meta| std::os::unix::fs::MetadataExt::dev(&meta)).ok()
    };
    if pool.exists() && device(&pool) != device(dir) {
        return;
    }
    // The lock last: who works here next begins when nothing is removed any more.
    if remove_all_but_lock(dir).is_ok() && fs::remove_file(dir.join(LOCK)).is_ok() {
        // Unless somebody has begun.
        let _ = fs::remove_dir(dir);
    }
}

fn remove_all_but_lock(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() == LOCK {
            continue;
        }
        let removed = match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path()),
            false => fs::remove_file(entry.path()),
        };
        // Who waits for the lock may have made it, and named it otherwise since.
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}
