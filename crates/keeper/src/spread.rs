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
    /// Begins anew in `dir`: what is there goes.
    pub fn open(dir: PathBuf) -> io::Result<Self> {
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => fs::create_dir_all(&dir)?,
        }
        // Other file systems know no such wish, and need none.
        let _ = keep_apart(&dir);
        (0..16).try_for_each(|part| fs::create_dir(dir.join(format!("{part:x}"))))?;
        Ok(Self(dir))
    }

    /// Where what is called `name` is to be made.
    pub fn place(&self, name: &str) -> PathBuf {
        let part = name.get(..1).unwrap_or("0");
        self.0.join(part).join(name)
    }
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
