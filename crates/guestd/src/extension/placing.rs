//! A whole file on its way in: without a name until all of it is there, so that a transfer that
//! breaks off leaves what was there before.
//!
//! Written in place instead, with whatever a broken transfer leaves: a device, a file with several
//! names, a mount point, and what is on a file system without nameless files.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, linkat, renameat, unlinkat};

use crate::paths;
use crate::refusal::{Code, Refusal, Result};

pub(super) struct Placing {
    pub(super) file: File,
    /// Where it will be; `None` when it is there already.
    target: Option<PathBuf>,
}

impl Placing {
    /// A new file belongs to the sandbox's user; one that replaces another takes over its owner and
    /// mode. The directory must exist (ruling 19).
    pub(super) fn open(path: &str, owner: Option<(u32, u32)>) -> Result<Self> {
        let failed = |error: io::Error| no_parent(path, &error);
        // Where links lead to, if they lead anywhere.
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
        let (Some(directory), old) = (target.parent(), std::fs::symlink_metadata(&target).ok())
        else {
            return Self::in_place(path, owner).map_err(failed);
        };
        let directory_meta = std::fs::metadata(directory).map_err(failed)?;
        let replaceable =
            |old: &Metadata| old.is_file() && old.nlink() == 1 && old.dev() == directory_meta.dev();
        if !old.as_ref().is_none_or(replaceable) {
            return Self::in_place(path, owner).map_err(failed);
        }
        let mut options = File::options();
        options.write(true).mode(0o644).custom_flags(libc::O_TMPFILE);
        let Ok(file) = options.open(directory) else {
            return Self::in_place(path, owner).map_err(failed);
        };
        let (mode, owner) = match &old {
            Some(old) => (Some(old.mode() & 0o7777), owner.map(|_| (old.uid(), old.gid()))),
            None => (None, owner),
        };
        if let Some((uid, gid)) = owner {
            fchown(&file, Some(uid), Some(gid)).map_err(failed)?;
        }
        if let Some(mode) = mode {
            file.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
        }
        Ok(Self { file, target: Some(target) })
    }

    fn in_place(path: &str, owner: Option<(u32, u32)>) -> io::Result<Self> {
        let mut options = File::options();
        options.write(true).mode(0o644).custom_flags(libc::O_NONBLOCK);
        let file = match options.clone().create_new(true).open(path) {
            Ok(file) => {
                if let Some((uid, gid)) = owner {
                    fchown(&file, Some(uid), Some(gid))?;
                }
                file
            }
            // `create` too, for a link whose target is missing.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                options.create(true).truncate(true).open(path)?
            }
            Err(error) => return Err(error),
        };
        Ok(Self { file, target: None })
    }

    /// Gives it its name.
    pub(super) fn put_in_place(&self) -> Result<()> {
        let Some(target) = &self.target else { return Ok(()) };
        self.link(target).map_err(|error| Refusal::io(&target.to_string_lossy(), &error))
    }

    fn link(&self, target: &Path) -> io::Result<()> {
        // The way that needs no capability.
        let here = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        match linkat(CWD, &here, CWD, target, AtFlags::SYMLINK_FOLLOW) {
            Err(rustix::io::Errno::EXIST) => {}
            linked => return Ok(linked?),
        }
        let name = format!(".bastide-{:x}-{:x}", std::process::id(), self.file.as_raw_fd());
        let between = target.with_file_name(name);
        // Left by a guest that was killed right here; nobody else has such a name.
        let _ = unlinkat(CWD, &between, AtFlags::empty());
        linkat(CWD, &here, CWD, &between, AtFlags::SYMLINK_FOLLOW)?;
        let renamed = renameat(CWD, &between, CWD, target);
        if renamed.is_err() {
            let _ = unlinkat(CWD, &between, AtFlags::empty());
        }
        Ok(renamed?)
    }
}

/// A missing directory is the caller's mistake, not a missing file.
fn no_parent(path: &str, error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::NotFound => {
            let (parent, _) = paths::split(path);
            Refusal::new(Code::InvalidArgument, format!("no such directory: {parent}"))
        }
        _ => Refusal::io(path, error),
    }
}
