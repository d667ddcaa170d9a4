//! One layer on the disk: a directory that is only ever written by descriptor, so that no name and
//! no link in it leads out of it. Whiteouts are as the kernel's overlay wants them with `userxattr`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};

/// Owners, permissions, time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: i64,
}

/// A directory that a layer is written into.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    /// Directories whose times are set last, because filling them changes them.
    times: BTreeMap<PathBuf, i64>,
}

/// The kernel's limit for one path.
const PATH_BYTES_MAX: usize = 4095;
/// Ids beyond a sandbox's range would belong to nobody.
const ID_MAX: u32 = 65_534;
const OPAQUE: &str = "user.overlay.opaque";

impl Meta {
    pub const fn directory() -> Self {
        Self { mode: 0o755, uid: 0, gid: 0, mtime: 0 }
    }
}

impl Tree {
    pub fn open(dir: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, dir, flags, Mode::empty())?;
        Ok(Self { root, times: BTreeMap::new() })
    }

    /// A directory, new or there already; it gets these attributes.
    pub fn directory(&mut self, path: &Path, meta: Meta) -> io::Result<()> {
        let Some((parent, name)) = self.place(path)? else {
            return self.set(&self.root, meta);
        };
        if kind(&parent, &name)?.is_some_and(|kind| kind != FileType::Directory) {
            rustix::fs::unlinkat(&parent, &name, AtFlags::empty())?;
        }
        ignore_exists(rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(0o700)))?;
        let dir = open_in(&parent, &name, OFlags::DIRECTORY)?;
        self.set(&dir, meta)?;
        self.times.insert(clean(path)?, meta.mtime);
        Ok(())
    }

    /// A new file, empty, to be written; [`Tree::seal`] gives it its attributes.
    pub fn file(&mut self, path: &Path) -> io::Result<File> {
        let (parent, name) = self.free_place(path)?;
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&parent, &name, flags, Mode::from_raw_mode(0o600))?.into())
    }

    pub fn seal(&self, file: &File, meta: Meta) -> io::Result<()> {
        self.set(file, meta)?;
        rustix::fs::futimens(file, &times(meta.mtime))?;
        Ok(())
    }

    pub fn symlink(&mut self, path: &Path, target: &OsStr, meta: Meta) -> io::Result<()> {
        let (parent, name) = self.free_place(path)?;
        rustix::fs::symlinkat(target, &parent, &name)?;
        let (uid, gid) = owners(meta);
        rustix::fs::chownat(&parent, &name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(&parent, &name, &times(meta.mtime), flags)?;
        Ok(())
    }

    /// A second name of a file that is in this tree.
    pub fn hard_link(&mut self, path: &Path, to: &Path) -> io::Result<()> {
        let refused = || io::Error::new(io::ErrorKind::InvalidInput, "a hard link to a directory");
        let (from, old) = self.place(to)?.ok_or_else(refused)?;
        match kind(&from, &old)? {
            None => return Err(io::ErrorKind::NotFound.into()),
            Some(FileType::Directory) => return Err(refused()),
            Some(_) => {}
        }
        let (parent, name) = self.free_place(path)?;
        rustix::fs::linkat(&from, &old, &parent, &name, AtFlags::empty())?;
        Ok(())
    }

    pub fn fifo(&mut self, path: &Path, meta: Meta) -> io::Result<()> {
        let (parent, name) = self.free_place(path)?;
        rustix::fs::mknodat(&parent, &name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        let (uid, gid) = owners(meta);
        rustix::fs::chownat(&parent, &name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        rustix::fs::chmodat(&parent, &name, mode(meta), AtFlags::empty())?;
        Ok(())
    }

    /// Says that what lower layers have here is gone.
    pub fn whiteout(&mut self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.free_place(path)?;
        // A character device of number 0 is no device: it may be made without privilege.
        rustix::fs::mknodat(&parent, &name, FileType::CharacterDevice, Mode::empty(), 0)?;
        Ok(())
    }

    /// Says that of this directory lower layers show nothing.
    pub fn opaque(&mut self, path: &Path) -> io::Result<()> {
        self.attribute(path, OPAQUE, b"y")
    }

    /// Sets an extended attribute of a directory or file.
    pub fn attribute(&mut self, path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
        let file = match self.place(path)? {
            None => rustix::io::dup(&self.root)?,
            Some((parent, last)) => {
                if kind(&parent, &last)?.is_none() {
                    self.directory(path, Meta::directory())?;
                }
                open_in(&parent, &last, OFlags::empty())?
            }
        };
        Ok(rustix::fs::fsetxattr(&file, name, value, XattrFlags::empty())?)
    }

    /// Gives directories their times, now that nothing more is put into them.
    pub fn finish(self) -> io::Result<()> {
        for (path, mtime) in self.times.iter().rev() {
            let Some((parent, name)) = self.place_in_fact(path)? else { continue };
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            if kind(&parent, &name)? == Some(FileType::Directory) {
                rustix::fs::utimensat(&parent, &name, &times(*mtime), flags)?;
            }
        }
        Ok(())
    }

    /// Sets owner, then mode: a change of owner takes set-user-id away.
    fn set(&self, file: impl std::os::fd::AsFd, meta: Meta) -> io::Result<()> {
        let (uid, gid) = owners(meta);
        rustix::fs::fchown(&file, Some(uid), Some(gid))?;
        Ok(rustix::fs::fchmod(&file, mode(meta))?)
    }

    /// The parent directory, made if need be, and the name in it, at which nothing is any more.
    fn free_place(&mut self, path: &Path) -> io::Result<(OwnedFd, OsString)> {
        let refused = || io::Error::new(io::ErrorKind::InvalidInput, "it would replace the root");
        let (parent, name) = self.place(path)?.ok_or_else(refused)?;
        match kind(&parent, &name)? {
            None => {}
            Some(FileType::Directory) => {
                rustix::fs::unlinkat(&parent, &name, AtFlags::REMOVEDIR).map_err(|_| {
                    io::Error::new(io::ErrorKind::InvalidInput, "it would replace a full directory")
                })?;
                self.times.remove(&clean(path)?);
            }
            Some(_) => rustix::fs::unlinkat(&parent, &name, AtFlags::empty())?,
        }
        Ok((parent, name))
    }

    /// `None` for the root itself.
    fn place(&mut self, path: &Path) -> io::Result<Option<(OwnedFd, OsString)>> {
        match self.place_in_fact(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let clean = clean(path)?;
                let mut made = PathBuf::new();
                for part in clean.parent().unwrap_or(Path::new("")).components() {
                    made.push(part);
                    let Some((parent, name)) = self.place_in_fact(&made)? else { continue };
                    let fresh = Mode::from_raw_mode(0o755);
                    ignore_exists(rustix::fs::mkdirat(&parent, &name, fresh))?;
                }
                self.place_in_fact(&clean)
            }
            other => other,
        }
    }

    fn place_in_fact(&self, path: &Path) -> io::Result<Option<(OwnedFd, OsString)>> {
        let clean = clean(path)?;
        let Some(name) = clean.file_name() else { return Ok(None) };
        let parent = clean.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A link in the tree is followed as a process inside would see it: the tree is its root.
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let parent = parent.unwrap_or(Path::new("."));
        let parent = rustix::fs::openat2(&self.root, parent, flags, Mode::empty(), inside)?;
        Ok(Some((parent, name.to_owned())))
    }
}

/// Relative, without `.`; `..` is refused.
pub(crate) fn clean(path: &Path) -> io::Result<PathBuf> {
    let refused = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    if path.as_os_str().len() > PATH_BYTES_MAX {
        return Err(refused("its path is too long"));
    }
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(refused("its path contains a zero byte"));
    }
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(refused("its path leaves the layer"));
            }
        }
    }
    Ok(clean)
}

fn kind(parent: &OwnedFd, name: &OsStr) -> io::Result<Option<FileType>> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn open_in(parent: &OwnedFd, name: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

fn ignore_exists(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn owners(meta: Meta) -> (Uid, Gid) {
    (Uid::from_raw(meta.uid.min(ID_MAX)), Gid::from_raw(meta.gid.min(ID_MAX)))
}

fn mode(meta: Meta) -> Mode {
    Mode::from_raw_mode(meta.mode & 0o7777)
}

fn times(mtime: i64) -> Timestamps {
    let time = Timespec { tv_sec: mtime, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}
