//! A directory as a tar archive, in constant memory.
//!
//! Sockets, pipes and devices are left out.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, header};
use rustix::fs::{FileType, Mode, OFlags, Stat, openat};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::walk::{Found, walk};
use super::{ARCHIVES, path_of};
use crate::http::{Body, Request, Response};
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;

/// Written at once.
const PIECE_BYTES: usize = 128 << 10;

/// Pieces that wait for the client.
const PIECES_MAX: usize = 4;

pub(super) fn export(state: &Arc<State>, request: &Request) -> Result<Response> {
    streamed(state, request, "application/x-tar", archive)
}

/// What `write` makes of the tree at the request's path, as it is made.
pub(super) fn streamed(
    state: &Arc<State>,
    request: &Request,
    kind: &'static str,
    write: fn(OwnedFd, &mut Pieces) -> io::Result<()>,
) -> Result<Response> {
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
        let written = write(root, &mut pieces);
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
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

/// A writer into the answer.
pub(super) struct Pieces {
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

fn archive(root: OwnedFd, out: &mut Pieces) -> io::Result<()> {
    let mut builder = tar::Builder::new(out);
    walk(root, |found| entry(&mut builder, &found))?;
    builder.finish()
}

/// Writes one entry. What vanished meanwhile is left out.
fn entry(builder: &mut tar::Builder<&mut Pieces>, found: &Found<'_>) -> io::Result<()> {
    let Found { directory, name, path, stat } = found;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let mut header = header(stat, tar::EntryType::Directory);
            builder.append_data(&mut header, path.join(""), io::empty())
        }
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let Ok(file) = openat(directory, *name, flags, Mode::empty()) else { return Ok(()) };
            file_entry(builder, file.into(), path)
        }
        FileType::Symlink => {
            let Some(target) = found.target() else { return Ok(()) };
            let mut header = header(stat, tar::EntryType::Symlink);
            builder.append_link(&mut header, path, Path::new(&target))
        }
        _ => Ok(()),
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
