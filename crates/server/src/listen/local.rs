//! Sockets in the data directory, between servers of the same account: the one of the lease's holder,
//! on which the others pass it their calls.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tokio::net::{UnixListener, UnixStream};

/// Where the holder of the lease takes calls.
pub(crate) fn leader_socket(data_dir: &Path) -> PathBuf {
    data_dir.join("run/leader.sock")
}

/// A socket at this path, in the place of whatever was there, for this account alone.
pub(super) fn bind(path: &Path) -> Result<UnixListener> {
    let dir = path.parent().context("a socket without a directory")?;
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    let _ = fs::remove_file(&fresh);
    let listener =
        UnixListener::bind(&fresh).with_context(|| format!("bind {}", fresh.display()))?;
    fs::set_permissions(&fresh, PermissionsExt::from_mode(0o600)).context("close a socket")?;
    fs::rename(&fresh, path).with_context(|| format!("name {}", path.display()))?;
    Ok(listener)
}

/// Whether who connected has our account, or is root. The directory's mode says so already.
pub(super) fn of_ours(stream: &UnixStream) -> Result<()> {
    let peer = stream.peer_cred().context("ask who connects")?.uid();
    let own = rustix::process::geteuid().as_raw();
    ensure!(peer == own || peer == 0, "the account {peer} is not ours");
    Ok(())
}
