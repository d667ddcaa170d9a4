//! What older versions do otherwise.

use serde_json::{Value, json};

use super::Decoder;
use crate::agents::decoded::Decoded;
use crate::conversion::Conversion;

/// Items that are complete, errors, and how the turn ended.
fn decode(events: &[Value]) -> Vec<String> {
    let mut decoder = Decoder::new("ses_1");
    decoder.prompting();
    let decoded = events.iter().flat_map(|event| decoder.decode(event)).collect::<Vec<_>>();
    let shown = decoded.into_iter().filter_map(|one| match one {
        Decoded::Record(Conversion::ItemCompleted(item)) => {
            Some(serde_json::to_string(&item.content).unwrap())
        }
        Decoded::Record(Conversion::Error(error)) => error.code,
        Decoded::TurnOver(summary) => summary["status"].as_str().map(str::to_owned),
        _ => None,
    });
    shown.collect()
}

fn event(kind: &str, mut properties: Value) -> Value {
    properties["sessionID"] = "ses_1".into();
    json!({"type": kind, "properties": properties})
}

fn status(of: &str) -> Value {
    event("session.status", json!({"status": {"type": of}}))
}

#[test]
fn a_text_that_is_trimmed_at_its_end_is_what_its_deltas_said() {
    let part = |text: &str, time: Value| {
        let part = json!({"id": "p", "messageID": "m", "type": "text", "text": text, "time": time});
        event("message.part.updated", json!({"part": part}))
    };
    let delta = json!({"partID": "p", "field": "text", "delta": "ran\n"});
    let shown = decode(&[
        status("busy"),
        event(
            "message.updated",
            json!({"info": {"id": "m", "role": "assistant", "time": {"completed": 1}}}),
        ),
        part("", json!({"start": 1})),
        event("message.part.delta", delta),
        part("ran", json!({"start": 1, "end": 2})),
        status("idle"),
    ]);
    assert_eq!(shown, [r#"[{"type":"text","text":"ran\n"}]"#, "completed"]);
}

#[test]
fn a_turn_without_an_answer_has_failed() {
    let user = event("message.updated", json!({"info": {"id": "u", "role": "user"}}));
    assert_eq!(decode(&[user, status("busy"), status("idle")]), ["no_answer", "failed"]);
}
