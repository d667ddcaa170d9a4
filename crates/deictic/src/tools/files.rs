//! Reading and writing text files.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;

use events::FileAction;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, statat, unlinkat};

use super::Outcome;
use super::paths::{Found, plain_file};
use crate::voice::new_id;

/// What is looked at of a file.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// What is given back of it at once.
const READ_BYTES_MAX: usize = 64 * 1024;

/// A line that is longer is cut.
const LINE_BYTES_MAX: usize = 4 * 1024;

pub(super) fn read(path: &Found, offset: Option<u64>, limit: Option<u64>) -> Outcome {
    let text = match text_of(path) {
        Ok(text) => text,
        Err(error) => return Outcome::of_io(path.shown(), &error),
    };
    let first = usize::try_from(offset.unwrap_or(1).max(1) - 1).unwrap_or(usize::MAX);
    let count = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let total = text.lines().count();
    let (mut out, mut shown) = (String::new(), 0);
    for line in text.lines().skip(first).take(count) {
        let cut = cut_at(line, LINE_BYTES_MAX);
        if out.len() + cut.len() > READ_BYTES_MAX {
            break;
        }
        out.push_str(cut);
        out.push_str(if cut.len() < line.len() { " […]\n" } else { "\n" });
        shown += 1;
    }
    if first + shown < total {
        let next = first + shown + 1;
        out.push_str(&format!("[{total} lines in all; go on with offset {next}]\n"));
    }
    Outcome::fine(out).about(path.shown(), FileAction::Read)
}

fn text_of(path: &Found) -> io::Result<String> {
    let file = plain_file(path.open(OFlags::RDONLY)?)?;
    if file.metadata()?.len() > FILE_BYTES_MAX {
        let message = format!("larger than {FILE_BYTES_MAX} bytes; look at it with a command");
        return Err(io::Error::other(message));
    }
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    String::from_utf8(bytes).map_err(|_| io::Error::other("not a text file"))
}

pub(super) fn write(path: &Found, content: &str) -> Outcome {
    match put(path, content) {
        Ok(()) => {
            let count = content.len();
            Outcome::fine(format!("wrote {count} bytes")).about(path.shown(), FileAction::Write)
        }
        Err(error) => Outcome::of_io(path.shown(), &error),
    }
}

/// Beside the old one first: a full disk leaves the old one as it was.
fn put(path: &Found, content: &str) -> io::Result<()> {
    let (directory, name) = path.parent()?;
    let mode = match statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if found.st_mode & 0o170_000 == 0o100_000 => found.st_mode & 0o777,
        Ok(_) => return Err(io::Error::other("there is something that is not a plain file")),
        Err(_) => 0o666,
    };
    let unfinished = format!(".deictic-{}", new_id());
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(&directory, &unfinished, flags, Mode::from_raw_mode(mode))?;
    let written = fill(File::from(file), content)
        .and_then(|()| Ok(renameat(directory.as_fd(), &unfinished, directory.as_fd(), &name)?));
    if written.is_err() {
        let _ = unlinkat(&directory, Path::new(&unfinished), AtFlags::empty());
    }
    written
}

fn fill(mut file: File, content: &str) -> io::Result<()> {
    file.write_all(content.as_bytes())?;
    file.flush()
}

/// At most so many bytes of it, whole characters.
pub(super) fn cut_at(text: &str, bytes_max: usize) -> &str {
    if text.len() <= bytes_max {
        return text;
    }
    let end = (0..=bytes_max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}
