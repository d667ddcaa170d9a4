//! One installation of an agent at a time, also between daemons that share a directory.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::time::Instant;

use super::InstallError;

/// Somebody else's download may take this long.
const WAIT_MAX: Duration = Duration::from_secs(20 * 60);
const POLL: Duration = Duration::from_millis(200);

/// Held until dropped; the kernel lets go of it when the process dies.
pub(super) async fn take(path: &Path) -> Result<File, InstallError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|error| InstallError::disk("open", path, &error))?;
    let begun = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begun.elapsed() > WAIT_MAX {
            let text = format!("another process holds {}", path.display());
            return Err(InstallError::new(text, "wait until it has finished"));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(file)
}
