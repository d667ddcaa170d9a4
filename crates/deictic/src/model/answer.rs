//! What comes of a stream, built piece by piece and bounded.

use serde_json::Value;

use super::{Block, Call};
use crate::fault::Fault;
use crate::voice::new_id;

/// What a model may say in one answer, its arguments of tools included.
const SAID_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Texts, thoughts and calls of one answer.
const BLOCKS_MAX: usize = 256;

/// Something to show at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    Thinking(String),
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Answer {
    pub(crate) blocks: Vec<Block>,
    pub(crate) usage: Usage,
    pub(crate) stop: Stop,
}

/// Why the model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stop {
    /// It is done, or wants its calls made.
    #[default]
    Done,
    /// It was not allowed to say more.
    Length,
    /// It does not want to, or a filter does not.
    Refused,
    /// It could not read more.
    ContextFull,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    /// All that was read, cached or not.
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) cached: u64,
    pub(crate) reasoning: u64,
}

impl Usage {
    pub(crate) fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cached = self.cached.saturating_add(other.cached);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
    }

    pub(crate) fn total(self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

impl Answer {
    pub(crate) fn calls(&self) -> Vec<Call> {
        let calls = self.blocks.iter().filter_map(|block| match block {
            Block::Call { call } => Some(call.clone()),
            Block::Text { .. } | Block::Thinking { .. } => None,
        });
        calls.collect()
    }

    pub(crate) fn text(&self) -> String {
        let texts = self.blocks.iter().filter_map(|block| match block {
            Block::Text { text } => Some(text.as_str()),
            Block::Thinking { .. } | Block::Call { .. } => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }
}

/// Collects an answer. Everything that a decoder takes from a stream goes through here.
#[derive(Debug, Default)]
pub(super) struct Builder {
    answer: Answer,
    bytes: usize,
    /// The vendor's numbers of the blocks.
    keys: Vec<u64>,
}

impl Builder {
    pub(super) fn text(&mut self, text: &str, out: &mut Vec<Piece>) -> Result<(), Fault> {
        if text.is_empty() {
            return Ok(());
        }
        self.count(text.len())?;
        out.push(Piece::Text(text.to_owned()));
        match self.answer.blocks.last_mut() {
            Some(Block::Text { text: last }) => last.push_str(text),
            _ => self.push(u64::MAX, Block::Text { text: text.to_owned() })?,
        }
        Ok(())
    }

    pub(super) fn thinking(&mut self, text: &str, out: &mut Vec<Piece>) -> Result<(), Fault> {
        if text.is_empty() {
            return Ok(());
        }
        self.count(text.len())?;
        out.push(Piece::Thinking(text.to_owned()));
        match self.answer.blocks.last_mut() {
            Some(Block::Thinking { text: last, token: None }) => last.push_str(text),
            _ => {
                let block = Block::Thinking { text: text.to_owned(), token: None };
                self.push(u64::MAX, block)?;
            }
        }
        Ok(())
    }

    /// The vendor's word for the last thought, which closes it.
    pub(super) fn thinking_token(&mut self, token: Value) -> Result<(), Fault> {
        self.count(size_of(&token))?;
        match self.answer.blocks.last_mut() {
            Some(Block::Thinking { token: last @ None, .. }) => {
                *last = Some(token);
                Ok(())
            }
            _ => {
                let block = Block::Thinking { text: String::new(), token: Some(token) };
                self.push(u64::MAX, block)
            }
        }
    }

    /// A call by the vendor's number. One without an id gets one.
    pub(super) fn call(&mut self, key: u64, id: &str, name: &str) -> Result<(), Fault> {
        self.count(id.len() + name.len())?;
        let id = if id.is_empty() { format!("call_{}", new_id()) } else { id.to_owned() };
        let call = Call { id, name: name.to_owned(), arguments: String::new(), token: None };
        self.push(key, Block::Call { call })
    }

    pub(super) fn has_call(&self, key: u64) -> bool {
        self.keys.contains(&key)
    }

    pub(super) fn arguments(&mut self, key: u64, text: &str) -> Result<(), Fault> {
        self.count(text.len())?;
        if let Some(call) = self.call_mut(key) {
            call.arguments.push_str(text);
        }
        Ok(())
    }

    /// All of them at once.
    pub(super) fn set_arguments(&mut self, key: u64, text: &str) -> Result<(), Fault> {
        self.count(text.len())?;
        if let Some(call) = self.call_mut(key) {
            text.clone_into(&mut call.arguments);
        }
        Ok(())
    }

    pub(super) fn call_token(&mut self, key: u64, token: Value) -> Result<(), Fault> {
        self.count(size_of(&token))?;
        if let Some(call) = self.call_mut(key) {
            call.token = Some(token);
        }
        Ok(())
    }

    pub(super) fn usage(&mut self) -> &mut Usage {
        &mut self.answer.usage
    }

    pub(super) fn stop(&mut self, stop: Stop) {
        self.answer.stop = stop;
    }

    pub(super) fn finish(self) -> Answer {
        self.answer
    }

    fn call_mut(&mut self, key: u64) -> Option<&mut Call> {
        let at = self.keys.iter().position(|one| *one == key)?;
        match self.answer.blocks.get_mut(at)? {
            Block::Call { call } => Some(call),
            Block::Text { .. } | Block::Thinking { .. } => None,
        }
    }

    fn push(&mut self, key: u64, block: Block) -> Result<(), Fault> {
        if self.answer.blocks.len() >= BLOCKS_MAX {
            return Err(Fault::Garbage(format!("more than {BLOCKS_MAX} parts")));
        }
        self.answer.blocks.push(block);
        self.keys.push(key);
        Ok(())
    }

    fn count(&mut self, bytes: usize) -> Result<(), Fault> {
        self.bytes += bytes;
        if self.bytes > SAID_BYTES_MAX {
            return Err(Fault::TooLong { what: "content", bytes_max: SAID_BYTES_MAX });
        }
        Ok(())
    }
}

fn size_of(value: &Value) -> usize {
    value.to_string().len()
}

/// The text at a key; empty when there is none.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
