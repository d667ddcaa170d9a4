//! Finding a text in the files below a directory. It follows no links.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags, openat};
use tokio_util::sync::CancellationToken;

use super::Outcome;
use super::files::cut_at;
use super::paths::Found;

const MATCHES_MAX: usize = 200;
const FILES_MAX: usize = 20_000;
const DEPTH_MAX: usize = 32;
/// Larger ones are not looked into.
const FILE_BYTES_MAX: u64 = 2 * 1024 * 1024;
const LINE_BYTES_MAX: usize = 300;
/// Nobody looks for anything there.
const SKIPPED: &[&str] = &[".git", "node_modules", "target", ".venv", "__pycache__"];

/// What is found so far.
struct Finds<'a> {
    wanted: &'a str,
    out: String,
    matches: usize,
    files: usize,
}

pub(super) fn search(path: &Found, wanted: &str, give_up: &CancellationToken) -> Outcome {
    let root = match path.open(OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(root) => root,
        Err(error) => return Outcome::of_io(path.shown(), &error),
    };
    let mut finds = Finds { wanted, out: String::new(), matches: 0, files: 0 };
    // Directories stay open while they wait, so there are never many of them: depth first.
    let mut waiting = VecDeque::from([(root, PathBuf::new(), 0)]);
    while let Some((directory, below, depth)) = waiting.pop_back() {
        if give_up.is_cancelled() || finds.is_full() {
            break;
        }
        for name in finds.look(&directory, &below) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let deeper = openat(&directory, &name, flags, Mode::empty());
            if let (Ok(deeper), true) = (deeper, depth < DEPTH_MAX && waiting.len() < 256) {
                waiting.push_back((deeper, below.join(&name), depth + 1));
            }
        }
    }
    if finds.matches == 0 {
        return Outcome::fine("[nothing found]\n");
    }
    if finds.is_full() {
        finds.out.push_str("[there is more]\n");
    }
    Outcome::fine(finds.out)
}

impl Finds<'_> {
    fn is_full(&self) -> bool {
        self.matches >= MATCHES_MAX || self.files >= FILES_MAX
    }

    /// Looks into the files of a directory and gives the directories in it.
    fn look(&mut self, directory: &OwnedFd, below: &Path) -> Vec<PathBuf> {
        let mut deeper = Vec::new();
        let Ok(entries) = Dir::read_from(directory) else { return deeper };
        for entry in entries.flatten() {
            let name = PathBuf::from(entry.file_name().to_string_lossy().into_owned());
            let skipped = name
                .to_str()
                .is_some_and(|name| name == "." || name == ".." || SKIPPED.contains(&name));
            match entry.file_type() {
                _ if skipped || self.is_full() => {}
                FileType::Directory => deeper.push(name),
                FileType::RegularFile => self.look_into(directory, &name, &below.join(&name)),
                _ => {}
            }
        }
        deeper
    }

    fn look_into(&mut self, directory: &OwnedFd, name: &Path, shown: &Path) {
        self.files += 1;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let Ok(file) = openat(directory.as_fd(), name, flags, Mode::empty()) else { return };
        let mut text = String::new();
        if File::from(file).take(FILE_BYTES_MAX).read_to_string(&mut text).is_err() {
            return;
        }
        let found = text.lines().enumerate().filter(|(_, line)| line.contains(self.wanted));
        for (number, line) in found.take(MATCHES_MAX - self.matches) {
            let line = cut_at(line.trim_end(), LINE_BYTES_MAX);
            self.out.push_str(&format!("{}:{}: {line}\n", shown.display(), number + 1));
            self.matches += 1;
        }
    }
}
