//! The log of one session: a file to which events are appended, and from which everybody reads. In
//! memory there is an offset for every [`EVENTS_A_MARK`] events, and, while somebody follows, the last
//! few frames as they are sent, so that following costs no read.
//!
//! A line is `812. {"event_id":…,"raw":…}`: where the raw payload begins (so that it can be left
//! out without parsing), whether the event ends a `/messages/stream` (`!`) or not (`.`), and the event.
//! What a crash left half-written at the end is cut off. It does not survive a loss of power.

mod line;
mod read;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use events::UniversalEvent;

pub(crate) use self::line::{Numbered, is_terminal};
pub(crate) use self::read::{Cursor, Form, Piece, Shape};

/// One offset is kept for as many events.
const EVENTS_A_MARK: u64 = 64;

/// Frames kept for those who follow. Who is further behind reads the file.
const TAIL_BYTES_MAX: usize = 256 * 1024;

#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    /// Closed while nobody uses it.
    file: Option<File>,
    bytes: u64,
    count: u64,
    marks: Vec<u64>,
    tail: VecDeque<Frame>,
    tail_bytes: usize,
    scratch: Vec<u8>,
}

/// An event as followers get it, without the raw payload.
#[derive(Debug, Clone)]
struct Frame {
    sequence: u64,
    text: Bytes,
    terminal: bool,
    /// Where the next event begins in the file.
    end: u64,
}

impl Log {
    /// A new one; it is an error if it exists.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).append(true).create_new(true).open(path)?;
        Ok(Self { file: Some(file), ..Self::closed(path) })
    }

    fn closed(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            file: None,
            bytes: 0,
            count: 0,
            marks: Vec::new(),
            tail: VecDeque::new(),
            tail_bytes: 0,
            scratch: Vec::new(),
        }
    }

    /// An existing one. Every event is shown to `each`; a half-written end is cut off.
    pub(crate) fn open(path: &Path, mut each: impl FnMut(&UniversalEvent)) -> io::Result<Self> {
        let file = File::options().read(true).append(true).open(path)?;
        let on_disk = file.metadata()?.len();
        let mut reader = BufReader::with_capacity(TAIL_BYTES_MAX, file.try_clone()?);
        let mut log = Self { file: Some(file), ..Self::closed(path) };
        let mut text = Vec::new();
        while reader.read_until(b'\n', &mut text)? > 0 {
            let Some(whole) = text.strip_suffix(b"\n") else { break };
            let Some(event) = line::parse(whole, log.count + 1) else { break };
            if log.count.is_multiple_of(EVENTS_A_MARK) {
                log.marks.push(log.bytes);
            }
            each(&event);
            log.count += 1;
            log.bytes += text.len() as u64;
            text.clear();
        }
        if log.bytes != on_disk {
            tracing::warn!("cut {} bytes off the end of {}", on_disk - log.bytes, path.display());
            let bytes = log.bytes;
            log.file()?.set_len(bytes)?;
        }
        Ok(log)
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Appends all or none. `followed`: somebody waits for them.
    pub(crate) fn append(&mut self, events: &[Numbered<'_>], followed: bool) -> io::Result<()> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        if !followed && !self.tail.is_empty() {
            self.tail.clear();
            self.tail_bytes = 0;
        }
        let mut frames = Vec::new();
        let mut starts = Vec::with_capacity(events.len());
        for event in events {
            starts.push(self.bytes + scratch.len() as u64);
            let written = line::write(event, &mut scratch);
            if followed {
                let end = self.bytes + scratch.len() as u64;
                let text = Bytes::from(line::frame(event.sequence, &scratch[written.text.clone()]));
                let terminal = written.terminal;
                frames.push(Frame { sequence: event.sequence, text, terminal, end });
            }
        }
        let result = self.write(&scratch);
        if result.is_ok() {
            for start in starts {
                if self.count.is_multiple_of(EVENTS_A_MARK) {
                    self.marks.push(start);
                }
                self.count += 1;
            }
            self.bytes += scratch.len() as u64;
            self.keep(frames);
        }
        if scratch.capacity() <= TAIL_BYTES_MAX {
            self.scratch = scratch;
        }
        result
    }

    /// Lets go of the file and of memory until the next use.
    pub(crate) fn rest(&mut self) {
        self.file = None;
        self.tail = VecDeque::new();
        self.tail_bytes = 0;
        self.scratch = Vec::new();
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        let bytes = self.bytes;
        let file = self.file()?;
        let result = file.write_all(text);
        if result.is_err() {
            // Half a line must not stay: the next one would be glued to it.
            file.set_len(bytes)?;
        }
        result
    }

    fn file(&mut self) -> io::Result<&mut File> {
        if self.file.is_none() {
            self.file = Some(File::options().read(true).append(true).open(&self.path)?);
        }
        Ok(self.file.as_mut().expect("was just opened"))
    }

    fn keep(&mut self, frames: Vec<Frame>) {
        for frame in frames {
            self.tail_bytes += frame.text.len();
            self.tail.push_back(frame);
        }
        while self.tail_bytes > TAIL_BYTES_MAX
            && let Some(oldest) = self.tail.pop_front()
        {
            self.tail_bytes -= oldest.text.len();
        }
    }
}
