//! `EntryInfo`: what envd says about a file.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;

use serde::Serialize;

use crate::accounts::Accounts;
use crate::connect::time;
use crate::files::read_metadata;
use crate::paths;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    path: String,
    /// 64 bits travel as text.
    #[serde(skip_serializing_if = "is_zero_text")]
    size: String,
    #[serde(skip_serializing_if = "is_zero")]
    mode: u32,
    permissions: String,
    owner: String,
    group: String,
    modified_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    metadata: crate::files::Metadata,
}

/// What is at a path. Of a link: the kind and mode of its target, everything else of itself.
pub(crate) fn of_path(path: &str, accounts: &Accounts) -> io::Result<Entry> {
    let meta = fs::symlink_metadata(path)?;
    let is_link = meta.file_type().is_symlink();
    let target = if is_link { fs::metadata(path).ok() } else { None };
    let shown = target.as_ref().unwrap_or(&meta);
    let nanoseconds = u32::try_from(meta.mtime_nsec()).unwrap_or(0);
    Ok(Entry {
        name: paths::split(path).1.to_owned(),
        kind: kind(shown),
        path: path.to_owned(),
        size: meta.len().to_string(),
        mode: shown.mode() & 0o777,
        permissions: permissions(meta.mode()),
        owner: accounts.name_of_user(meta.uid()).unwrap_or_else(|| meta.uid().to_string()),
        group: accounts.name_of_group(meta.gid()).unwrap_or_else(|| meta.gid().to_string()),
        modified_time: time::format(meta.mtime(), nanoseconds),
        symlink_target: is_link.then(|| resolved(path)),
        metadata: if meta.is_file() { read_metadata(path) } else { Default::default() },
    })
}

fn resolved(path: &str) -> String {
    let target = fs::canonicalize(path).or_else(|_| fs::read_link(path));
    target.map(|target| target.to_string_lossy().into_owned()).unwrap_or_default()
}

fn kind(meta: &Metadata) -> &'static str {
    let kind = meta.file_type();
    if kind.is_file() {
        "FILE_TYPE_FILE"
    } else if kind.is_dir() {
        "FILE_TYPE_DIRECTORY"
    } else if kind.is_symlink() {
        "FILE_TYPE_SYMLINK"
    } else {
        "FILE_TYPE_UNSPECIFIED"
    }
}

/// As Go's `FileMode.String` writes it.
fn permissions(mode: u32) -> String {
    let mut text = String::new();
    match mode & libc::S_IFMT {
        libc::S_IFDIR => text.push('d'),
        libc::S_IFLNK => text.push('L'),
        libc::S_IFBLK => text.push('D'),
        libc::S_IFCHR => text.push_str("Dc"),
        libc::S_IFIFO => text.push('p'),
        libc::S_IFSOCK => text.push('S'),
        _ => {}
    }
    let special = [(libc::S_ISUID, 'u'), (libc::S_ISGID, 'g'), (libc::S_ISVTX, 't')];
    text.extend(special.iter().filter(|(bit, _)| mode & bit != 0).map(|(_, letter)| letter));
    if text.is_empty() {
        text.push('-');
    }
    text.extend(
        "rwxrwxrwx"
            .chars()
            .enumerate()
            .map(|(index, letter)| if mode & (0o400 >> index) != 0 { letter } else { '-' }),
    );
    text
}

fn is_zero(mode: &u32) -> bool {
    *mode == 0
}

fn is_zero_text(size: &str) -> bool {
    size == "0"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_written_as_go_does() {
        assert_eq!(permissions(libc::S_IFREG | 0o644), "-rw-r--r--");
        assert_eq!(permissions(libc::S_IFDIR | 0o755), "drwxr-xr-x");
        assert_eq!(permissions(libc::S_IFLNK | 0o777), "Lrwxrwxrwx");
        assert_eq!(permissions(libc::S_IFDIR | libc::S_ISVTX | 0o777), "dtrwxrwxrwx");
        assert_eq!(permissions(libc::S_IFREG | libc::S_ISUID | 0o755), "urwxr-xr-x");
        assert_eq!(permissions(libc::S_IFCHR | 0o600), "Dcrw-------");
    }
}
