//! One listening socket for several servers of a data directory, so that an upgrade refuses nobody: a
//! server whose address is taken asks those that listen there for their socket. What waits in it to be
//! accepted belongs to all of them, and none of it is lost when one ends.

use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use super::local;

/// Below the data directory.
const DOORS: &str = "run/doors";
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Offers a listener to other servers of the data directory, until the end. `None` when it cannot be
/// offered: then an upgrade takes another address, and nothing else is wrong.
pub(super) struct Offer {
    path: PathBuf,
    door: UnixListener,
    listener: OwnedFd,
}

impl Offer {
    pub(super) fn make(data_dir: &Path, listener: &tokio::net::TcpListener) -> Result<Self> {
        let dir = data_dir.join(DOORS);
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let path = dir.join(format!("{}.{}", listener.local_addr()?, std::process::id()));
        let door = local::bind(&path)?;
        let listener = listener.as_fd().try_clone_to_owned().context("share a listener")?;
        Ok(Self { path, door, listener })
    }

    pub(super) async fn serve(self, until: CancellationToken) {
        while let Some(accepted) = until.run_until_cancelled(self.door.accept()).await {
            let Ok((stream, _)) = accepted else { continue };
            let handed = local::of_ours(&stream).and_then(|()| hand_over(&stream, &self.listener));
            match handed {
                Ok(()) => tracing::info!("another server listens with us"),
                Err(error) => tracing::warn!(error = format!("{error:#}"), "could not share"),
            }
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn hand_over(stream: &tokio::net::UnixStream, listener: &OwnedFd) -> Result<()> {
    let fds = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    ensure!(control.push(SendAncillaryMessage::ScmRights(&fds)), "no room for a descriptor");
    // One byte into an empty socket never waits.
    sendmsg(stream, &[IoSlice::new(b"!")], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        .context("hand over the listener")?;
    Ok(())
}

/// The socket of a server that listens on this address for the same data directory. Blocks shortly.
pub(super) fn borrow(data_dir: &Path, address: SocketAddr) -> Result<TcpListener> {
    let wanted = format!("{address}.");
    let mut last = anyhow::anyhow!("no server of this data directory listens on {address}");
    for entry in fs::read_dir(data_dir.join(DOORS)).context("look for a server to share with")? {
        let entry = entry.context("look for a server to share with")?;
        if !entry.file_name().to_string_lossy().starts_with(&wanted) {
            continue;
        }
        match borrow_from(&entry.path(), address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn borrow_from(path: &Path, address: SocketAddr) -> Result<TcpListener> {
    let stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) => {
            // Of a server that was killed.
            let _ = fs::remove_file(path);
            return Err(error).with_context(|| format!("ask {}", path.display()));
        }
    };
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).context("ask for a listener")?;
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(&stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        .context("receive a listener")?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let listener = TcpListener::from(fd.context("no listener was handed over")?);
    ensure!(listener.local_addr()? == address, "another listener was handed over");
    listener.set_nonblocking(true).context("take a listener")?;
    Ok(listener)
}
