//! A session on disk: one JSON value a line, only ever appended. What a crash tore off at its end is not
//! there; everything before it is. One process at a time has it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::model::{Block, Message};
use crate::voice::new_id;

/// More than any session that was made shorter in time comes to.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;

const LINE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// What an id begins with.
const PREFIX: &str = "dei_";

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Entry {
    /// The first: whose words its tokens are.
    Opened {
        vendor: String,
        model: String,
    },
    Message {
        message: Message,
    },
    /// What the conversation is from here on.
    Compacted {
        messages: Vec<Message>,
    },
    /// A turn is over.
    Turn {
        status: String,
    },
}

#[derive(Debug)]
pub(crate) struct Transcript {
    id: String,
    file: File,
    /// Of whole lines.
    length: u64,
    /// Lines that the disk did not take.
    behind: Vec<u8>,
}

impl Transcript {
    pub(crate) fn create(directory: &Path, vendor: &str, model: &str) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let id = format!("{PREFIX}{}", new_id());
        let path = path_of(directory, &id);
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        lock(&file)?;
        let mut transcript = Self { id, file, length: 0, behind: Vec::new() };
        let (vendor, model) = (vendor.to_owned(), model.to_owned());
        transcript.append(&Entry::Opened { vendor, model })?;
        Ok(transcript)
    }

    /// With what was said, ready to go on. Thoughts of another vendor are left out: only it can read them.
    pub(crate) fn open(
        directory: &Path,
        id: &str,
        vendor: &str,
        model: &str,
    ) -> io::Result<(Self, Vec<Message>)> {
        let known = id.strip_prefix(PREFIX).is_some_and(|rest| {
            !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
        });
        if !known {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the id of a session"));
        }
        let file = OpenOptions::new().read(true).write(true).open(path_of(directory, id))?;
        lock(&file)?;
        let (mut messages, wrote, length) = read(&file)?;
        file.set_len(length)?;
        if wrote != vendor {
            forget_thoughts(&mut messages);
        }
        let mut transcript = Self { id: id.to_owned(), file, length, behind: Vec::new() };
        if wrote != vendor {
            let (vendor, model) = (vendor.to_owned(), model.to_owned());
            transcript.append(&Entry::Opened { vendor, model })?;
            transcript.compacted(&messages)?;
        }
        Ok((transcript, messages))
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn message(&mut self, message: &Message) -> io::Result<()> {
        self.append(&Entry::Message { message: message.clone() })
    }

    pub(crate) fn compacted(&mut self, messages: &[Message]) -> io::Result<()> {
        self.append(&Entry::Compacted { messages: messages.to_vec() })
    }

    /// The turn is over, and what was said in it is on the disk.
    pub(crate) fn turn(&mut self, status: &str) -> io::Result<()> {
        self.append(&Entry::Turn { status: status.to_owned() })?;
        self.file.sync_data()
    }

    /// All of a line or nothing of it. What did not fit is tried again with the next one.
    fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let bytes = (self.behind.len() + line.len()) as u64;
        if self.length + bytes > FILE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the transcript is full"));
        }
        self.behind.extend(line);
        if let Err(error) = self.file.write_all_at(&self.behind, self.length) {
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += bytes;
        self.behind = Vec::new();
        Ok(())
    }
}

fn path_of(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.jsonl"))
}

fn lock(file: &File) -> io::Result<()> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        io::Error::new(io::ErrorKind::ResourceBusy, "another process has this session")
    })
}

/// The conversation, the vendor of its last words, and the length of whole lines.
fn read(file: &File) -> io::Result<(Vec<Message>, String, u64)> {
    let mut reader = BufReader::new(file);
    let (mut messages, mut vendor, mut length) = (Vec::new(), String::new(), 0);
    loop {
        let mut line = Vec::new();
        let count = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        // A torn one is the last.
        if line.last() != Some(&b'\n') {
            return Ok((messages, vendor, length));
        }
        let entry = serde_json::from_slice(&line).map_err(|error| {
            let at = format!("the transcript cannot be read at byte {length}: {error}");
            io::Error::new(io::ErrorKind::InvalidData, at)
        })?;
        match entry {
            Entry::Opened { vendor: wrote, .. } => vendor = wrote,
            Entry::Message { message } => messages.push(message),
            Entry::Compacted { messages: instead } => messages = instead,
            Entry::Turn { .. } => {}
        }
        length += count as u64;
    }
}

fn forget_thoughts(messages: &mut [Message]) {
    for message in messages {
        if let Message::Assistant { blocks } = message {
            blocks.retain(|block| !matches!(block, Block::Thinking { .. }));
            for block in blocks {
                if let Block::Call { call } = block {
                    call.token = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
