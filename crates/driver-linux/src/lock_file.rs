//! A lock on a directory, by a file in it. Who removes the directory holds the lock and removes the file last; so
//! whoever opened the file before that may get the lock of one that is not there any more.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

pub(crate) enum Lock {
    /// Nobody else has it while the file is kept.
    Alone(File),
    Busy,
    /// There was none, or it was removed meanwhile, and what it stands for with it.
    Gone,
}

/// The lock of the file at `path`, as `open` opens it. Does not wait.
pub(crate) fn take(path: &Path, open: impl FnOnce(&Path) -> io::Result<File>) -> io::Result<Lock> {
    let Some(file) = found(open(path))? else { return Ok(Lock::Gone) };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(Lock::Busy),
        Err(errno) => return Err(errno.into()),
    }
    let here = file.metadata()?;
    let there = found(fs::metadata(path))?;
    let is_there =
        there.is_some_and(|there| (there.dev(), there.ino()) == (here.dev(), here.ino()));
    Ok(if is_there { Lock::Alone(file) } else { Lock::Gone })
}

fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
