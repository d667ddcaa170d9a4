//! Files that go into a template: written in a definition, or from the directory of a Dockerfile,
//! which no name and no link in it leads out of. They are packed into a tar stream, whose digest is
//! what the build step is remembered by.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use sha2::{Digest, Sha256};

use super::copy::names_in;
use super::definition::TemplateFile;
use super::host::hex;

#[derive(Debug, Clone)]
pub(super) enum Source {
    /// By path.
    Inline(BTreeMap<String, TemplateFile>),
    /// Paths below `dir`. A single file is called `rename` there.
    Context { dir: PathBuf, from: Vec<String>, rename: Option<String> },
}

/// Writes and digests.
struct Digesting {
    file: File,
    hash: Sha256,
}

impl Write for Digesting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hash.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Source {
    /// Whether names stay in the context, by the letter; links are checked when they are opened.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self::Context { from, .. } = self else { return Ok(()) };
        for name in from {
            if Path::new(name).components().any(|part| part == Component::ParentDir) {
                return Err(format!("COPY cannot leave its context: {name}"));
            }
        }
        Ok(())
    }

    /// Whether everything that is named is there, and may be taken.
    pub(super) fn find(&self) -> anyhow::Result<()> {
        let Self::Context { dir, from, rename: _ } = self else { return Ok(()) };
        let root = root_of(dir)?;
        for name in from {
            open(&root, relative(name), ResolveFlags::BENEATH)
                .with_context(|| format!("copy {name}"))?;
        }
        Ok(())
    }

    /// Packs everything into `file`; answers the hex of its digest.
    pub(super) fn pack(&self, file: File) -> anyhow::Result<String> {
        let mut tar = tar::Builder::new(Digesting { file, hash: Sha256::new() });
        match self {
            Self::Inline(files) => {
                for (path, one) in files {
                    let mode = if one.executable { 0o755 } else { 0o644 };
                    let name = path.trim_start_matches('/');
                    let content = one.content.as_bytes();
                    append(&mut tar, name.as_ref(), mode, content.len() as u64, content)?;
                }
            }
            Self::Context { dir, from, rename } => {
                let root = root_of(dir)?;
                for name in from {
                    pack_one(&mut tar, &root, name, rename.as_deref())
                        .with_context(|| format!("copy {name}"))?;
                }
            }
        }
        let digesting = tar.into_inner().context("pack files")?;
        Ok(hex(&digesting.hash.finalize()))
    }
}

fn root_of(dir: &Path) -> anyhow::Result<OwnedFd> {
    rustix::fs::openat(CWD, dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("open the build context {}", dir.display()))
}

/// What COPY names begins at the context, also with a slash.
fn relative(name: &str) -> &Path {
    let path = name.trim_start_matches('/');
    Path::new(if path.is_empty() { "." } else { path })
}

fn pack_one(
    tar: &mut tar::Builder<Digesting>,
    root: &OwnedFd,
    name: &str,
    rename: Option<&str>,
) -> anyhow::Result<()> {
    let path = relative(name);
    // A link that is named may lead elsewhere in the context, not out of it.
    let opened = open(root, path, ResolveFlags::BENEATH)?;
    let stat = rustix::fs::fstat(&opened)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let own = path.file_name().context("no file name")?;
            let called = rename.map_or(own, OsStr::new);
            file(tar, Path::new(called), opened)
        }
        FileType::Directory => {
            let below = rename.map(PathBuf::from).unwrap_or_default();
            if rename.is_some() {
                directory(tar, &below, stat.st_mode)?;
            }
            tree(tar, &opened, &below)
        }
        _ => bail!("neither a file nor a directory"),
    }
}

/// The contents of a directory, below `to` in the archive.
fn tree(tar: &mut tar::Builder<Digesting>, root: &OwnedFd, to: &Path) -> anyhow::Result<()> {
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let here = if path.as_os_str().is_empty() { Path::new(".") } else { path.as_path() };
        let dir = open(root, here, inside)?;
        for name in names_in(&dir)? {
            let name = OsStr::from_bytes(&name);
            let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let path = path.join(name);
            let place = to.join(&path);
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    directory(tar, &place, stat.st_mode)?;
                    waiting.push(path);
                }
                FileType::RegularFile => file(tar, &place, open(root, &path, inside)?)?,
                FileType::Symlink => {
                    let target = rustix::fs::readlinkat(&dir, name, Vec::new())?;
                    let mut header = header(0o777, 0);
                    header.set_entry_type(tar::EntryType::Symlink);
                    tar.append_link(&mut header, &place, OsStr::from_bytes(target.as_bytes()))?;
                }
                // Sockets and the like are nobody's source code.
                _ => {}
            }
        }
    }
    Ok(())
}

fn directory(tar: &mut tar::Builder<Digesting>, place: &Path, mode: u32) -> anyhow::Result<()> {
    let mut header = header(mode & 0o777, 0);
    header.set_entry_type(tar::EntryType::Directory);
    Ok(tar.append_data(&mut header, place, io::empty())?)
}

fn file(tar: &mut tar::Builder<Digesting>, place: &Path, opened: OwnedFd) -> anyhow::Result<()> {
    let file = File::from(opened);
    let meta = file.metadata()?;
    let mode = std::os::unix::fs::MetadataExt::mode(&meta) & 0o777;
    // Its length was said already: a file that grows meanwhile is cut, one that shrinks is filled.
    let content = io::Read::take(io::Read::chain(file, io::repeat(0)), meta.len());
    append(tar, place, mode, meta.len(), content)
}

fn append(
    tar: &mut tar::Builder<Digesting>,
    place: &Path,
    mode: u32,
    len: u64,
    content: impl io::Read,
) -> anyhow::Result<()> {
    let mut header = header(mode, len);
    Ok(tar.append_data(&mut header, place, content)?)
}

/// Without a time and an owner: those of this machine are nobody's business.
fn header(mode: u32, len: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(len);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn open(root: &OwnedFd, path: &Path, inside: ResolveFlags) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let inside = inside | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), inside).map_err(|errno| match errno {
        rustix::io::Errno::XDEV => anyhow::anyhow!("COPY cannot leave its context"),
        rustix::io::Errno::NOENT => anyhow::anyhow!("no such file in the build context"),
        other => other.into(),
    })
}
