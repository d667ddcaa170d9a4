//! What is below a directory, one line of JSON an entry, without what is in the files: for whoever keeps a
//! copy and wants to know what changed. Sockets, pipes, devices and names that are no text are left out.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use guest_proto::{TREE_ENTRIES_MAX, TreeEntry, TreeKind};
use rustix::fs::FileType;

use super::export::{Pieces, streamed};
use super::walk::{Found, walk};
use crate::http::{Request, Response};
use crate::refusal::Result;
use crate::state::State;

pub(super) fn tree(state: &Arc<State>, request: &Request) -> Result<Response> {
    streamed(state, request, "application/x-ndjson", write)
}

fn write(root: OwnedFd, out: &mut Pieces) -> io::Result<()> {
    let mut count = 0;
    walk(root, |found| {
        let Some(entry) = entry(&found) else { return Ok(()) };
        count += 1;
        if count > TREE_ENTRIES_MAX {
            return Err(io::Error::other("the tree has too many entries"));
        }
        serde_json::to_writer(&mut *out, &entry)?;
        out.write_all(b"\n")
    })
}

fn entry(found: &Found<'_>) -> Option<TreeEntry> {
    let kind = match FileType::from_raw_mode(found.stat.st_mode) {
        FileType::Directory => TreeKind::Directory,
        FileType::RegularFile => TreeKind::File,
        FileType::Symlink => TreeKind::Link,
        _ => return None,
    };
    let target = match kind {
        TreeKind::Link => Some(found.target()?.into_string().ok()?),
        TreeKind::Directory | TreeKind::File => None,
    };
    let seconds = found.stat.st_ctime;
    let nanos = i64::try_from(found.stat.st_ctime_nsec).unwrap_or_default();
    Some(TreeEntry {
        path: found.path.to_str()?.to_owned(),
        kind,
        size: u64::try_from(found.stat.st_size).unwrap_or_default(),
        mode: found.stat.st_mode & 0o7777,
        changed_ns: seconds.saturating_mul(1_000_000_000).saturating_add(nanos),
        target,
    })
}
