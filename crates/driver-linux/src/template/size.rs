//! How much room a built tree takes. The tree is our own, so a plain walk will do.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes on disk below `root`, each inode once.
pub(super) fn on_disk(root: &Path) -> io::Result<u64> {
    let mut seen = std::collections::HashSet::new();
    let mut blocks = 0;
    let mut waiting = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            if meta.nlink() < 2 || meta.is_dir() || seen.insert(meta.ino()) {
                blocks += meta.blocks();
            }
            if meta.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    Ok(blocks * 512)
}
