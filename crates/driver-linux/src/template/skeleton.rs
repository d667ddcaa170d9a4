//! Root file systems that need no building: a few directories and files of our own, there as a whole or
//! not at all.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use anyhow::Context;
use model::Result;

use super::{UNFINISHED, wait_for_lock};
use crate::privilege::Privilege;

/// The uid and gid of `user` in every template of ours.
pub(super) const USER: u32 = 1000;

pub(super) struct Skeleton {
    pub(super) directories: &'static [(&'static str, u32)],
    /// Directories of the account `user`.
    pub(super) owned: &'static [&'static str],
    pub(super) files: &'static [(&'static str, &'static str)],
}

impl Skeleton {
    /// Modes are as said here, also when this process has a strict umask.
    pub(super) fn make(&self, root: &Path) -> anyhow::Result<()> {
        make_dir(root, 0o755)?;
        for (path, mode) in self.directories {
            make_dir(&root.join(path), *mode)?;
        }
        for path in self.owned {
            let path = root.join(path);
            make_dir(&path, 0o755)?;
            let user = Privilege::current().on_disk(USER);
            chown(&path, Some(user), Some(user)).context("give the home to its user")?;
        }
        self.files.iter().try_for_each(|(path, content)| put(&root.join(path), content, 0o644))
    }
}

/// Makes `dir` with `fill`, unless it is there: it appears by a rename, so what is there is whole.
pub(super) fn appear(dir: &Path, fill: impl Fn(&Path) -> anyhow::Result<()>) -> Result<()> {
    if dir.exists() {
        return Ok(());
    }
    let parent = dir.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).context("make the template directory")?;
    let _lock = wait_for_lock(parent)?;
    if dir.exists() {
        return Ok(());
    }
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = parent.join(format!("{UNFINISHED}{name}-{}", std::process::id()));
    let made = fill(&unfinished)
        .and_then(|()| Ok(fs::rename(&unfinished, dir)?))
        .with_context(|| format!("make {}", dir.display()));
    if made.is_err() {
        // The first failure is the one to tell; the sweep takes the rest.
        let _ = fs::remove_dir_all(&unfinished);
    }
    Ok(made?)
}

pub(super) fn make_dir(path: &Path, mode: u32) -> anyhow::Result<()> {
    let make = || {
        fs::create_dir(path)?;
        fs::set_permissions(path, Permissions::from_mode(mode))
    };
    make().with_context(|| format!("make {}", path.display()))
}

pub(super) fn put(path: &Path, content: impl AsRef<[u8]>, mode: u32) -> anyhow::Result<()> {
    let write = || {
        fs::write(path, content)?;
        fs::set_permissions(path, Permissions::from_mode(mode))
    };
    write().with_context(|| format!("write {}", path.display()))
}
