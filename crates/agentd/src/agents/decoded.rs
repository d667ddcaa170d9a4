//! What the decoders of all agents have in common: their result, and careful looks into JSON whose
//! shape belongs to somebody else and changes with every version.

use serde_json::Value;

use crate::conversion::Conversion;

/// What one line of an agent means. Decoders do no I/O, so that recordings test them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Decoded {
    Record(Conversion),
    /// The agent's own id of the session.
    NativeId(String),
    /// To be sent to the agent at once: nobody has to be asked.
    Send(Value),
    /// The turn is over; its summary.
    TurnOver(Value),
}

impl From<Conversion> for Decoded {
    fn from(conversion: Conversion) -> Self {
        Self::Record(conversion)
    }
}

/// What is shown of something long that is only shown.
const SHOWN_BYTES_MAX: usize = 4 * 1024;

/// How many calls, permissions or questions of a session may be open. An agent with more is broken.
pub(crate) const OPEN_MAX: usize = 512;

/// The text at a key; empty when there is none.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The text at a key, if it is there and says something.
pub(crate) fn some_text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// The list at a key; empty when there is none.
pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(crate) fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// A value as a detail of a status: JSON, not longer than a reader wants.
pub(crate) fn detail(value: &Value) -> Option<String> {
    if value.is_null() {
        return None;
    }
    let mut text = value.to_string();
    if text.len() > SHOWN_BYTES_MAX {
        let end = (0..=SHOWN_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    Some(text)
}

/// An object with some keys of another.
pub(crate) fn only(value: &Value, keys: &[&str]) -> Value {
    let found = keys.iter().filter_map(|key| {
        let one = value.get(*key).filter(|one| !one.is_null())?;
        Some(((*key).to_owned(), one.clone()))
    });
    Value::Object(found.collect())
}
