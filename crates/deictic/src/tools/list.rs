//! Listing a directory.

use rustix::fs::{AtFlags, Dir, FileType, OFlags, statat};

use super::Outcome;
use super::paths::Found;

/// Entries that are shown.
const ENTRIES_MAX: usize = 1000;

/// Entries that are looked at.
const ENTRIES_SEEN_MAX: usize = 100_000;

pub(super) fn list(path: &Found) -> Outcome {
    match entries(path) {
        Ok((mut names, seen)) => {
            names.sort();
            let mut out = String::new();
            for name in names.iter().take(ENTRIES_MAX) {
                out.push_str(name);
                out.push('\n');
            }
            if names.len() > ENTRIES_MAX {
                out.push_str(&format!("[{seen} entries in all, {ENTRIES_MAX} shown]\n"));
            }
            if names.is_empty() {
                out.push_str("[empty]\n");
            }
            Outcome::fine(out)
        }
        Err(error) => Outcome::of_io(path.shown(), &error),
    }
}

fn entries(path: &Found) -> std::io::Result<(Vec<String>, usize)> {
    let directory = path.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&directory)?.take(ENTRIES_SEEN_MAX) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." {
            continue;
        }
        names.push(match entry.file_type() {
            FileType::Directory => format!("{name}/"),
            FileType::RegularFile if names.len() < ENTRIES_MAX => {
                let found = statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
                let bytes = found.map_or(0, |found| found.st_size);
                format!("{name}  {bytes} bytes")
            }
            FileType::Symlink => format!("{name}@"),
            _ => name,
        });
    }
    let seen = names.len();
    Ok((names, seen))
}
