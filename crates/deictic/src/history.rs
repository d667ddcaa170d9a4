//! A conversation in memory, with its transcript if it has one, and how much of what the model can read it
//! takes.

use std::io;

use crate::model::{Answer, Block, CallResult, Message};
use crate::transcript::Transcript;

/// Of most texts. It is only used for what was added since a model counted.
const BYTES_A_TOKEN: u64 = 4;

/// Hardly any text has more.
const BYTES_A_TOKEN_MAX: u64 = 5;

#[derive(Debug, Default)]
pub(crate) struct History {
    messages: Vec<Message>,
    transcript: Option<Transcript>,
    /// What the model counted the last time.
    counted: u64,
    /// Bytes that came since.
    added: u64,
}

impl History {
    /// Of an agent that works for another: it ends with its task.
    pub(crate) fn passing() -> Self {
        Self::default()
    }

    pub(crate) fn kept(messages: Vec<Message>, transcript: Transcript) -> Self {
        let added = messages.iter().map(size).sum();
        Self { messages, transcript: Some(transcript), counted: 0, added }
    }

    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// It is in memory also if the disk does not take it.
    pub(crate) fn push(&mut self, message: Message) -> io::Result<()> {
        self.added += size(&message);
        let kept = match &mut self.transcript {
            Some(transcript) => transcript.message(&message),
            None => Ok(()),
        };
        self.messages.push(message);
        kept
    }

    /// Calls without results are refused by every vendor: those that a crash or a full disk cut off have
    /// failed.
    pub(crate) fn close_calls(&mut self) -> io::Result<()> {
        let Some(Message::Assistant { blocks }) = self.messages.last() else { return Ok(()) };
        let results: Vec<CallResult> = blocks
            .iter()
            .filter_map(|block| match block {
                Block::Call { call } => Some(CallResult {
                    id: call.id.clone(),
                    name: call.name.clone(),
                    output: "not known: the session was stopped meanwhile".to_owned(),
                    failed: true,
                }),
                Block::Text { .. } | Block::Thinking { .. } => None,
            })
            .collect();
        if results.is_empty() { Ok(()) } else { self.push(Message::Results { results }) }
    }

    pub(crate) fn answered(&mut self, answer: &Answer) {
        if answer.usage.total() > 0 {
            self.counted = answer.usage.total();
            self.added = 0;
        }
    }

    pub(crate) fn replace(&mut self, messages: Vec<Message>) -> io::Result<()> {
        self.counted = 0;
        self.added = messages.iter().map(size).sum();
        self.messages = messages;
        match &mut self.transcript {
            Some(transcript) => transcript.compacted(&self.messages),
            None => Ok(()),
        }
    }

    pub(crate) fn turn(&mut self, status: &str) -> io::Result<()> {
        match &mut self.transcript {
            Some(transcript) => transcript.turn(status),
            None => Ok(()),
        }
    }

    /// About how many tokens it is. Endpoints that count wrongly, or not at all, are not believed.
    pub(crate) fn tokens(&self) -> u64 {
        let bytes: u64 = self.messages.iter().map(size).sum();
        (self.counted + self.added / BYTES_A_TOKEN).max(bytes / BYTES_A_TOKEN_MAX)
    }
}

/// About how many tokens some messages are.
pub(crate) fn tokens_of(messages: &[Message]) -> u64 {
    messages.iter().map(size).sum::<u64>() / BYTES_A_TOKEN
}

fn size(message: &Message) -> u64 {
    let bytes = match message {
        Message::User { text } => text.len(),
        Message::Assistant { blocks } => blocks
            .iter()
            .map(|block| match block {
                Block::Text { text } | Block::Thinking { text, .. } => text.len(),
                Block::Call { call } => call.name.len() + call.arguments.len(),
            })
            .sum(),
        Message::Results { results } => results.iter().map(|result| result.output.len()).sum(),
    };
    bytes as u64
}
