//! Where an archive is unpacked. The only way to a name is through here.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Uid, linkat, mkdirat, openat, renameat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::refusal::{Refusal, Result};

const FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW);

/// Longer copies gain nothing.
const PIECE_BYTES: usize = 256 << 10;

pub(super) struct Place {
    root: OwnedFd,
    owner: Option<(u32, u32)>,
}

/// A directory that a name is in, and the name.
struct Spot<'a> {
    directory: OwnedFd,
    name: &'a OsStr,
}

impl Place {
    /// What is made belongs to `owner`, or to us.
    pub(super) fn new(root: OwnedFd, owner: Option<(u32, u32)>) -> Self {
        Self { root, owner }
    }

    /// A file of `size` bytes, or what was there before.
    pub(super) fn file(
        &self,
        path: &[u8],
        (mode, size): (u32, u64),
        contents: &mut impl Read,
    ) -> Result<()> {
        let Some(spot) = self.spot(path)? else {
            return Err(Refusal::invalid("a file cannot be the directory itself"));
        };
        let (mut file, is_named) = match spot.create() {
            Err(Errno::EXIST) => spot.replacement()?,
            created => (created.map_err(|errno| Refusal::errno("create", errno))?, true),
        };
        if copy(contents, &mut file)? != size {
            return Err(Refusal::invalid("the archive ends within it"));
        }
        self.own(&file)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))
            .map_err(|errno| Refusal::errno("chmod", errno))?;
        if !is_named {
            spot.replace_by(&file).map_err(|errno| Refusal::errno("replace", errno))?;
        }
        Ok(())
    }

    pub(super) fn directory(&self, path: &[u8], mode: u32) -> Result<()> {
        let Some(spot) = self.spot(path)? else { return Ok(()) };
        let directory = self.make_directory(&spot.directory, spot.name)?;
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode | 0o700))
            .map_err(|errno| Refusal::errno("chmod", errno))
    }

    pub(super) fn symlink(&self, path: &[u8], target: &[u8]) -> Result<()> {
        let Some(spot) = self.spot(path)? else {
            return Err(Refusal::invalid("a link cannot be the directory itself"));
        };
        spot.clear()?;
        symlinkat(OsStr::from_bytes(target), &spot.directory, spot.name)
            .map_err(|errno| Refusal::errno("link", errno))?;
        let Some((uid, gid)) = self.owner else { return Ok(()) };
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(&spot.directory, spot.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| Refusal::errno("chown", errno))
    }

    /// Both names are beneath the directory; a link to a link links the link.
    pub(super) fn hard_link(&self, path: &[u8], target: &[u8]) -> Result<()> {
        let (Some(spot), Some(old)) = (self.spot(path)?, self.spot(target)?) else {
            return Err(Refusal::invalid("a link cannot be the directory itself"));
        };
        spot.clear()?;
        linkat(&old.directory, old.name, &spot.directory, spot.name, AtFlags::empty())
            .map_err(|errno| Refusal::errno("link", errno))
    }

    /// Walks to the directory of a name, making what is missing. `None` for the place itself.
    fn spot<'a>(&self, path: &'a [u8]) -> Result<Option<Spot<'a>>> {
        let mut parts = Vec::new();
        for part in path.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => return Err(Refusal::invalid("a name has .. in it")),
                part => parts.push(OsStr::from_bytes(part)),
            }
        }
        let Some(name) = parts.pop() else { return Ok(None) };
        let mut directory = self.root.try_clone().map_err(|error| Refusal::io("open", &error))?;
        for part in parts {
            directory = self.make_directory(&directory, part)?;
        }
        Ok(Some(Spot { directory, name }))
    }

    /// Opens a directory, which it makes when it is missing. A link is not a directory.
    fn make_directory(&self, parent: impl AsFd, name: &OsStr) -> Result<OwnedFd> {
        let flags = FLAGS | OFlags::RDONLY | OFlags::DIRECTORY;
        let open = || openat(&parent, name, flags, Mode::empty());
        match open() {
            Ok(directory) => return Ok(directory),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(Refusal::errno("not a directory", errno)),
        }
        match mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Refusal::errno("make directory", errno)),
        }
        let directory = open().map_err(|errno| Refusal::errno("not a directory", errno))?;
        self.own(&directory)?;
        Ok(directory)
    }

    fn own(&self, fd: impl AsFd) -> Result<()> {
        let Some((uid, gid)) = self.owner else { return Ok(()) };
        rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            .map_err(|errno| Refusal::errno("chown", errno))
    }
}

impl Spot<'_> {
    fn create(&self) -> std::result::Result<File, Errno> {
        let flags = FLAGS | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        openat(&self.directory, self.name, flags, Mode::from_raw_mode(0o600)).map(File::from)
    }

    /// For what is there already: a file without a name, so that an archive that breaks off leaves what
    /// was there. Whether it has its name: on a file system without such files it takes it now.
    fn replacement(&self) -> Result<(File, bool)> {
        let flags = FLAGS | OFlags::WRONLY | OFlags::TMPFILE;
        if let Ok(file) = openat(&self.directory, ".", flags, Mode::from_raw_mode(0o600)) {
            return Ok((File::from(file), false));
        }
        self.clear()?;
        let created = self.create().map_err(|errno| Refusal::errno("create", errno))?;
        Ok((created, true))
    }

    fn replace_by(&self, file: &File) -> std::result::Result<(), Errno> {
        // The way that needs no capability.
        let here = format!("/proc/self/fd/{}", file.as_raw_fd());
        let between = format!(".bastide-{:x}-{:x}", std::process::id(), file.as_raw_fd());
        // Left by a guest that was killed right here; nobody else has such a name.
        let _ = unlinkat(&self.directory, &between, AtFlags::empty());
        linkat(CWD, &here, &self.directory, &between, AtFlags::SYMLINK_FOLLOW)?;
        let renamed = renameat(&self.directory, &between, &self.directory, self.name);
        if renamed.is_err() {
            let _ = unlinkat(&self.directory, &between, AtFlags::empty());
        }
        renamed
    }

    /// Takes away what is there, so that what is made is new: no old link is written through.
    fn clear(&self) -> Result<()> {
        match unlinkat(&self.directory, self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Refusal::errno("replace", errno)),
        }
    }
}

fn copy(from: &mut impl Read, to: &mut File) -> Result<u64> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut total = 0;
    loop {
        let len = match from.read(&mut piece) {
            Ok(0) => return Ok(total),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Refusal::invalid(format!("archive: {error}"))),
        };
        io::Write::write_all(to, &piece[..len]).map_err(|error| Refusal::io("write", &error))?;
        total += len as u64;
    }
}
