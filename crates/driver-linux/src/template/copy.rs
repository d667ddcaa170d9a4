//! Copies what a build step changed, the upper of its overlay, into a layer. The tree is hostile:
//! it is read by descriptors below its root and through no link, and nothing in it runs any more.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use oci::{Meta, Tree};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use sha2::{Digest, Sha256};

use super::host::hex;

/// What was copied.
pub(super) struct Copied {
    /// Hex of the digest of names, contents, owners and permissions; not of times.
    pub(super) id: String,
    pub(super) bytes: u64,
}

const OPAQUE: &str = "user.overlay.opaque";
const OVERLAYS_OWN: &str = "user.overlay.";
const CAPABILITY: &str = "security.capability";
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

struct Copy {
    from: OwnedFd,
    to: Tree,
    hash: Sha256,
    bytes: u64,
    /// Files with several names, by device and inode, and the first of them.
    linked: HashMap<(u64, u64), PathBuf>,
    buffer: Vec<u8>,
}

/// Copies `from` into the empty directory `to`.
pub(super) fn copy(from: &Path, to: &Path) -> anyhow::Result<Copied> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, from, flags, Mode::empty()).context("open the changes")?;
    let mut copy = Copy {
        from: root,
        to: Tree::open(to).context("open the layer")?,
        hash: Sha256::new(),
        bytes: 0,
        linked: HashMap::new(),
        buffer: vec![0; 256 << 10],
    };
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        copy.directory(&path, &mut waiting).with_context(|| format!("copy /{}", path.display()))?;
    }
    copy.to.finish().context("set times")?;
    Ok(Copied { id: hex(&copy.hash.finalize()), bytes: copy.bytes })
}

/// What is in a directory, in an order that does not depend on the file system.
pub(super) fn names_in(dir: &OwnedFd) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

impl Copy {
    fn open(&self, path: &Path, flags: OFlags) -> anyhow::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        Ok(rustix::fs::openat2(&self.from, path, flags, Mode::empty(), inside)?)
    }

    fn directory(&mut self, path: &Path, waiting: &mut Vec<PathBuf>) -> anyhow::Result<()> {
        let dir = self.open(path, OFlags::DIRECTORY)?;
        let stat = rustix::fs::fstat(&dir)?;
        self.to.directory(path, meta(&stat))?;
        self.note(b'd', path, &stat);
        self.attributes(&dir, path)?;
        for name in names_in(&dir)? {
            let name = OsStr::from_bytes(&name);
            let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let path = path.join(name);
            if path.as_os_str().len() > 4000 {
                bail!("a path is too long: /{}", path.display());
            }
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => waiting.push(path),
                FileType::RegularFile => self.file(&path, &stat)?,
                FileType::Symlink => {
                    let target = rustix::fs::readlinkat(&dir, name, Vec::new())?;
                    self.to.symlink(&path, OsStr::from_bytes(target.as_bytes()), meta(&stat))?;
                    self.note(b'l', &path, &stat);
                    self.piece(target.as_bytes());
                }
                FileType::CharacterDevice if stat.st_rdev == 0 => {
                    self.to.whiteout(&path)?;
                    self.note(b'w', &path, &stat);
                }
                FileType::Fifo => {
                    self.to.fifo(&path, meta(&stat))?;
                    self.note(b'p', &path, &stat);
                }
                // Devices and sockets have no place in a layer.
                FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Socket
                | FileType::Unknown => {}
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, stat: &Stat) -> anyhow::Result<()> {
        let inode = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1
            && let Some(first) = self.linked.get(&inode).cloned()
        {
            self.to.hard_link(path, &first)?;
            self.note(b'h', path, stat);
            self.piece(first.as_os_str().as_bytes());
            return Ok(());
        }
        let from = self.open(path, OFlags::RDONLY)?;
        let mut reader = File::from(rustix::io::fcntl_dupfd_cloexec(&from, 3)?);
        let mut to = self.to.file(path)?;
        self.note(b'f', path, stat);
        let mut content = Sha256::new();
        loop {
            let count = reader.read(&mut self.buffer)?;
            if count == 0 {
                break;
            }
            content.update(&self.buffer[..count]);
            to.write_all(&self.buffer[..count])?;
            self.bytes += count as u64;
        }
        self.piece(&content.finalize());
        self.to.seal(&to, meta(stat))?;
        self.attributes(&from, path)?;
        if stat.st_nlink > 1 {
            self.linked.insert(inode, path.to_owned());
        }
        Ok(())
    }

    /// Extended attributes, without the overlay's notes to itself.
    fn attributes(&mut self, from: impl AsFd, path: &Path) -> anyhow::Result<()> {
        let mut names = vec![0u8; ATTRIBUTE_BYTES_MAX];
        let count = match rustix::fs::flistxattr(&from, &mut names) {
            Ok(count) => count,
            Err(rustix::io::Errno::NOTSUP) => return Ok(()),
            Err(errno) => return Err(errno).context("list attributes"),
        };
        let mut all: Vec<&str> = names[..count]
            .split(|byte| *byte == 0)
            .filter_map(|name| std::str::from_utf8(name).ok())
            .filter(|name| is_kept(name))
            .collect();
        all.sort_unstable();
        for name in all {
            let mut value = vec![0u8; ATTRIBUTE_BYTES_MAX];
            let count = rustix::fs::fgetxattr(&from, name, &mut value).context("read attribute")?;
            self.to.attribute(path, name, &value[..count])?;
            self.piece(name.as_bytes());
            self.piece(&value[..count]);
        }
        Ok(())
    }

    fn note(&mut self, kind: u8, path: &Path, stat: &Stat) {
        self.hash.update([kind]);
        self.piece(path.as_os_str().as_bytes());
        for number in [stat.st_mode, stat.st_uid, stat.st_gid] {
            self.hash.update(number.to_le_bytes());
        }
    }

    fn piece(&mut self, bytes: &[u8]) {
        self.hash.update((bytes.len() as u64).to_le_bytes());
        self.hash.update(bytes);
    }
}

fn is_kept(name: &str) -> bool {
    name == OPAQUE
        || name == CAPABILITY
        || (name.starts_with("user.") && !name.starts_with(OVERLAYS_OWN))
}

fn meta(stat: &Stat) -> Meta {
    Meta { mode: stat.st_mode & 0o7777, uid: stat.st_uid, gid: stat.st_gid, mtime: stat.st_mtime }
}
