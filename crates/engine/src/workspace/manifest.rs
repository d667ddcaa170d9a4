//! What is remembered of a workspace beside its files: directories, links, modes, and what of one sandbox was
//! saved when.

use std::collections::BTreeMap;

use anyhow::Context;
use blobs::Used;
use guest_proto::{TreeEntry, TreeKind};
use model::{Result, SandboxId};
use serde::{Deserialize, Serialize};

use crate::workspace::Files;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Whose times those of the entries are.
    pub(crate) sandbox: SandboxId,
    pub(crate) entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) kind: TreeKind,
    pub(crate) mode: u32,
    #[serde(default)]
    pub(crate) size: u64,
    pub(crate) changed_ns: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
}

impl Manifest {
    pub(crate) fn new(sandbox: SandboxId) -> Self {
        Self { sandbox, entries: BTreeMap::new() }
    }

    /// Of its files.
    pub(crate) fn size(&self) -> Used {
        let files = self.entries.values().filter(|entry| entry.kind == TreeKind::File);
        files.fold(Used::default(), |used, file| Used {
            bytes: used.bytes + file.size,
            files: used.files + 1,
        })
    }

    /// `None` when there is none, or one that is not understood: then nothing is known.
    pub(crate) async fn read(files: &Files) -> Result<Option<Self>> {
        let note = files.blobs.note(&files.owner, &files.workspace).await?;
        Ok(note.and_then(|note| serde_json::from_slice(&note).ok()))
    }

    pub(crate) async fn write(&self, files: &Files) -> Result<()> {
        let note = serde_json::to_vec(self).context("write what is known of a workspace")?;
        files.blobs.set_note(&files.owner, &files.workspace, note.into()).await
    }
}

impl From<TreeEntry> for Entry {
    fn from(entry: TreeEntry) -> Self {
        let TreeEntry { path: _, kind, size, mode, changed_ns, target } = entry;
        let size = if kind == TreeKind::File { size } else { 0 };
        Self { kind, mode, size, changed_ns, target }
    }
}
