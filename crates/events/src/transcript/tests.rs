use serde_json::{Value, json};

use super::*;

/// Numbered from 1.
fn entries(events: &[(&str, Value)]) -> Vec<Entry> {
    let mut transcript = Transcript::default();
    let mut all = Vec::new();
    for (n, (kind, data)) in events.iter().enumerate() {
        let event = json!({
            "event_id": "e", "sequence": n + 1, "time": "2026-01-01T00:00:00Z", "session_id": "s",
            "synthetic": false, "source": "agent", "type": kind, "data": data,
        });
        all.extend(transcript.read(&serde_json::from_value(event).unwrap()));
    }
    all.extend(transcript.unfinished());
    all
}

fn item(id: &str, kind: &str, role: &str, content: &Value) -> Value {
    json!({ "item": { "item_id": id, "kind": kind, "role": role, "status": "completed",
        "content": content } })
}

fn text(text: &str) -> Value {
    json!([{ "type": "text", "text": text }])
}

fn markdown(events: &[(&str, Value)]) -> String {
    entries(events).iter().map(Entry::markdown).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_conversation_reads_as_one() {
    let call = json!([{ "type": "tool_call", "name": "write_file", "call_id": "c",
        "arguments": "{\"path\":\"a.txt\"}" }]);
    let result = json!([
        { "type": "tool_result", "call_id": "c", "output": "written" },
        { "type": "file_ref", "path": "a.txt", "action": "write", "diff": "+hello\n" },
    ]);
    let mut failed = item("itm_4", "tool_result", "tool", &result);
    failed["item"]["status"] = "failed".into();
    failed["item"]["parent_id"] = "itm_2".into();
    let over = json!([{ "type": "status", "label": "turn.completed" }]);
    let metered = json!([{ "type": "status", "label": "runtime_event", "detail": "{}" }]);
    let read = markdown(&[
        ("session.started", json!({})),
        ("item.completed", item("itm_1", "message", "user", &text("write it"))),
        ("item.started", item("itm_2", "message", "assistant", &json!([]))),
        ("item.delta", json!({ "item_id": "itm_2", "delta": "I do." })),
        ("item.completed", item("itm_2", "message", "assistant", &text("I do."))),
        ("item.completed", item("itm_3", "tool_call", "assistant", &call)),
        (
            "permission.resolved",
            json!({ "permission_id": "p", "action": "write", "status": "approved" }),
        ),
        ("item.completed", failed),
        ("item.completed", item("itm_5", "status", "system", &metered)),
        ("item.completed", item("itm_6", "status", "system", &over)),
        ("session.ended", json!({ "reason": "completed", "terminated_by": "agent" })),
    ]);
    let expected = "## User\n\nwrite it\n\n\
        ## Assistant\n\nI do.\n\n\
        ### Tool: write_file\n\n```json\n{\n  \"path\": \"a.txt\"\n}\n```\n\n\
        *Permission approved: write*\n\n\
        ### Failed (for itm_2)\n\n```\nwritten\n```\n\na.txt:\n\n```diff\n+hello\n```\n\n\
        ---\n\n\
        *Session ended: completed*\n";
    assert_eq!(read, expected);
}

#[test]
fn what_a_tool_says_stays_in_its_fence() {
    let output = "````\n# not a heading of ours\n```";
    let result = json!([{ "type": "tool_result", "call_id": "c", "output": output }]);
    let read = markdown(&[("item.completed", item("i", "tool_result", "tool", &result))]);
    assert_eq!(read, format!("### Result\n\n`````\n{output}\n`````\n"));
    let hostile = json!({ "message": "a\n\n# b", "code": "c\nd" });
    assert_eq!(markdown(&[("error", hostile)]), "**Error (c d): a # b**\n");
}

#[test]
fn what_was_never_completed_is_told_as_far_as_it_came() {
    let all = entries(&[
        ("item.started", item("itm_1", "message", "assistant", &text("I "))),
        ("item.delta", json!({ "item_id": "itm_1", "delta": "I " })),
        ("item.delta", json!({ "item_id": "itm_1", "delta": "begin" })),
        ("item.delta", json!({ "item_id": "unknown", "delta": "lost" })),
        ("item.started", item("itm_2", "message", "assistant", &json!([]))),
        ("error", json!({ "message": "out of memory", "code": "oom" })),
    ]);
    let lines: Vec<Value> = all.iter().map(|entry| serde_json::to_value(entry).unwrap()).collect();
    let time = "2026-01-01T00:00:00Z";
    assert_eq!(
        lines,
        [
            json!({ "sequence": 6, "time": time, "type": "error", "message": "out of memory",
                "code": "oom" }),
            json!({ "sequence": 1, "time": time, "type": "message", "role": "assistant",
                "text": "I begin", "unfinished": true }),
        ]
    );
    assert_eq!(all[1].markdown(), "## Assistant, unfinished\n\nI begin\n");
}

#[test]
fn what_is_kept_of_unfinished_things_is_bounded() {
    let mut transcript = Transcript::default();
    let mut read = |kind: &str, data: Value| {
        let event = json!({
            "event_id": "e", "sequence": 1, "time": "t", "session_id": "s",
            "synthetic": false, "source": "agent", "type": kind, "data": data,
        });
        transcript.read(&serde_json::from_value(event).unwrap());
    };
    for n in 0..2 * OPEN_MAX {
        read("item.started", item(&format!("itm_{n}"), "message", "assistant", &json!([])));
    }
    for _ in 0..10 {
        let delta = "x".repeat(OPEN_BYTES_MAX / 4);
        read("item.delta", json!({ "item_id": "itm_0", "delta": delta }));
    }
    let open = transcript.unfinished();
    assert_eq!(open.len(), 1, "the others have said nothing");
    assert!(matches!(&open[0].said, Said::Message { text, .. } if text.len() == OPEN_BYTES_MAX));
}
