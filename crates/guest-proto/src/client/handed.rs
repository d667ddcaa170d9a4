//! Large files on this machine: the guest opens the file, and hands the open file itself over the
//! socket. Its bytes then go between the disk and the caller, and not through the guest too.
//!
//! The guest is not to be trusted: what it hands over must be a plain file on a file system for
//! plain files. Reading or writing anything else (a pipe, `/proc`) could block us, or do something
//! with our rights that it may not do with its own.
//!
//! The talk on the upgraded connection: we send [`ASK`]; the guest sends `HERE` with the file. When
//! we wrote to it we send [`DONE`], and the guest answers `{"code":…,"message":…}` with the status
//! that a plain answer would have had, 204 for success. A connection that ends before is a file that
//! was never written.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{ERROR_BYTES_MAX, HEAD_MAX, bounded, next};
use crate::GuestError;
use crate::handover::{ASK, DONE};
use crate::pieces::FileWriter;

/// A body that nobody wants any more is read for this long, so that its sender sees the answer.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// The file systems whose files are what they seem: `statfs` magics of btrfs, ext4, overlayfs, tmpfs
/// and xfs.
const PLAIN: [i64; 5] = [0x9123_683e, 0xef53, 0x794c_7630, 0x0102_1994, 0x5846_5342];

pub(super) struct Handed {
    pub(super) file: File,
    pub(super) size: u64,
    socket: UnixStream,
}

impl Handed {
    /// `None` when it is nothing that we want to touch: the bytes can still come through the guest.
    pub(super) async fn receive(mut socket: UnixStream) -> Result<Option<Self>, GuestError> {
        let asked = async {
            socket.write_all(&[ASK]).await?;
            socket.async_io(Interest::READABLE, || receive_file(&socket)).await
        };
        let asked = bounded(HEAD_MAX, async { asked.await.map_err(GuestError::Unreachable) });
        let Some(file) = asked.await? else {
            return Err(GuestError::protocol("no file was handed over"));
        };
        let meta = file.metadata().map_err(GuestError::Unreachable)?;
        let system = rustix::fs::fstatfs(&file).map_err(io::Error::from);
        let system = system.map_err(GuestError::Unreachable)?.f_type;
        if !meta.is_file() || !PLAIN.contains(&system) {
            return Ok(None);
        }
        Ok(Some(Self { file, size: meta.len(), socket }))
    }

    /// Writes `start`, then `rest`, and has the guest put the file in its place.
    pub(super) async fn fill<S>(self, start: Vec<Bytes>, mut rest: S) -> Result<(), GuestError>
    where
        S: Stream<Item = io::Result<Bytes>> + Unpin,
    {
        let Self { file, mut socket, .. } = self;
        let mut writer = FileWriter::new(file);
        let written = async {
            for piece in start {
                writer.write(piece).await.map_err(|error| unwritten(&error))?;
            }
            while let Some(piece) = next(&mut rest).await {
                let piece = piece.map_err(GuestError::Body)?;
                writer.write(piece).await.map_err(|error| unwritten(&error))?;
            }
            writer.finish().await.map_err(|error| unwritten(&error))
        };
        if let Err(error) = written.await {
            drop(socket);
            drain(&mut rest).await;
            return Err(error);
        }
        bounded(HEAD_MAX, put_in_place(&mut socket)).await
    }
}

fn receive_file(socket: &UnixStream) -> io::Result<Option<File>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let mut into = [io::IoSliceMut::new(&mut byte)];
    let got = recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if got.bytes == 0 || got.flags.contains(ReturnFlags::CTRUNC) {
        return Ok(None);
    }
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let mut files = files.flatten();
    let file = files.next();
    Ok(if files.next().is_none() { file.map(File::from) } else { None })
}

async fn put_in_place(socket: &mut UnixStream) -> Result<(), GuestError> {
    socket.write_all(&[DONE]).await.map_err(GuestError::Unreachable)?;
    let mut answer = Vec::new();
    let limit = ERROR_BYTES_MAX as u64;
    socket.take(limit).read_to_end(&mut answer).await.map_err(GuestError::Unreachable)?;
    let answer: serde_json::Value = serde_json::from_slice(&answer)
        .map_err(|error| GuestError::protocol(format!("the end of a handed file: {error}")))?;
    match answer["code"].as_u64().and_then(|code| u16::try_from(code).ok()) {
        Some(204) => Ok(()),
        Some(code) => {
            let message = answer["message"].as_str().unwrap_or_default().to_owned();
            Err(GuestError::from_status(code, message))
        }
        None => Err(GuestError::protocol("the end of a handed file has no code")),
    }
}

/// What the guest would have said about the same failure.
fn unwritten(error: &io::Error) -> GuestError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => GuestError::DiskFull,
        io::ErrorKind::FileTooLarge => GuestError::TooLarge,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            GuestError::Denied(error.to_string())
        }
        _ => GuestError::Failed(format!("write: {error}")),
    }
}

pub(super) async fn drain<S>(rest: &mut S)
where
    S: Stream<Item = io::Result<Bytes>> + Unpin,
{
    let rest = async { while let Some(Ok(_)) = next(rest).await {} };
    let _ = timeout(DRAIN_MAX, rest).await;
}
