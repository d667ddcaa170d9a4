//! What an agent is told of an earlier conversation.

use serde_json::json;

use super::*;

fn said(role: &str, text: &str) -> Said {
    Said { role: role.into(), text: text.into() }
}

#[test]
fn the_newest_that_fits_stands_before_the_task() {
    let before = [said("user", "what is 6 times 7?"), said("assistant", "42")];
    let whole = with_history(&before, "and plus one?".into());
    assert!(whole.contains("[user]\nwhat is 6 times 7?\n\n[assistant]\n42\n\n"), "{whole}");
    assert!(whole.ends_with("Now:\n\nand plus one?"), "{whole}");
    assert_eq!(with_history(&[], "alone".into()), "alone");

    let long = [said("user", &"x".repeat(WHOLE_BYTES_MAX)), said("assistant", "short")];
    let whole = with_history(&long, "go".into());
    assert!(whole.contains("short") && !whole.contains("xxx"), "{} bytes", whole.len());
    let task = "y".repeat(WHOLE_BYTES_MAX);
    assert_eq!(with_history(&long, task.clone()), task);
}

#[test]
fn only_text_of_finished_messages_is_of_a_conversation() {
    let item = |kind: &str, role: &str| {
        let content =
            json!([{ "type": "text", "text": "a" }, { "type": "reasoning", "text": "b" }]);
        json!({ "type": "item.completed",
            "data": { "item": { "kind": kind, "role": role, "content": content } } })
    };
    assert_eq!(message(&item("message", "assistant")), Some(said("assistant", "a")));
    assert_eq!(message(&item("message", "system")), None);
    assert_eq!(message(&item("tool_call", "assistant")), None);
    let mut begun = item("message", "user");
    begun["type"] = "item.started".into();
    assert_eq!(message(&begun), None);
    assert_eq!(message(&json!({ "type": "item.completed", "data": 7 })), None);
}
