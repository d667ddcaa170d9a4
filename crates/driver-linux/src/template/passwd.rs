//! Which number an image's user is, read from its layers without running anything of it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};

const PASSWD_BYTES_MAX: u64 = 1 << 20;

/// The uid of `user` (`name`, a number, either with `:group`); root when nobody knows. `layers` has
/// the topmost first.
pub(super) fn uid(user: &str, layers: &[PathBuf]) -> u32 {
    let name = user.split(':').next().unwrap_or_default();
    if name.is_empty() || name == "root" {
        return 0;
    }
    if let Ok(uid) = name.parse::<u32>() {
        return uid.min(65_534);
    }
    let Some(text) = layers.iter().find_map(|layer| read(layer)) else { return 0 };
    let line = text.lines().find(|line| line.split(':').next() == Some(name));
    line.and_then(|line| line.split(':').nth(2)?.parse().ok()).unwrap_or(0)
}

fn read(layer: &Path) -> Option<String> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, layer, flags, Mode::empty()).ok()?;
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::openat2(root, "etc/passwd", flags, Mode::empty(), inside).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut text = String::new();
    File::from(file).take(PASSWD_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}
