use serde_json::{Value, json};

use super::*;

fn event(kind: &str, data: &Value) -> UniversalEvent {
    let event = json!({
        "event_id": "e", "sequence": 7, "time": "2026-01-01T00:00:00Z", "session_id": "s",
        "synthetic": false, "source": "agent", "type": kind, "data": data,
    });
    serde_json::from_value(event).unwrap()
}

fn item(kind: &str, role: &str, status: &str, content: &Value) -> Value {
    json!({ "item": {
        "item_id": "itm_1", "kind": kind, "role": role, "status": status, "content": content,
    }})
}

#[track_caller]
fn check(kind: &str, data: &Value, expected: &Value) {
    let frame = serde_json::to_value(plain(&event(kind, data))).unwrap();
    assert_eq!(frame, *expected);
}

#[test]
fn what_is_said_is_text() {
    let text = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
    for (role, shown) in [("assistant", "assistant"), ("user", "user"), ("system", "system")] {
        check(
            "item.completed",
            &item("message", role, "completed", &text),
            &json!({ "type": "text", "sequence": 7, "role": shown, "text": "a\nb" }),
        );
    }
    check(
        "error",
        &json!({ "message": "out of memory", "code": "oom" }),
        &json!({ "type": "text", "sequence": 7, "role": "error", "text": "out of memory" }),
    );
}

#[test]
fn what_is_done_is_a_tool() {
    let call = json!([{ "type": "tool_call", "name": "shell", "arguments": "{}", "call_id": "c" }]);
    check(
        "item.completed",
        &item("tool_call", "assistant", "completed", &call),
        &json!({ "type": "tool", "sequence": 7, "id": "c", "state": "called", "name": "shell",
            "text": "{}" }),
    );
    let result = json!([{ "type": "tool_result", "call_id": "c", "output": "no" }]);
    for (status, state) in [("completed", "completed"), ("failed", "failed")] {
        check(
            "item.completed",
            &item("tool_result", "tool", status, &result),
            &json!({ "type": "tool", "sequence": 7, "id": "c", "state": state, "text": "no" }),
        );
    }
    check(
        "permission.requested",
        &json!({ "permission_id": "p", "action": "shell", "status": "requested" }),
        &json!({ "type": "tool", "sequence": 7, "id": "p", "state": "asked", "name": "shell" }),
    );
    check(
        "question.resolved",
        &json!({ "question_id": "q", "prompt": "Which?", "options": [], "status": "rejected" }),
        &json!({ "type": "tool", "sequence": 7, "id": "q", "state": "answered", "text": "Which?" }),
    );
}

#[test]
fn the_end_of_a_turn_and_of_a_session_is_done() {
    for label in ["turn.completed", "session.idle"] {
        let status = json!([{ "type": "status", "label": label }]);
        check(
            "item.completed",
            &item("status", "system", "completed", &status),
            &json!({ "type": "done", "sequence": 7, "status": "completed" }),
        );
    }
    for (reason, status) in
        [("completed", "completed"), ("error", "failed"), ("terminated", "terminated")]
    {
        check(
            "session.ended",
            &json!({ "reason": reason, "terminated_by": "daemon" }),
            &json!({ "type": "done", "sequence": 7, "status": status }),
        );
    }
}

#[test]
fn everything_else_is_not_said() {
    let metered = json!([{ "type": "status", "label": "runtime_event", "detail": "{}" }]);
    check("item.completed", &item("status", "system", "completed", &metered), &Value::Null);
    check("item.completed", &item("message", "assistant", "completed", &json!([])), &Value::Null);
    check("item.started", &item("message", "assistant", "in_progress", &json!([])), &Value::Null);
    check("item.delta", &json!({ "item_id": "i", "delta": "x" }), &Value::Null);
    check("session.started", &json!({}), &Value::Null);
    check("agent.unparsed", &json!({ "error": "e", "location": "l" }), &Value::Null);
}
