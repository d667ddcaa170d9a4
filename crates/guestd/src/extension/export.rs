//! A directory as a tar archive, in constant memory.
//!
//! The walk goes by descriptors and follows no link, so that a tree that changes under it leads
//! nowhere else. Sockets, pipes and devices are left out. Names come in the order of their bytes.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, header};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::{ARCHIVES, path_of};
use crate::http::{Body, Request, Response};
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;

/// Every level holds a descriptor.
const DEPTH_MAX: usize = 256;

/// Written at once.
const PIECE_BYTES: usize = 128 << 10;

/// Pieces that wait for the client.
const PIECES_MAX: usize = 4;

pub(super) fn export(state: &Arc<State>, request: &Request) -> Result<Response> {
    let path = path_of(request)?;
    let busy = || Refusal::new(Code::ResourceExhausted, "too many archives are on their way");
    let permit = ARCHIVES.try_acquire().map_err(|_| busy())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(&path, flags, Mode::empty())
        .map_err(|errno| Refusal::errno(&path, errno))?;
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    let tasks: &TaskTracker = &state.tasks;
    tasks.spawn_blocking(move || {
        let mut pieces = Pieces { sender, buffer: Vec::with_capacity(PIECE_BYTES) };
        let written = archive(root, &mut pieces);
        if let Err(error) = written.and_then(|()| pieces.flush()) {
            // Cuts the answer off, so that it does not look whole.
            let _ = pieces.sender.blocking_send(Err(error));
        }
        drop(permit);
    });
    let pieces = futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    let mut response = Response::new(Body::stream(pieces));
    let kind = HeaderValue::from_static("application/x-tar");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// A writer into the answer.
struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(PIECE_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..len]);
        if self.buffer.len() == PIECE_BYTES {
            self.flush()?;
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE_BYTES));
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.sender.blocking_send(Ok(piece.into())).map_err(gone)
    }
}

/// A directory that is being walked: what is still to be done in it, last name first.
struct Level {
    directory: OwnedFd,
    path: PathBuf,
    names: Vec<CString>,
}

fn archive(root: OwnedFd, out: &mut Pieces) -> io::Result<()> {
    let mut builder = tar::Builder::new(out);
    let mut levels = vec![level(root, PathBuf::new())?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.pop() else {
            levels.pop();
            continue;
        };
        let path = level.path.join(OsStr::from_bytes(name.to_bytes()));
        if let Some(below) = entry(&mut builder, &level.directory, &name, path)? {
            if levels.len() >= DEPTH_MAX {
                return Err(io::Error::other("the tree is too deep"));
            }
            levels.push(below);
        }
    }
    builder.finish()
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

/// Writes one entry; gives the level below when it is a directory. What vanished meanwhile is left
/// out.
fn entry(
    builder: &mut tar::Builder<&mut Pieces>,
    directory: impl AsFd,
    name: &CStr,
    path: PathBuf,
) -> io::Result<Option<Level>> {
    let Ok(stat) = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(None) };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let flags = flags | OFlags::DIRECTORY;
            let Ok(below) = openat(&directory, name, flags, Mode::empty()) else { return Ok(None) };
            let mut header = header(&stat, tar::EntryType::Directory);
            builder.append_data(&mut header, path.join(""), io::empty())?;
            level(below, path).map(Some)
        }
        FileType::RegularFile => {
            let Ok(file) = openat(&directory, name, flags, Mode::empty()) else { return Ok(None) };
            file_entry(builder, file.into(), &path)?;
            Ok(None)
        }
        FileType::Symlink => {
            let Ok(target) = readlinkat(&directory, name, Vec::new()) else { return Ok(None) };
            let mut header = header(&stat, tar::EntryType::Symlink);
            let target = Path::new(OsStr::from_bytes(target.to_bytes()));
            builder.append_link(&mut header, &path, target)?;
            Ok(None)
        }
        _ => Ok(None),
    }
}

fn file_entry(builder: &mut tar::Builder<&mut Pieces>, file: File, path: &Path) -> io::Result<()> {
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let mut header = header(&stat, tar::EntryType::Regular);
    header.set_size(size);
    // Exactly as long as announced, even when the file grows or shrinks meanwhile.
    builder.append_data(&mut header, path, file.chain(io::repeat(0)).take(size))
}

fn header(stat: &Stat, kind: tar::EntryType) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_size(0);
    header
}
