//! Where the files of one workspace are: `workspaces/OWNER/APP/CAPSET/files/…`, and a note beside them.

use model::{OwnerId, WorkspaceId};
use object_store::path::{Path, PathPart};

use crate::Key;

const ALL: &str = "workspaces";
const FILES: &str = "files";
const NOTE: &str = "note";

pub(crate) struct Scope {
    root: Path,
    files: Path,
}

pub(crate) fn of_owner(owner: &OwnerId) -> Path {
    Path::from_iter([ALL, owner.as_str()])
}

/// The `app_id` whose directory this is.
pub(crate) fn app(path: &Path) -> Option<String> {
    path.filename().and_then(decoded)
}

/// The workspace whose directory this is.
pub(crate) fn workspace(app_dir: &Path, capset: &Path) -> Option<WorkspaceId> {
    WorkspaceId::new(&app(app_dir)?, &capset.filename().and_then(decoded)?).ok()
}

impl Scope {
    pub(crate) fn new(owner: &Path, workspace: &WorkspaceId) -> Self {
        let root = owner.clone().join(workspace.app_id()).join(workspace.capset_id());
        let files = root.clone().join(FILES);
        Self { root, files }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn file(&self, key: &Key) -> Path {
        let segments = key.as_str().split('/').map(PathPart::from);
        segments.fold(self.files.clone(), |path, segment| path.join(segment))
    }

    /// `None` when nothing can be below it.
    pub(crate) fn directory(&self, directory: &str) -> Option<Path> {
        if directory.is_empty() {
            return Some(self.files.clone());
        }
        directory.parse().ok().map(|key| self.file(&key))
    }

    pub(crate) fn note(&self) -> Path {
        self.root.clone().join(NOTE)
    }

    /// `None` for what is no file of the workspace.
    pub(crate) fn key_of(&self, location: &Path) -> Option<Key> {
        let parts = location.prefix_match(&self.files)?;
        let segments: Option<Vec<String>> = parts.map(|part| decoded(part.as_ref())).collect();
        segments?.join("/").parse().ok()
    }
}

/// Back from how storage writes a name.
fn decoded(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = after;
            continue;
        }
        let (digits, after) = after.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}
