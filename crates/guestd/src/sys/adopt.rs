//! Descriptors that the launcher left open for us, by number.

#![expect(unsafe_code, reason = "a number becomes an owned descriptor")]

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

/// Takes over a descriptor that is named in an argument. Nothing else may own it: call this at the
/// start of a process, once for each.
pub fn adopt_fd(number: &str) -> io::Result<OwnedFd> {
    let number: RawFd = number.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    if number < 3 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: only looked at; a number that is not open gives EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and by contract nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
