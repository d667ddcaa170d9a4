//! A walk through a directory tree. It goes by descriptors and follows no link, so that a tree that
//! changes under it leads nowhere else. Names come in the order of their bytes.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};

/// Every level holds a descriptor.
const DEPTH_MAX: usize = 256;

/// One entry, whatever it is.
pub(super) struct Found<'a> {
    pub(super) directory: &'a OwnedFd,
    pub(super) name: &'a CStr,
    /// From where the walk began.
    pub(super) path: &'a Path,
    pub(super) stat: Stat,
}

impl Found<'_> {
    /// Of a link, unless it vanished.
    pub(super) fn target(&self) -> Option<OsString> {
        let target = readlinkat(self.directory, self.name, Vec::new()).ok()?;
        Some(OsString::from_vec(target.into_bytes()))
    }
}

/// A directory that is being walked: what is still to be done in it, last name first.
struct Level {
    directory: OwnedFd,
    path: PathBuf,
    names: Vec<CString>,
}

/// A directory is visited before what is in it. What vanished meanwhile is left out.
pub(super) fn walk(
    root: OwnedFd,
    mut visit: impl FnMut(Found<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let mut levels = vec![level(root, PathBuf::new())?];
    while let Some(level_now) = levels.last_mut() {
        let Some(name) = level_now.names.pop() else {
            levels.pop();
            continue;
        };
        let path = level_now.path.join(OsStr::from_bytes(name.to_bytes()));
        let directory = &level_now.directory;
        let Ok(stat) = statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        visit(Found { directory, name: &name, path: &path, stat })?;
        if !is_directory {
            continue;
        }
        let flags = OFlags::RDONLY
            | OFlags::CLOEXEC
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::DIRECTORY;
        let Ok(below) = openat(directory, &name, flags, Mode::empty()) else { continue };
        if levels.len() >= DEPTH_MAX {
            return Err(io::Error::other("the tree is too deep"));
        }
        levels.push(level(below, path)?);
    }
    Ok(())
}

fn level(directory: OwnedFd, path: PathBuf) -> io::Result<Level> {
    let mut names = Vec::new();
    for entry in Dir::read_from(&directory)? {
        let name = entry?.file_name().to_owned();
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            names.push(name);
        }
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(Level { directory, path, names })
}
