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

/// Refuses whoever comes from now on; gives those that came before and were not accepted yet.
pub(super) fn close(listener: UnixListener) -> Result<Vec<UnixStream>> {
    let listener = listener.into_std().context("close a socket")?;
    rustix::net::shutdown(&listener, rustix::net::Shutdown::Read).context("close a socket")?;
    let mut waiting = Vec::new();
    // It does not block: there is an error once nobody waits.
    while let Ok((stream, _)) = listener.accept() {
        stream.set_nonblocking(true).context("take a connection")?;
        waiting.push(UnixStream::from_std(stream).context("take a connection")?);
    }
    Ok(waiting)
}

/// Whether who connected has our account, or is root. The directory's mode says so already.
pub(super) fn of_ours(stream: &UnixStream) -> Result<()> {
    let peer = stream.peer_cred().context("ask who connects")?.uid();
    let own = rustix::process::geteuid().as_raw();
    ensure!(peer == own || peer == 0, "the account {peer} is not ours");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::unix::net::UnixStream;

    use super::{bind, close};

    #[tokio::test]
    async fn who_waits_at_a_socket_that_closes_is_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let listener = bind(&path).unwrap();
        let _waiting = [0; 3].map(|_| UnixStream::connect(&path).unwrap());
        assert_eq!(close(listener).unwrap().len(), 3);
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}
