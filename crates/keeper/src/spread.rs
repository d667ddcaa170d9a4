//! Directories that lie apart on the disk, for files that come and go. ext4 without a journal looks, for a new file, at
//! each that was deleted in the last minute from the same part of the disk: half a millisecond where there were
//! thousands.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

/// Sixteen directories in one, for names that are random in hexadecimal.
#[derive(Debug)]
pub struct Spread(PathBuf);

impl Spread {
    /// Begins anew in `dir`: what is there goes, but for the directories themselves.
    pub fn open(dir: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        // Other file systems know no such wish, and need none.
        let _ = keep_apart(&dir);
        let parts: Vec<PathBuf> = (0..16).map(|part| dir.join(format!("{part:x}"))).collect();
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if !parts.contains(&path) {
                remove(&path)?;
            }
        }
        for part in parts {
            fs::create_dir_all(&part)?;
            fs::read_dir(part)?.try_for_each(|entry| remove(&entry?.path()))?;
        }
        Ok(Self(dir))
    }

    /// Where what is called `name` is to be made.
    pub fn place(&self, name: &str) -> PathBuf {
        let part = name.get(..1).unwrap_or("0");
        self.0.join(part).join(name)
    }
}

fn remove(path: &Path) -> io::Result<()> {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Asks for the directories in `dir` to be put where there is room, not beside each other.
fn keep_apart(dir: &Path) -> io::Result<()> {
    let dir = File::open(dir)?;
    Ok(ioctl_setflags(&dir, ioctl_getflags(&dir)? | IFlags::TOPDIR)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_empty_and_has_a_place_for_each_name() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let at = dir.path().join("spread");
        fs::create_dir_all(at.join("older/files"))?;
        for _ in 0..2 {
            let spread = Spread::open(at.clone())?;
            for name in ["0a", "f1", "8"] {
                assert!(!spread.place(name).exists());
                fs::write(spread.place(name), name)?;
            }
        }
        assert_eq!(fs::read_dir(at)?.count(), 16);
        Ok(())
    }
}
