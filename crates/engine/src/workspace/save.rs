//! From a sandbox into storage: only what changed moves.
//!
//! Whether a file changed is told by its length and by the time of its last change, which programs cannot
//! set. It is looked at before the file is read: what changes during that is saved the next time.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::{StreamExt, stream};
use guest_proto::{Guest, GuestError, TreeEntry, TreeKind};
use model::{Error, Result, SandboxId};
use tracing::warn;

use crate::workspace::manifest::Entry;
use crate::workspace::{Files, Manifest};

/// Files on their way at once.
const AT_ONCE: usize = 8;

/// `saved` is what storage is known to have, and grows with every file that is there: a save that fails half
/// way has not to begin anew.
pub(super) async fn save(
    files: &Files,
    (guest, root): (&Guest, &str),
    saved: &mut Option<Manifest>,
    sandbox: SandboxId,
) -> Result<()> {
    let tree = guest.tree(root).await.map_err(|error| unread(&error))?;
    let tree: BTreeMap<String, TreeEntry> =
        tree.into_iter().map(|entry| (entry.path.clone(), entry)).collect();
    let stored = Manifest::read(files).await?;
    if saved.is_none() {
        // After a restart. What another sandbox has saved since says nothing of this one.
        let own = stored.clone().filter(|stored| stored.sandbox == sandbox);
        *saved = Some(own.unwrap_or_else(|| Manifest::new(sandbox)));
    }
    let Some(saved) = saved else { return Ok(()) };
    let moved = move_files(files, (guest, root), saved, &tree).await;
    // Also after a failure: what is there needs not to move again.
    if stored.as_ref() != Some(&*saved) {
        saved.write(files).await?;
    }
    moved
}

async fn move_files(
    files: &Files,
    (guest, root): (&Guest, &str),
    saved: &mut Manifest,
    tree: &BTreeMap<String, TreeEntry>,
) -> Result<()> {
    // First, because a name may have become a directory.
    for path in gone(saved, tree) {
        if let Ok(key) = path.parse()
            && saved.entries.get(&path).is_some_and(|entry| entry.kind == TreeKind::File)
        {
            files.blobs.delete(&files.owner, &files.workspace, &key).await?;
        }
        saved.entries.remove(&path);
    }
    let left = Arc::new(AtomicU64::new(files.bytes_max));
    let changed = tree.values().filter(|entry| {
        saved.entries.get(&entry.path) != Some(&Entry::from(TreeEntry::clone(entry)))
    });
    let uploads: Vec<_> = changed
        .map(|entry| {
            let desk = Desk { files: files.clone(), guest: guest.clone(), root: root.to_owned() };
            upload(desk, entry.clone(), Arc::clone(&left))
        })
        .collect();
    let mut uploads = stream::iter(uploads).buffer_unordered(AT_ONCE);
    let (mut unsaved, mut failure) = (0_u64, None);
    while let Some(outcome) = uploads.next().await {
        match outcome {
            Ok(Uploaded::Yes(entry)) => {
                saved.entries.insert(entry.path.clone(), Entry::from(entry));
            }
            Ok(Uploaded::Vanished) => {}
            Ok(Uploaded::NoName) => unsaved += 1,
            Err(error) => failure = Some(error),
        }
    }
    if unsaved > 0 {
        warn!(sandbox.id = %saved.sandbox, unsaved, "files whose names storage cannot have are not saved");
    }
    failure.map_or(Ok(()), Err)
}

/// What is not there any more, or is something else now.
fn gone(saved: &Manifest, tree: &BTreeMap<String, TreeEntry>) -> Vec<String> {
    let gone = |path: &str, entry: &Entry| tree.get(path).is_none_or(|now| now.kind != entry.kind);
    let entries = saved.entries.iter();
    entries.filter(|(path, entry)| gone(path, entry)).map(|(path, _)| path.clone()).collect()
}

enum Uploaded {
    Yes(TreeEntry),
    /// Before it could be read.
    Vanished,
    /// Storage cannot have such a name, or has something else there.
    NoName,
}

/// Where from, and where to.
struct Desk {
    files: Files,
    guest: Guest,
    root: String,
}

async fn upload(desk: Desk, entry: TreeEntry, left: Arc<AtomicU64>) -> Result<Uploaded> {
    let Desk { files, guest, root } = desk;
    let Ok(key) = entry.path.parse() else { return Ok(Uploaded::NoName) };
    if entry.kind != TreeKind::File {
        return Ok(Uploaded::Yes(entry));
    }
    let file = match guest.read_file(&format!("{root}/{}", entry.path)).await {
        Ok(file) => file,
        Err(GuestError::NotFound) => return Ok(Uploaded::Vanished),
        Err(error) => return Err(unread(&error)),
    };
    let bytes = file.body.map(move |piece| {
        let piece = piece.map_err(io::Error::other)?;
        let length = piece.len() as u64;
        let taken = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(length));
        taken.map_err(|_| io::Error::other("the files are larger than the disk they are on"))?;
        Ok(piece)
    });
    match files.blobs.put(&files.owner, &files.workspace, &key, bytes).await {
        Ok(_) => Ok(Uploaded::Yes(entry)),
        // Another sandbox has a directory there, or a file above it; it came first.
        Err(Error::Conflict { .. }) => Ok(Uploaded::NoName),
        Err(failure) => Err(failure),
    }
}

fn unread(error: &GuestError) -> Error {
    Error::unavailable(format!("the workspace could not be read: {error}"))
}
