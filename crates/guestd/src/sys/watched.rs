//! Descriptors that the runtime watches.

#![expect(unsafe_code, reason = "the runtime must be promised that the descriptor stays open")]

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use tokio::io::unix::AsyncFd;

/// Makes a descriptor not blocking and watches it for as long as it is owned.
pub(crate) fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    rustix::fs::fcntl_setfl(&fd, OFlags::NONBLOCK)?;
    // SAFETY: an `OwnedFd` stays open, and the same, until it is dropped with its registration.
    let registered = unsafe { AsyncFd::register(fd) };
    registered.map_err(|error| error.into_parts().1)
}
