//! What is below a directory of a fake guest, as a real one would say it.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use guest_proto::{TreeEntry, TreeKind};

pub(super) fn below(directory: &Path, prefix: &str, lines: &mut Vec<u8>) -> io::Result<()> {
    let mut entries: Vec<_> = std::fs::read_dir(directory)?.collect::<io::Result<_>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let meta = std::fs::symlink_metadata(entry.path())?;
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let kind = match meta.file_type() {
            kind if kind.is_dir() => TreeKind::Directory,
            kind if kind.is_symlink() => TreeKind::Link,
            _ => TreeKind::File,
        };
        let target = (kind == TreeKind::Link).then(|| std::fs::read_link(entry.path()));
        let target = target.transpose()?.map(|target| target.to_string_lossy().into_owned());
        let changed_ns = meta.ctime() * 1_000_000_000 + meta.ctime_nsec();
        let (size, mode) = (meta.size(), meta.mode() & 0o7777);
        let line = TreeEntry { path: path.clone(), kind, size, mode, changed_ns, target };
        serde_json::to_writer(&mut *lines, &line)?;
        lines.write_all(b"\n")?;
        if kind == TreeKind::Directory {
            below(&entry.path(), &format!("{path}/"), lines)?;
        }
    }
    Ok(())
}
