//! Unpacks a tar archive into a directory, in constant memory.
//!
//! Archives are hostile. Every name is walked from the directory by descriptors and through no link,
//! so nothing outside is ever touched, whatever links the archive or the directory has; `..` is
//! refused. Links are made as they are and never followed. Set-id bits are dropped, devices and
//! pipes left out, and everything belongs to the sandbox's user. How much it may write is the disk's
//! limit.

mod names;
mod place;

use std::io::{self, Read};
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use rustix::fs::{Mode, OFlags};
use tar::{Archive, Entry, EntryType};
use tokio::sync::mpsc;

use self::names::Names;
use self::place::Place;
use super::{ARCHIVES, path_of};
use crate::files::drain;
use crate::http::{BodyReader, Request, Response, no_content};
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;

/// Pieces of the body that wait to be unpacked.
const PIECES_MAX: usize = 8;

pub(super) async fn import(state: &Arc<State>, request: Request) -> Result<Response> {
    let path = path_of(&request)?;
    let mut body = BodyReader::new(request.into_body());
    let done = unpack_from(state, &path, &mut body).await;
    if done.is_err() {
        drain(&mut body).await;
    }
    done.map(|()| no_content())
}

async fn unpack_from(state: &Arc<State>, path: &str, body: &mut BodyReader) -> Result<()> {
    let busy = || Refusal::new(Code::ResourceExhausted, "too many archives are on their way");
    let permit = ARCHIVES.try_acquire().map_err(|_| busy())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| Refusal::errno(path, e))?;
    let account = state.account(None).ok().filter(|_| state.is_root);
    let place = Place::new(root, account.map(|account| (account.uid, account.gid)));

    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    let unpacking = state.tasks.spawn_blocking(move || {
        let done = unpack(&place, Pieces { receiver, current: Bytes::new() });
        drop(permit);
        done
    });
    loop {
        let piece = match body.next().await {
            Ok(Some(piece)) => Ok(piece),
            Ok(None) => break,
            Err(refusal) => Err(io::Error::other(refusal.message)),
        };
        let failed = piece.is_err();
        // The other side is gone when it has seen enough, or has failed.
        if sender.send(piece).await.is_err() || failed {
            break;
        }
    }
    drop(sender);
    let done = unpacking.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())));
    if done.is_ok() {
        drain(body).await;
    }
    done
}

/// A reader of the body.
struct Pieces {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.receiver.blocking_recv() {
                None => return Ok(0),
                Some(piece) => self.current = piece?,
            }
        }
        let len = self.current.len().min(out.len());
        self.current.copy_to_slice(&mut out[..len]);
        Ok(len)
    }
}

fn unpack(place: &Place, body: Pieces) -> Result<()> {
    let malformed = |error: io::Error| Refusal::invalid(format!("archive: {error}"));
    let mut archive = Archive::new(body);
    // Raw, because the crate would read long names of any length into memory.
    let entries = archive.entries().map_err(malformed)?.raw(true);
    let mut names = Names::default();
    for entry in entries {
        let mut entry = entry.map_err(malformed)?;
        if names.take(&mut entry)? {
            continue;
        }
        unpack_entry(place, &mut names, &mut entry)?;
    }
    Ok(())
}

fn unpack_entry(place: &Place, names: &mut Names, entry: &mut Entry<'_, Pieces>) -> Result<()> {
    let path = names.path(entry);
    let link = names.link(entry);
    let mode = entry.header().mode().unwrap_or(0o644) & 0o777;
    let named = |error: Refusal| {
        let message = format!("{}: {}", String::from_utf8_lossy(&path), error.message);
        Refusal::new(error.code, message)
    };
    let done = match entry.header().entry_type() {
        EntryType::Regular | EntryType::Continuous => {
            let size = entry.size();
            place.file(&path, (mode, size), entry)
        }
        EntryType::Directory => place.directory(&path, mode),
        EntryType::Symlink => place.symlink(&path, &link),
        EntryType::Link => place.hard_link(&path, &link),
        EntryType::GNUSparse => Err(Refusal::invalid("sparse entries are not supported")),
        _ => Ok(()),
    };
    done.map_err(named)
}
