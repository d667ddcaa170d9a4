//! From decoded lines into the log.

use serde_json::Value;

use super::decoded::Decoded;
use crate::conversion::{Conversion, Raw};
use crate::process::Line;
use crate::recorder::Recorder;

/// What is left to do after a line was recorded.
#[derive(Debug, Default)]
pub(super) struct Applied {
    pub(super) send: Vec<Value>,
    pub(super) turn_over: bool,
    pub(super) native_id: Option<String>,
}

/// Records what a line means, with the line as its cause.
pub(super) fn apply(recorder: &Recorder, decoded: Vec<Decoded>, raw: Option<&Raw>) -> Applied {
    let mut applied = Applied::default();
    for one in decoded {
        match one {
            Decoded::Record(conversion) => match raw {
                Some(raw) => recorder.record_raw(conversion, raw),
                None => recorder.record(conversion),
            },
            Decoded::NativeId(id) => {
                recorder.native_session_id(&id);
                applied.native_id = Some(id);
            }
            Decoded::Send(value) => applied.send.push(value),
            Decoded::TurnOver(summary) => {
                recorder.turn_completed(Some(summary.to_string()), raw);
                applied.turn_over = true;
            }
        }
    }
    applied
}

/// A line as JSON. What is no JSON is recorded as such, and is nothing else.
pub(super) fn parse(recorder: &Recorder, agent: &str, line: Line) -> Option<(Value, Raw)> {
    let unparsed = |error: String, text: &str| {
        let location = agent.to_owned();
        recorder.record_raw(Conversion::Unparsed { error, location }, &Raw::of_text(text));
    };
    match line {
        Line::Text(text) if text.trim().is_empty() => None,
        Line::Text(text) => match serde_json::from_str(&text) {
            Ok(value) => {
                let raw = Raw::from_line(&text).unwrap_or_else(|| Raw::from(&value));
                Some((value, raw))
            }
            Err(error) => {
                unparsed(format!("not JSON: {error}"), &text);
                None
            }
        },
        Line::TooLong => {
            unparsed("a line is too long".to_owned(), "");
            None
        }
    }
}
