//! Removing a directory that somebody else filled: without recursion, without a path longer than two
//! names, and without following anything. Deep directories are moved to the top one by one.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;

/// `Ok` when it is gone already.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let top = match open(CWD, path) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    let mut moved = 0u64;
    loop {
        let names = names(&top)?;
        if names.is_empty() {
            break;
        }
        for name in names {
            if !unlink(&top, &name)? {
                empty(&top, &name, &mut moved)?;
            }
        }
    }
    Ok(rustix::fs::rmdir(path)?)
}

/// Moves what is in a directory of `top` up beside it, then removes it.
fn empty(top: &OwnedFd, name: &CString, moved: &mut u64) -> io::Result<()> {
    let dir = open(top, name)?;
    for inner in names(&dir)? {
        if unlink(&dir, &inner)? {
            continue;
        }
        loop {
            *moved += 1;
            let target = format!(".removed-{moved}");
            match rustix::fs::renameat_with(
                &dir,
                &inner,
                top,
                &target,
                rustix::fs::RenameFlags::NOREPLACE,
            ) {
                Err(Errno::EXIST) => {}
                done => break done?,
            }
        }
    }
    Ok(rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR)?)
}

/// Removes a file or an empty directory; not so if it is a directory with something in it.
fn unlink(dir: &OwnedFd, name: &CString) -> io::Result<bool> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(true),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn open(dir: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

fn names(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_tree_deeper_than_any_path_goes_and_what_it_points_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("kept");
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join("file"), "x").unwrap();
        let top = dir.path().join("top");
        std::fs::create_dir(&top).unwrap();
        symlink(&kept, top.join("link")).unwrap();
        std::fs::create_dir(top.join(".removed-1")).unwrap();
        std::fs::write(top.join(".removed-1/file"), "x").unwrap();
        let mut at = open(CWD, &top).unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&at, "deep", Mode::RWXU).unwrap();
            rustix::fs::symlinkat(&kept, &at, "also").unwrap();
            at = open(&at, "deep").unwrap();
        }
        remove(&top).unwrap();
        assert!(!top.exists() && kept.join("file").exists());
        remove(&top).unwrap();
    }
}
