//! What is below a directory, as lines of JSON.

use std::io;

use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};

use crate::{ByteStream, GuestError};

/// Entries of one tree; a larger one is refused.
pub const TREE_ENTRIES_MAX: usize = 200_000;
/// Of one line: a path, a link's target, and how JSON writes them.
const LINE_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeEntry {
    /// From the directory that was asked for, without a slash before it.
    pub path: String,
    pub kind: TreeKind,
    #[serde(default)]
    pub size: u64,
    pub mode: u32,
    /// When anything about it changed last: a program cannot set this time.
    pub changed_ns: i64,
    /// Of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TreeKind {
    Directory,
    File,
    Link,
}

pub(crate) async fn read(mut body: ByteStream) -> Result<Vec<TreeEntry>, GuestError> {
    let (mut entries, mut rest) = (Vec::new(), Vec::new());
    while let Some(piece) = body.next().await {
        rest.extend_from_slice(&piece?);
        let mut from = 0;
        while let Some(length) = rest[from..].iter().position(|byte| *byte == b'\n') {
            entries.push(line(&rest[from..from + length])?);
            from += length + 1;
        }
        rest.drain(..from);
        if rest.len() > LINE_BYTES_MAX || entries.len() > TREE_ENTRIES_MAX {
            return Err(GuestError::protocol("the tree is too large"));
        }
    }
    if rest.is_empty() {
        return Ok(entries);
    }
    Err(GuestError::Unreachable(io::ErrorKind::UnexpectedEof.into()))
}

fn line(bytes: &[u8]) -> Result<TreeEntry, GuestError> {
    serde_json::from_slice(bytes).map_err(|_| GuestError::protocol("not an entry of a tree"))
}
