//! The seam to models: a conversation in our own form, and one module a wire format.
//!
//! The vendors' official formats are written here instead of taken from a multi-provider crate. `genai`
//! (0.7) is kept, streams tool calls and takes other endpoints, but what it buffers of a stream has
//! no bound (`WebStream::partial_message`, bodies of errors), and a hostile model is normal input here; it
//! also brings reqwest beside the HTTP client that the daemon has, into a program that every
//! sandbox gets. `rig-core` adds its own agents, stores and retries on top of the same. What is needed
//! is a request and a decoder for each of four formats, which is what these modules are.
//!
//! Decoders do no I/O: events in, pieces out, and at the end an [`Answer`]. [`Client`] reads.

mod answer;
mod anthropic;
mod chat;
mod client;
mod endpoint;
mod google;
pub(crate) mod http;
mod refusal;
mod responses;
pub(crate) mod sse;
#[cfg(test)]
mod tests;

pub(crate) use self::answer::{Answer, Piece, Stop, Usage};
pub(crate) use self::client::Client;
pub(crate) use self::endpoint::{Endpoint, is_secret};
pub use self::endpoint::{Environment, Vendor};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One entry of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub(crate) enum Message {
    User {
        text: String,
    },
    Assistant {
        blocks: Vec<Block>,
    },
    /// What the calls of the message before came to, one each.
    Results {
        results: Vec<CallResult>,
    },
}

/// A part of what a model said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Block {
    Text {
        text: String,
    },
    /// `token` is what the vendor wants back, as it came.
    Thinking {
        text: String,
        token: Option<Value>,
    },
    Call {
        call: Call,
    },
}

/// A tool that a model wants to use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON, as text, as the model wrote it.
    pub(crate) arguments: String,
    pub(crate) token: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CallResult {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) output: String,
    pub(crate) failed: bool,
}

/// A tool as a model is told of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ToolSpec {
    pub(crate) name: String,
    pub(crate) description: String,
    /// JSON Schema of an object.
    pub(crate) parameters: Value,
}

/// What a model is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) system: &'a str,
    pub(crate) messages: &'a [Message],
    pub(crate) tools: &'a [ToolSpec],
    pub(crate) output_tokens: u64,
}

impl Call {
    /// Its arguments, if they are an object. None at all are an empty one.
    pub(crate) fn parsed(&self) -> Result<Value, String> {
        let text = self.arguments.trim();
        if text.is_empty() {
            return Ok(Value::Object(serde_json::Map::new()));
        }
        match serde_json::from_str(text) {
            Ok(value @ Value::Object(_)) => Ok(value),
            Ok(_) => Err("the arguments are not a JSON object".to_owned()),
            Err(error) => Err(format!("the arguments are not JSON: {error}")),
        }
    }

    /// For wire formats that want an object whatever the model wrote.
    fn object(&self) -> Value {
        self.parsed().unwrap_or_else(|_| serde_json::json!({ "unreadable": self.arguments }))
    }
}
