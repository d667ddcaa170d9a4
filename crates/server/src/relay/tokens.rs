//! How many tokens a call used, read off the answer as it passes: a stream of events or one document, in
//! the forms of Anthropic, `OpenAI` (both APIs, and `DeepSeek`) and Google. All of them count up to a total
//! within an answer, so the largest number is the one that holds.
//!
//! It is tolerant, because what cannot be read is only not counted, and bounded, because an answer is
//! somebody else's input.

use axum::http::{HeaderMap, StatusCode, header};
use serde_json::Value;
use store::Tokens;

/// A longer line, or document, is not looked at.
const LOOKED_AT_MAX: usize = 1 << 20;
/// More than any call uses; a larger number is made up.
const TOKENS_MAX: u64 = 100_000_000;

/// Looks at one answer.
pub(super) struct Meter {
    form: Form,
    /// A line that has begun, or the document so far.
    kept: Vec<u8>,
    /// It is too long.
    skipping: bool,
    tokens: Tokens,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Events,
    Document,
    Other,
}

impl Meter {
    pub(super) fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().to_ascii_lowercase();
        let form = match status.is_success() && !headers.contains_key(header::CONTENT_ENCODING) {
            true if kind.starts_with("text/event-stream") => Form::Events,
            true if kind.starts_with("application/json") => Form::Document,
            true | false => Form::Other,
        };
        Self { form, kept: Vec::new(), skipping: false, tokens: Tokens::default() }
    }

    /// The next piece of the answer.
    pub(super) fn see(&mut self, mut bytes: &[u8]) {
        match self.form {
            Form::Other => {}
            Form::Document => self.keep(bytes),
            Form::Events => {
                while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
                    self.keep(&bytes[..end]);
                    self.end_line();
                    bytes = &bytes[end + 1..];
                }
                self.keep(bytes);
            }
        }
    }

    /// What the answer said, as far as it came.
    pub(super) fn finish(&mut self) -> Tokens {
        match self.form {
            Form::Events => self.end_line(),
            Form::Document if !self.skipping => self.read(0),
            Form::Document | Form::Other => {}
        }
        self.form = Form::Other;
        self.tokens
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.kept.len() + bytes.len() > LOOKED_AT_MAX {
            self.skipping = true;
            self.kept = Vec::new();
        }
        if !self.skipping {
            self.kept.extend_from_slice(bytes);
        }
    }

    fn end_line(&mut self) {
        if !self.skipping && self.kept.starts_with(b"data:") {
            self.read("data:".len());
        }
        self.kept.clear();
        self.skipping = false;
    }

    fn read(&mut self, from: usize) {
        let text = &self.kept[from..];
        // Of most events it is not worth while.
        if !text.windows(4).any(|four| four == b"sage") {
            return;
        }
        let Ok(value) = serde_json::from_slice::<Value>(text) else { return };
        match &value {
            Value::Array(all) => all.iter().for_each(|one| self.count(one)),
            _ => self.count(&value),
        }
    }

    fn count(&mut self, value: &Value) {
        for holder in [value, &value["message"], &value["response"]] {
            for usage in [&holder["usage"], &holder["usageMetadata"]] {
                let sum = |names: &[&str]| {
                    let counts = names.iter().filter_map(|name| usage[*name].as_u64());
                    counts.fold(0_u64, u64::saturating_add).min(TOKENS_MAX)
                };
                // What a cache held was sent to the model too; only Anthropic leaves it out of the sum.
                let input = sum(&[
                    "input_tokens",
                    "cache_creation_input_tokens",
                    "cache_read_input_tokens",
                    "prompt_tokens",
                    "promptTokenCount",
                    "toolUsePromptTokenCount",
                ]);
                let output = sum(&[
                    "output_tokens",
                    "completion_tokens",
                    "candidatesTokenCount",
                    "thoughtsTokenCount",
                ]);
                self.tokens.input = self.tokens.input.max(input);
                self.tokens.output = self.tokens.output.max(output);
            }
        }
    }
}

#[cfg(test)]
mod tests;
