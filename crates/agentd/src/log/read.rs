//! Reading a log: from the frames in memory if they are there, else from the file, a bounded piece
//! at a time.

use std::io;
use std::os::unix::fs::FileExt as _;

use super::{EVENTS_A_MARK, Log, line};

/// What is read of the file at once, and about what a piece holds.
const READ_BYTES: usize = 64 * 1024;

/// Where a reader is: after which event, and where the next one begins in the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
}

/// What a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) raw: bool,
    pub(crate) form: Form,
    pub(crate) events_max: u64,
    /// Ends with the first event that ends a `/messages/stream`.
    pub(crate) until_terminal: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Frames of server-sent events.
    Stream,
    /// Elements of a JSON array, each with a comma before it.
    Array,
}

/// Some events.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) text: Vec<u8>,
    pub(crate) count: u64,
    /// The last one ends a `/messages/stream`.
    pub(crate) terminal: bool,
}

struct FoundLine {
    end: u64,
}

impl Log {
    /// Where a reader begins who has seen the events up to `sequence`.
    pub(crate) fn seek(&mut self, sequence: u64) -> io::Result<Cursor> {
        if sequence >= self.count {
            return Ok(Cursor { sequence, offset: self.bytes });
        }
        let mark = sequence / EVENTS_A_MARK;
        let index = usize::try_from(mark).unwrap_or(usize::MAX);
        let offset = self.marks.get(index).copied().unwrap_or(0);
        let mut cursor = Cursor { sequence: mark * EVENTS_A_MARK, offset };
        while cursor.sequence < sequence {
            let Some(found) = self.read_line(&cursor)? else { break };
            cursor = Cursor { sequence: cursor.sequence + 1, offset: found.end };
        }
        Ok(cursor)
    }

    /// The next events after the cursor, which is moved. Nothing if there are none.
    pub(crate) fn read(&mut self, cursor: &mut Cursor, shape: Shape) -> io::Result<Piece> {
        let mut piece = Piece::default();
        if cursor.sequence >= self.count || shape.events_max == 0 {
            return Ok(piece);
        }
        if shape.form == Form::Stream && !shape.raw && self.read_tail(cursor, shape, &mut piece) {
            return Ok(piece);
        }
        self.read_file(cursor, shape, &mut piece)?;
        Ok(piece)
    }

    /// `false` if what comes next is not there any more.
    fn read_tail(&self, cursor: &mut Cursor, shape: Shape, piece: &mut Piece) -> bool {
        let Some(oldest) = self.tail.front() else { return false };
        if oldest.sequence > cursor.sequence + 1 {
            return false;
        }
        let skip = usize::try_from(cursor.sequence + 1 - oldest.sequence).unwrap_or(usize::MAX);
        for frame in self.tail.iter().skip(skip) {
            piece.text.extend_from_slice(&frame.text);
            piece.count += 1;
            *cursor = Cursor { sequence: frame.sequence, offset: frame.end };
            piece.terminal = frame.terminal;
            if piece.is_full(shape) {
                break;
            }
        }
        true
    }

    fn read_file(
        &mut self,
        cursor: &mut Cursor,
        shape: Shape,
        piece: &mut Piece,
    ) -> io::Result<()> {
        let mut block = Vec::new();
        let mut at = 0;
        while cursor.sequence < self.count {
            let rest = &block[at..];
            let Some(length) = memchr(rest) else {
                block.drain(..at);
                at = 0;
                self.read_more(cursor.offset, &mut block)?;
                continue;
            };
            let line = &rest[..length];
            let taken = line::take(line).ok_or_else(damaged)?;
            let sequence = cursor.sequence + 1;
            piece.add(sequence, &taken, shape);
            at += length + 1;
            *cursor = Cursor { sequence, offset: cursor.offset + length as u64 + 1 };
            if piece.is_full(shape) {
                break;
            }
        }
        Ok(())
    }

    /// The one line at the cursor; `None` at the end.
    fn read_line(&mut self, cursor: &Cursor) -> io::Result<Option<FoundLine>> {
        let mut block = Vec::new();
        loop {
            if let Some(length) = memchr(&block) {
                let end = cursor.offset + length as u64 + 1;
                return Ok(Some(FoundLine { end }));
            }
            match self.read_more(cursor.offset, &mut block) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Appends what follows in the file. `block` began at `start`.
    fn read_more(&mut self, start: u64, block: &mut Vec<u8>) -> io::Result<()> {
        let from = block.len();
        let left = self.bytes.saturating_sub(start + from as u64);
        let wanted = READ_BYTES.max(from).min(usize::try_from(left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        block.resize(from + wanted, 0);
        self.file()?.read_exact_at(&mut block[from..], start + from as u64)
    }
}

impl Piece {
    fn add(&mut self, sequence: u64, taken: &line::Taken<'_>, shape: Shape) {
        let pieces: &[&[u8]] = if shape.raw { &[taken.whole] } else { &[taken.text, b"null}"] };
        match shape.form {
            Form::Stream => line::frame_of(sequence, pieces, &mut self.text),
            Form::Array => {
                if !self.text.is_empty() {
                    self.text.push(b',');
                }
                for piece in pieces {
                    self.text.extend_from_slice(piece);
                }
            }
        }
        self.count += 1;
        self.terminal = taken.terminal;
    }

    fn is_full(&self, shape: Shape) -> bool {
        self.text.len() >= READ_BYTES
            || self.count >= shape.events_max
            || (shape.until_terminal && self.terminal)
    }
}

fn memchr(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n')
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the log is damaged")
}
