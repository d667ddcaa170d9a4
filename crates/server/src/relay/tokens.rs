//! How many tokens a call used and how many tool calls the model made in it, read off the answer as it passes: a
//! stream of events or one document, in the forms of Anthropic, `OpenAI` (both APIs, and `DeepSeek`) and
//! Google. All of them count tokens up to a total within an answer, so the largest number is the one that
//! holds.
//!
//! It is tolerant, because what cannot be read is only not counted, and needs the same memory for an answer of
//! any length, because an answer is somebody else's input.

mod scan;

use axum::http::{HeaderMap, StatusCode, header};
use store::Tokens;

use self::scan::{Scanner, Seen};

/// More than any call uses; a larger number is made up.
const TOKENS_MAX: u64 = 100_000_000;
const TOOL_CALLS_MAX: u64 = 10_000;
/// What a line of an event begins with.
const DATA: &[u8] = b"data:";

/// Looks at one answer.
pub(super) struct Meter {
    form: Form,
    scanner: Scanner,
    tally: Tally,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// So many bytes of the line are those of [`DATA`]; `None` for another line.
    Events(Option<usize>),
    Document,
    Other,
}

#[derive(Debug, Default)]
struct Tally {
    used: Tokens,
    /// Of the object that says it, so far.
    input: u64,
    output: u64,
    /// Of the tool call that was seen last: some gateways repeat it with every piece.
    call_id: String,
}

impl Meter {
    pub(super) fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().to_ascii_lowercase();
        let form = match status.is_success() && !headers.contains_key(header::CONTENT_ENCODING) {
            true if kind.starts_with("text/event-stream") => Form::Events(Some(0)),
            true if kind.starts_with("application/json") => Form::Document,
            true | false => Form::Other,
        };
        Self { form, scanner: Scanner::default(), tally: Tally::default() }
    }

    /// The next piece of the answer.
    pub(super) fn see(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match self.form {
                Form::Other => return,
                Form::Document => self.read(*byte),
                Form::Events(_) if *byte == b'\n' => {
                    self.scanner.reset();
                    self.form = Form::Events(Some(0));
                }
                Form::Events(Some(matched)) if matched < DATA.len() => {
                    self.form = Form::Events((DATA[matched] == *byte).then_some(matched + 1));
                }
                Form::Events(Some(_)) => self.read(*byte),
                Form::Events(None) => {}
            }
        }
    }

    /// What the answer said, as far as it came.
    pub(super) fn finish(&mut self) -> Tokens {
        self.form = Form::Other;
        self.tally.used
    }

    fn read(&mut self, byte: u8) {
        let tally = &mut self.tally;
        self.scanner.read(byte, &mut |path, seen| tally.see(path, seen));
    }
}

impl Tally {
    fn see(&mut self, path: &[Option<&str>], seen: Seen<'_>) {
        // Google sends a list when it does not stream.
        let path = path.strip_prefix(&[None]).unwrap_or(path);
        let path = match path {
            [Some("message" | "response"), rest @ ..] => rest,
            all => all,
        };
        match (path, seen) {
            ([Some("usage" | "usageMetadata")], Seen::Opened) => (self.input, self.output) = (0, 0),
            ([Some("usage" | "usageMetadata"), Some(name)], Seen::Number(count)) => {
                self.add(name, count);
            }
            ([Some("usage" | "usageMetadata")], Seen::Closed) => {
                self.used.input = self.used.input.max(self.input.min(TOKENS_MAX));
                self.used.output = self.used.output.max(self.output.min(TOKENS_MAX));
            }
            (path, seen) if self.is_call(path, seen) => {
                self.used.tool_calls = (self.used.tool_calls + 1).min(TOOL_CALLS_MAX);
            }
            _ => {}
        }
    }

    fn add(&mut self, name: &str, count: u64) {
        let sum = match name {
            // What a cache held was sent to the model too; only Anthropic leaves it out of the sum.
            "input_tokens"
            | "cache_creation_input_tokens"
            | "cache_read_input_tokens"
            | "prompt_tokens"
            | "promptTokenCount"
            | "toolUsePromptTokenCount" => &mut self.input,
            "output_tokens"
            | "completion_tokens"
            | "candidatesTokenCount"
            | "thoughtsTokenCount" => &mut self.output,
            _ => return,
        };
        *sum = sum.saturating_add(count);
    }

    /// Whether this value is there once for each call of a tool.
    fn is_call(&mut self, path: &[Option<&str>], seen: Seen<'_>) -> bool {
        match (path, seen) {
            // Anthropic, streamed and not.
            (
                [Some("content_block"), Some("type")] | [Some("content"), None, Some("type")],
                Seen::Text("tool_use"),
            ) => true,
            // OpenAI's older API, and DeepSeek.
            (
                [
                    Some("choices"),
                    None,
                    Some("delta" | "message"),
                    Some("tool_calls"),
                    None,
                    Some("id"),
                ],
                Seen::Text(id),
            ) => {
                let new = !id.is_empty() && id != self.call_id;
                id.clone_into(&mut self.call_id);
                new
            }
            // OpenAI's newer one: whole answers, and the last event of a stream.
            (
                [Some("output"), None, Some("type")],
                Seen::Text("function_call" | "custom_tool_call" | "local_shell_call"),
            ) => true,
            // Google.
            (
                [
                    Some("candidates"),
                    None,
                    Some("content"),
                    Some("parts"),
                    None,
                    Some("functionCall"),
                ],
                Seen::Opened,
            ) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
