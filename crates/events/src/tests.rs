//! The JSON of events: what is null, and how `data` is chosen.

use serde_json::json;

use crate::{
    ContentPart, EventSource, ItemDeltaData, UniversalEvent, UniversalEventData, UniversalEventType,
};

fn event(data: UniversalEventData) -> UniversalEvent {
    UniversalEvent {
        event_id: "evt_7".into(),
        sequence: 7,
        time: "2026-01-02T03:04:05Z".into(),
        session_id: "s".into(),
        native_session_id: None,
        synthetic: true,
        source: EventSource::Daemon,
        data,
        raw: None,
    }
}

#[test]
fn optional_fields_are_null_and_in_order() {
    let data = ItemDeltaData { item_id: "itm_1".into(), native_item_id: None, delta: "x".into() };
    let text = serde_json::to_string(&event(UniversalEventData::ItemDelta(data))).unwrap();
    assert_eq!(
        text,
        r#"{"event_id":"evt_7","sequence":7,"time":"2026-01-02T03:04:05Z","session_id":"s","native_session_id":null,"synthetic":true,"source":"daemon","type":"item.delta","data":{"item_id":"itm_1","native_item_id":null,"delta":"x"},"raw":null}"#
    );
}

#[test]
fn data_is_chosen_by_type() {
    // Every field of `session.started` is optional, so that a guess from the fields would take it
    // for anything.
    for (kind, data) in [
        ("session.started", json!({"metadata": {"a": 1}})),
        ("session.ended", json!({"reason": "terminated", "terminated_by": "daemon"})),
        (
            "item.completed",
            json!({"item": {"item_id": "itm_1", "native_item_id": null, "parent_id": null,
            "kind": "tool_call", "role": null, "content": [{"type": "file_ref", "path": "p",
            "action": "patch", "diff": null}], "status": "failed"}}),
        ),
        ("error", json!({"message": "m", "code": null, "details": null})),
        (
            "permission.resolved",
            json!({"permission_id": "1", "action": "a", "status": "approved",
            "metadata": null}),
        ),
        (
            "question.requested",
            json!({"question_id": "1", "prompt": "p", "options": ["a"],
            "response": null, "status": "requested"}),
        ),
        ("agent.unparsed", json!({"error": "e", "location": "l", "raw_hash": null})),
    ] {
        let mut value = serde_json::to_value(event(UniversalEventData::ItemDelta(ItemDeltaData {
            item_id: String::new(),
            native_item_id: None,
            delta: String::new(),
        })))
        .unwrap();
        value["type"] = kind.into();
        value["data"] = data;
        let read: UniversalEvent = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), value, "{kind}");
    }
}

#[test]
fn data_that_does_not_fit_its_type_is_refused() {
    let read =
        UniversalEventData::from_value(UniversalEventType::ItemDelta, json!({"metadata": null}));
    assert!(read.is_err());
}

#[test]
fn an_absent_detail_is_null() {
    let part = ContentPart::status("turn.completed", None);
    let text = serde_json::to_string(&part).unwrap();
    assert_eq!(text, r#"{"type":"status","label":"turn.completed","detail":null}"#);
}
