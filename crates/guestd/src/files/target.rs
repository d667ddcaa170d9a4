//! Making what a client names: parents first, and everything owned by the client's user.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};

use crate::accounts::Account;
use crate::paths;
use crate::refusal::{Code, Refusal, Result};

/// Makes a directory and those above it; the new ones belong to the account.
pub(crate) fn make_directories(path: &str, account: &Account, is_root: bool) -> Result<()> {
    let mut missing = Vec::new();
    let mut current = path;
    loop {
        match fs::metadata(current) {
            Ok(meta) if meta.is_dir() => break,
            Ok(_) => {
                let message = format!("path '{current}' is not a directory");
                return Err(Refusal::invalid(message));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(current),
            Err(error) => return Err(Refusal::io(current, &error)),
        }
        current = paths::split(current).0;
    }
    for directory in missing.into_iter().rev() {
        let made = fs::DirBuilder::new().mode(0o755).create(directory);
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Refusal::io(directory, &error)),
            Ok(()) if is_root => {
                std::os::unix::fs::lchown(directory, Some(account.uid), Some(account.gid))
                    .map_err(|error| Refusal::io(directory, &error))?;
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Creates or truncates a file, which then belongs to the account.
pub(super) fn create(path: &str, account: &Account, is_root: bool) -> Result<File> {
    if fs::metadata(path).is_ok_and(|meta| meta.is_dir()) {
        return Err(Refusal::invalid(format!("path is a directory: {path}")));
    }
    make_directories(paths::split(path).0, account, is_root)?;
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o666).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).map_err(|error| full(Refusal::io(path, &error)))?;
    if is_root {
        own(&file, account)?;
    }
    Ok(file)
}

pub(crate) fn own(file: &File, account: &Account) -> Result<()> {
    std::os::unix::fs::fchown(file, Some(account.uid), Some(account.gid))
        .map_err(|error| Refusal::io("chown", &error))
}

/// envd's words.
pub(super) fn full(refusal: Refusal) -> Refusal {
    match refusal.code {
        Code::DiskFull => Refusal::new(Code::DiskFull, "not enough disk space available"),
        _ => refusal,
    }
}

/// A write that failed.
pub(crate) fn unwritten(error: &io::Error) -> Refusal {
    Refusal::io("write", error)
}
