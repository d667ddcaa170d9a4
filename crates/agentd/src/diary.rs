//! The log of the daemon in a sandbox: lines in a file that does not grow beyond a bound, for whoever
//! owns the sandbox. On a machine the command line logs, to standard error.

use std::fmt::{Debug, Write as _};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// When the file is begun anew, so that as much or less is kept.
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// Of one line. What agents print is part of some.
const LINE_BYTES_MAX: usize = 4096;

struct Diary(Mutex<Book>);

struct Book {
    path: PathBuf,
    file: Option<File>,
    bytes: u64,
}

/// From now on what is traced goes there. Without a file that can be written nothing is logged.
pub(crate) fn keep(path: &Path) {
    let mut book = Book { path: path.to_owned(), file: None, bytes: 0 };
    book.open();
    // Only a second one could fail.
    let _ = tracing::subscriber::set_global_default(Diary(Mutex::new(book)));
}

impl Book {
    fn open(&mut self) {
        let mut options = OpenOptions::new();
        // Somebody inside may have put a link there.
        let no_link = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let no_link = i32::try_from(no_link.bits()).unwrap_or(0);
        options.append(true).create(true).mode(0o600).custom_flags(no_link);
        self.file = options.open(&self.path).ok();
        let metadata = self.file.as_ref().and_then(|file| file.metadata().ok());
        self.bytes = metadata.filter(std::fs::Metadata::is_file).map_or(0, |found| found.len());
    }

    fn write(&mut self, line: &str) {
        if self.bytes + line.len() as u64 > FILE_BYTES_MAX {
            if let Some(file) = &self.file {
                let _ = file.set_len(0);
            }
            self.bytes = 0;
        }
        if let Some(file) = &mut self.file
            && file.write_all(line.as_bytes()).is_ok()
        {
            self.bytes += line.len() as u64;
        }
    }
}

impl Subscriber for Diary {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = format!("{} {}", jiff::Timestamp::now(), event.metadata().level());
        event.record(&mut Words(&mut line));
        // One event is one line, whatever an agent printed.
        line = line.replace(['\n', '\r'], " ");
        if line.len() > LINE_BYTES_MAX {
            line.truncate(line.floor_char_boundary(LINE_BYTES_MAX));
        }
        line.push('\n');
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(&line);
    }

    // There are no spans here.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Words<'a>(&'a mut String);

impl Visit for Words<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests;
