//! Events of a daemon as events of a session, and the few that are the server's own. Pure.

use ::events::{
    AgentUnparsedData, ContentPart, ErrorData, EventSource, ItemKind, RUNTIME_EVENT, SESSION_IDLE,
    SessionEndReason, SessionEndedData, TURN_COMPLETED, TerminatedBy, UniversalEvent,
    UniversalEventData, UniversalItem,
};
use jiff::Timestamp;
use model::SessionId;
use serde_json::Value;
use store::SessionUse;

use super::frames::{FRAME_BYTES_MAX, Frame};

/// An event that has no number yet.
pub(super) struct Next {
    /// How far the daemon's stream is read with it.
    pub(super) cursor: u64,
    pub(super) event: UniversalEvent,
}

/// What a frame after `cursor` says; `None` for what was read before. What cannot be read is an event
/// that says so: nothing is left out without a word.
pub(super) fn read(frame: Frame, cursor: u64) -> Option<Next> {
    let id = frame.id.unwrap_or(cursor + 1);
    if id <= cursor {
        return None;
    }
    let event = match frame.data {
        None => unparsed(format!("an event of more than {FRAME_BYTES_MAX} bytes")),
        Some(data) => match serde_json::from_slice::<UniversalEvent>(&data) {
            Ok(event) => UniversalEvent { raw: None, ..event },
            // Its words would repeat what cannot be read.
            Err(error) => unparsed(format!("not an event: {:?}", error.classify())),
        },
    };
    Some(Next { cursor: id, event })
}

/// With its number, as clients get it.
pub(super) fn write(mut event: UniversalEvent, session: SessionId, sequence: u64) -> String {
    event.event_id = format!("evt_{sequence}");
    event.sequence = sequence;
    event.session_id = session.to_string();
    serde_json::to_string(&event).unwrap_or_default()
}

/// What the server says itself, when the session ends under the agent.
pub(super) fn failed(code: &str, message: &str) -> UniversalEvent {
    let (message, code) = (message.to_owned(), Some(code.to_owned()));
    ours(UniversalEventData::Error(ErrorData { message, code, details: None }))
}

pub(super) fn ended(reason: SessionEndReason) -> UniversalEvent {
    let terminated_by = TerminatedBy::Daemon;
    ours(UniversalEventData::SessionEnded(SessionEndedData { reason, terminated_by }))
}

/// How the agent says that it has ended.
pub(super) fn end_of(event: &UniversalEvent) -> Option<SessionEndReason> {
    match &event.data {
        UniversalEventData::SessionEnded(data) => Some(data.reason),
        _ => None,
    }
}

/// Whether a turn ends with it.
pub(super) fn ends_turn(event: &UniversalEvent) -> bool {
    labels(event).any(|(label, _)| label == TURN_COMPLETED || label == SESSION_IDLE)
}

/// What it says of tokens and tool calls (ruling 31).
pub(super) fn used(event: &UniversalEvent) -> SessionUse {
    let mut used = SessionUse::default();
    for (_, detail) in labels(event).filter(|(label, _)| *label == RUNTIME_EVENT) {
        let Some(detail) = detail.and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
            continue;
        };
        // One turn uses no more; what an agent says is not believed beyond it.
        let count = |name: &str| detail[name].as_u64().unwrap_or_default().min(1 << 40);
        used.input_tokens += count("input_tokens");
        used.output_tokens += count("output_tokens");
        used.tool_calls += count("tool_calls");
    }
    used
}

/// The file of an image that the agent shows.
pub(super) fn image_of(event: &UniversalEvent) -> Option<&str> {
    completed(event)?.content.iter().find_map(|part| match part {
        ContentPart::Image { path, .. } => Some(path.as_str()),
        _ => None,
    })
}

fn completed(event: &UniversalEvent) -> Option<&UniversalItem> {
    match &event.data {
        UniversalEventData::ItemCompleted(data) => Some(&data.item),
        _ => None,
    }
}

fn labels(event: &UniversalEvent) -> impl Iterator<Item = (&str, Option<&str>)> {
    let item = completed(event).filter(|item| item.kind == ItemKind::Status);
    item.into_iter().flat_map(|item| &item.content).filter_map(|part| match part {
        ContentPart::Status { label, detail } => Some((label.as_str(), detail.as_deref())),
        _ => None,
    })
}

fn unparsed(error: String) -> UniversalEvent {
    let location = "daemon".to_owned();
    ours(UniversalEventData::AgentUnparsed(AgentUnparsedData { error, location, raw_hash: None }))
}

fn ours(data: UniversalEventData) -> UniversalEvent {
    UniversalEvent {
        event_id: String::new(),
        sequence: 0,
        time: Timestamp::now().to_string(),
        session_id: String::new(),
        native_session_id: None,
        synthetic: true,
        source: EventSource::Daemon,
        data,
        raw: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn frame(id: u64, data: &str) -> Frame {
        Frame { id: Some(id), data: Some(data.into()) }
    }

    fn status(label: &str, detail: Option<&str>) -> String {
        json!({ "event_id": "evt_9", "sequence": 9, "time": "2026-01-02T03:04:05Z",
            "session_id": "theirs", "native_session_id": "n", "synthetic": false, "source": "agent",
            "type": "item.completed", "data": { "item": { "item_id": "itm_1",
            "native_item_id": null, "parent_id": null, "kind": "status", "role": "system",
            "status": "completed", "content": [
                { "type": "status", "label": label, "detail": detail }] } }, "raw": { "big": 1 } })
        .to_string()
    }

    #[test]
    fn an_event_gets_our_numbers_and_nothing_raw() {
        let next = read(frame(9, &status("turn.completed", None)), 8).unwrap();
        assert_eq!(next.cursor, 9);
        assert!(ends_turn(&next.event));
        let id = SessionId::generate();
        let written: Value = serde_json::from_str(&write(next.event, id, 41)).unwrap();
        assert_eq!(written["sequence"], 41);
        assert_eq!(written["event_id"], "evt_41");
        assert_eq!(written["session_id"], id.to_string());
        assert_eq!(written["raw"], Value::Null);
        assert!(read(frame(8, "{}"), 8).is_none(), "it was read before");
    }

    #[test]
    fn what_cannot_be_read_is_told_without_being_repeated() {
        for data in [Some(b"{\"secret\": 1".to_vec()), Some(b"{}".to_vec()), None] {
            let next = read(Frame { id: Some(3), data }, 1).unwrap();
            assert_eq!(next.cursor, 3);
            assert!(matches!(next.event.data, UniversalEventData::AgentUnparsed(_)));
            assert!(!write(next.event, SessionId::generate(), 1).contains("secret"));
        }
    }

    #[test]
    fn use_is_counted_from_what_says_so() {
        let detail = r#"{"type":"usage","input_tokens":20,"output_tokens":14,"tool_calls":2}"#;
        let next = read(frame(9, &status("runtime_event", Some(detail))), 0).unwrap();
        let expected = SessionUse { input_tokens: 20, output_tokens: 14, tool_calls: 2 };
        assert_eq!(used(&next.event), expected);
        for (label, detail) in [("other", Some(detail)), ("runtime_event", Some("no JSON"))] {
            let next = read(frame(9, &status(label, detail)), 0).unwrap();
            assert_eq!(used(&next.event), SessionUse::default());
        }
        assert_eq!(used(&failed("oom", "x")), SessionUse::default());
    }
}
