//! From storage into a sandbox: one tar stream, made of the files as they come.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use anyhow::Context;
use blobs::{Object, Used};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use guest_proto::{Guest, TreeKind};
use model::{Error, Result, SandboxId};
use tracing::warn;

use crate::workspace::manifest::Entry;
use crate::workspace::{Files, Manifest, ROOT};

const BLOCK: usize = 512;
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// Something to be made, in the order in which it can be.
enum Piece {
    Directory(String, u32),
    File(Object, u32),
    Link(String, String),
}

/// Answers with what the sandbox has now, all of it saved; and with what storage has.
pub(super) async fn restore(
    files: &Files,
    guest: &Guest,
    sandbox: SandboxId,
) -> Result<(Manifest, Used)> {
    let known = Manifest::read(files).await?;
    let stored = files.blobs.all(&files.owner, &files.workspace);
    let stored: BTreeMap<String, Object> =
        stored.map_ok(|object| (object.key.to_string(), object)).try_collect().await?;
    let sizes = stored.values().map(|object| object.size);
    let used = Used { bytes: sizes.sum(), files: stored.len() as u64 };
    let pieces = pieces(known.as_ref(), stored);
    if !pieces.is_empty() {
        let archive = archive(files.clone(), pieces);
        Box::pin(guest.import_tar(ROOT, archive)).await.map_err(|error| {
            Error::unavailable(format!("the workspace could not be restored: {error}"))
        })?;
    }
    let tree = guest.tree(ROOT).await;
    let tree = tree.context("look at what was restored")?;
    let entries = tree.into_iter().map(|entry| (entry.path.clone(), Entry::from(entry)));
    let now = Manifest { sandbox, entries: entries.collect() };
    // From now on the workspace exists, also when it is empty.
    now.write(files).await?;
    Ok((now, used))
}

/// Files are what storage has; directories, links and modes what is remembered.
fn pieces(known: Option<&Manifest>, mut stored: BTreeMap<String, Object>) -> Vec<Piece> {
    // A bucket can have a file below a file; a sandbox cannot, and is not to fail for that.
    let hidden: Vec<String> =
        stored.keys().filter(|path| is_below_a_file(path, &stored)).cloned().collect();
    for path in &hidden {
        stored.remove(path);
    }
    if !hidden.is_empty() {
        warn!(hidden = hidden.len(), "files below files are not restored; they stay in storage");
    }
    let empty = BTreeMap::new();
    let entries = known.map_or(&empty, |known| &known.entries);
    let mode_of = |path: &str, kind: TreeKind, default: u32| {
        entries.get(path).filter(|entry| entry.kind == kind).map_or(default, |entry| entry.mode)
    };
    let links = entries
        .iter()
        .filter(|(path, _)| !stored.contains_key(*path) && !is_below_a_file(path, &stored));
    let links = links.filter_map(|(path, entry)| {
        // What does not have a good name was never saved.
        path.parse::<blobs::Key>().ok()?;
        entry.target.clone().map(|target| (path.clone(), target))
    });
    let mut links: Vec<(String, String)> = links.collect();
    let mut directories: BTreeSet<String> = BTreeSet::new();
    for (path, entry) in entries {
        if entry.kind == TreeKind::Directory && path.parse::<blobs::Key>().is_ok() {
            directories.insert(path.clone());
        }
    }
    for path in stored.keys().chain(links.iter().map(|(path, _)| path)) {
        directories.extend(path.match_indices('/').map(|(at, _)| path[..at].to_owned()));
    }
    // A file where a directory was, or the other way round: what storage has is newer.
    directories.retain(|path| !stored.contains_key(path) && !is_below_a_file(path, &stored));
    links.retain(|(path, _)| !directories.contains(path));
    let directories = directories.into_iter().map(|path| {
        let mode = mode_of(&path, TreeKind::Directory, DIRECTORY_MODE);
        Piece::Directory(path, mode)
    });
    let files = stored.into_iter().map(|(path, object)| {
        let mode = mode_of(&path, TreeKind::File, FILE_MODE);
        Piece::File(object, mode)
    });
    let links = links.into_iter().map(|(path, target)| Piece::Link(path, target));
    directories.chain(files).chain(links).collect()
}

fn is_below_a_file(path: &str, stored: &BTreeMap<String, Object>) -> bool {
    path.match_indices('/').any(|(at, _)| stored.contains_key(&path[..at]))
}

fn archive(
    files: Files,
    pieces: Vec<Piece>,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let written = stream::iter(pieces).then(move |piece| {
        let files = files.clone();
        async move { one(&files, piece).await }
    });
    let end = stream::once(async { Ok(Bytes::from_static(&[0; 2 * BLOCK])) });
    written.try_flatten().chain(end)
}

type Part = stream::BoxStream<'static, io::Result<Bytes>>;

async fn one(files: &Files, piece: Piece) -> io::Result<Part> {
    match piece {
        Piece::Directory(path, mode) => {
            let header = header(tar::EntryType::Directory, mode, 0);
            written(header, &format!("{path}/"), None)
        }
        Piece::Link(path, target) => {
            written(header(tar::EntryType::Symlink, 0o777, 0), &path, Some(&target))
        }
        Piece::File(object, mode) => {
            let got = files.blobs.get(&files.owner, &files.workspace, &object.key).await;
            let got = got.map_err(|failure| io::Error::other(failure.to_string()))?;
            let gone = || io::Error::other(format!("gone meanwhile: {}", object.key));
            let (object, bytes) = got.ok_or_else(gone)?;
            let header = header(tar::EntryType::Regular, mode, object.size);
            let head = written(header, object.key.as_str(), None)?;
            let over = usize::try_from(object.size % BLOCK as u64).unwrap_or(0);
            let padding = Bytes::from_static(&[0; BLOCK]).slice(..(BLOCK - over) % BLOCK);
            Ok(head.chain(bytes).chain(stream::once(async { Ok(padding) })).boxed())
        }
    }
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header
}

/// The head of an entry, without what follows it.
fn written(mut header: tar::Header, path: &str, target: Option<&str>) -> io::Result<Part> {
    let mut builder = tar::Builder::new(Vec::new());
    match target {
        Some(target) => builder.append_link(&mut header, path, target)?,
        None => builder.append_data(&mut header, path, io::empty())?,
    }
    let bytes = std::mem::take(builder.get_mut());
    Ok(stream::once(async { Ok(Bytes::from(bytes)) }).boxed())
}
