//! Directories in and out, as tar streams: packed and unpacked here while they flow.
//!
//! What comes out of a sandbox is hostile: nothing is written outside of the directory that is made
//! for it, and only files, directories and symbolic links are.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, header};
use http_body_util::BodyExt;
use model::SandboxRef;
use tokio::sync::mpsc;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::copy::CHUNK_BYTES;
use super::path_of;
use crate::client::{Client, empty, streamed};
use crate::failure::Failure;
use crate::out;

/// Pieces of an archive that wait to be sent.
const PIECES_MAX: usize = 4;

pub(super) async fn send(
    client: &Client,
    id: &SandboxRef,
    (from, to): (PathBuf, String),
) -> Result<(), Failure> {
    let below = below_workspace(&to)?;
    let cannot =
        |error: io::Error| Failure::new(format!("cannot read {}: {error}", from.display()));
    if !fs::metadata(&from).map_err(cannot)?.is_dir() {
        return Err(Failure::new(format!("not a directory: {}", from.display()))
            .hint("copy a file without -r"));
    }
    let bar = out::bytes_bar(Some(size_of(&from).map_err(cannot)?), "uploading");
    let (pieces, waiting) = mpsc::channel(PIECES_MAX);
    let source = from.clone();
    let packing = tokio::task::spawn_blocking(move || {
        let mut writer = Pieces { sender: pieces, buffer: Vec::with_capacity(CHUNK_BYTES) };
        let packed = pack(&source, &below, &mut writer).and_then(|()| writer.flush());
        if let Err(error) = &packed {
            // Breaks the upload off, so that a part is not taken for the whole.
            let broken = io::Error::other(error.to_string());
            let _ = writer.sender.blocking_send(Err(broken));
        }
        packed
    });
    let body = stream::unfold(waiting, |mut waiting| async {
        waiting.recv().await.map(|piece| (piece, waiting))
    });
    let request = client
        .request(Method::POST, &path_of(id, "files/import", &[]))
        .header(header::CONTENT_TYPE, "application/x-tar")
        .body(streamed(body, bar.clone()))
        .map_err(|error| Failure::new(error.to_string()))?;
    let answer = client.upload(request).await;
    bar.finish_and_clear();
    let packed = packing.await.map_err(|error| Failure::new(error.to_string()))?;
    match (packed, answer) {
        (_, Ok(_)) => Ok(()),
        // Refused in the middle: the server says why.
        (Err(error), Err(_)) if error.kind() != io::ErrorKind::BrokenPipe => Err(cannot(error)),
        (_, Err(failure)) => Err(failure),
    }
}

/// `to` must not exist yet; it appears once all of it has come.
pub(super) async fn fetch(
    client: &Client,
    id: &SandboxRef,
    (from, to): (String, PathBuf),
) -> Result<(), Failure> {
    below_workspace(&from)?;
    if fs::symlink_metadata(&to).is_ok() {
        return Err(Failure::new(format!("exists already: {}", to.display())));
    }
    let request = client
        .request(Method::GET, &path_of(id, "files/export", &[("path", &from)]))
        .body(empty())
        .map_err(|error| Failure::new(error.to_string()))?;
    let response = client.send(request).await?;
    let bar = out::bytes_bar(None, "downloading");
    let counted = bar.clone();
    let body = response.into_body().into_data_stream().map(move |piece| {
        let piece = piece.map_err(io::Error::other)?;
        counted.inc(piece.len() as u64);
        io::Result::Ok(piece)
    });
    let reader = SyncIoBridge::new(StreamReader::new(body));
    let target = to.clone();
    let unpacked = tokio::task::spawn_blocking(move || unpack_to(reader, &target)).await;
    bar.finish_and_clear();
    let unpacked = unpacked.map_err(|error| Failure::new(error.to_string()))?;
    let left_out = unpacked
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", to.display())))?;
    if left_out > 0 {
        out::note(format!(
            "{left_out} entries were left out: neither files nor directories nor links"
        ));
    }
    Ok(())
}

/// The path as an import knows it.
fn below_workspace(path: &str) -> Result<String, Failure> {
    let below =
        path.strip_prefix("/workspace").filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let below = below.ok_or_else(|| {
        Failure::new(format!("not in /workspace: {path}"))
            .hint("directories are copied to and from /workspace; single files anywhere")
    })?;
    Ok(below.trim_matches('/').to_owned())
}

/// Of its files, for the bar.
fn size_of(dir: &Path) -> io::Result<u64> {
    let mut total = 0;
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            if meta.is_dir() {
                left.push(entry.path());
            } else if meta.is_file() {
                total += meta.len();
            }
        }
    }
    Ok(total)
}

fn pack(from: &Path, below: &str, writer: &mut Pieces) -> io::Result<()> {
    let mut archive = tar::Builder::new(writer);
    archive.follow_symlinks(false);
    archive.append_dir_all(if below.is_empty() { "." } else { below }, from)?;
    archive.finish()
}

/// A writer into a request.
struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(CHUNK_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..len]);
        if self.buffer.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES));
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.sender.blocking_send(Ok(piece.into())).map_err(gone)
    }
}

/// How many entries were left out.
fn unpack_to(reader: impl Read, to: &Path) -> io::Result<u64> {
    let name = to.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let part = to.with_file_name(format!(".{name}.{}.part", std::process::id()));
    fs::create_dir(&part)?;
    let unpacked = unpack(reader, &part).and_then(|left_out| {
        fs::rename(&part, to)?;
        Ok(left_out)
    });
    if unpacked.is_err() {
        // The failure is what matters; what cannot be removed says what it is by its name.
        let _ = fs::remove_dir_all(&part);
    }
    unpacked
}

fn unpack(reader: impl Read, into: &Path) -> io::Result<u64> {
    let mut archive = tar::Archive::new(reader);
    let mut left_out = 0;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        let wanted = kind.is_file() || kind.is_dir() || kind.is_symlink();
        // Refuses what would lead out, also through a link that came before.
        if !wanted || !entry.unpack_in(into)? {
            left_out += 1;
        }
    }
    Ok(left_out)
}

#[cfg(test)]
mod tests;
