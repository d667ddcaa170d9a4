use serde_json::{Value, json};

use super::*;

fn event(kind: &str, data: &Value) -> UniversalEvent {
    let event = json!({
        "event_id": "e", "sequence": 1, "time": "t", "session_id": "s",
        "synthetic": false, "source": "agent", "type": kind, "data": data,
    });
    serde_json::from_value(event).unwrap()
}

fn item(id: &str, kind: &str, role: &str, content: &Value) -> Value {
    json!({ "item": { "item_id": id, "kind": kind, "role": role, "status": "completed",
        "content": content } })
}

fn text(text: &str) -> Value {
    json!([{ "type": "text", "text": text }])
}

fn shown(view: &mut View, events: &[(&str, Value)]) -> String {
    events.iter().map(|(kind, data)| view.show(&event(kind, data))).collect()
}

#[test]
fn a_turn_is_shown_as_it_comes() {
    let mut view = View::new(false);
    let call = json!([{ "type": "tool_call", "name": "shell_exec", "call_id": "c",
        "arguments": "{\"command\":\"ls -la\"}" }]);
    let result = json!([
        { "type": "tool_result", "call_id": "c", "output": "a\nb\n" },
        { "type": "file_ref", "path": "a.txt", "action": "patch", "diff": "-old\n+new\n" },
    ]);
    let over = json!([{ "type": "status", "label": "turn.completed" }]);
    let metered = json!([{ "type": "status", "label": "runtime_event", "detail": "{}" }]);
    let read = shown(
        &mut view,
        &[
            ("item.completed", item("1", "message", "user", &text("list it"))),
            ("item.started", item("2", "message", "assistant", &json!([]))),
            ("item.delta", json!({ "item_id": "2", "delta": "I " })),
            ("item.delta", json!({ "item_id": "2", "delta": "do." })),
            ("item.completed", item("2", "message", "assistant", &text("I do."))),
            ("item.completed", item("3", "tool_call", "assistant", &call)),
            ("item.completed", item("4", "tool_result", "tool", &result)),
            ("item.completed", item("5", "status", "system", &metered)),
            ("item.completed", item("6", "message", "assistant", &text("Done."))),
            ("item.completed", item("7", "status", "system", &over)),
        ],
    );
    let expected = "\n> list it\n\nI do.\n● shell_exec ls -la\n  a\n  b\n  a.txt\n  -old\n  +new\n\
        \nDone.\n\n";
    assert_eq!(read, expected);
    assert!(view.take_turn_over() && !view.take_turn_over());
}

#[test]
fn two_who_speak_at_once_do_not_share_a_line() {
    let mut view = View::new(false);
    let mut below = item("2", "message", "assistant", &json!([]));
    below["item"]["parent_id"] = "1".into();
    let read = shown(
        &mut view,
        &[
            ("item.started", item("1", "message", "assistant", &json!([]))),
            ("item.started", below),
            ("item.delta", json!({ "item_id": "1", "delta": "plan" })),
            ("item.delta", json!({ "item_id": "2", "delta": "work\nmore" })),
            ("item.delta", json!({ "item_id": "1", "delta": "ning" })),
        ],
    );
    assert_eq!(read, "\nplan\n\n│ work\n│ more\nning");
}

#[test]
fn what_is_asked_waits_until_it_is_answered() {
    let mut view = View::new(false);
    let asked = json!({ "permission_id": "p", "action": "shell", "status": "requested",
        "metadata": { "input": { "command": "rm -r x" } } });
    let question = json!({ "question_id": "q", "prompt": "Which?", "options": ["Red", "Blue"],
        "status": "requested" });
    let read =
        shown(&mut view, &[("permission.requested", asked), ("question.requested", question)]);
    assert_eq!(
        read,
        "? shell: rm -r x  [y] once  [a] always  [n] no\n\
         ? Which?  [1] Red  [2] Blue  [n] no answer\n"
    );
    assert_eq!(view.asked(), Some(&Asked::Permission { id: "p".into() }));
    let denied = json!({ "permission_id": "p", "action": "shell", "status": "denied" });
    assert_eq!(shown(&mut view, &[("permission.resolved", denied)]), "· shell: refused\n");
    assert!(matches!(view.asked(), Some(Asked::Question { .. })));
    let ended = json!({ "reason": "error", "terminated_by": "daemon" });
    assert_eq!(shown(&mut view, &[("session.ended", ended)]), "· session ended: failed\n");
    assert!(view.asked().is_none() && view.has_ended());
}

#[test]
fn nothing_that_is_said_reaches_the_terminal_itself() {
    let mut view = View::new(true);
    let hostile = "\u{1b}]52;c;aGk=\u{7}\u{1b}[2J\u{202e}x\r\u{8}";
    let call =
        json!([{ "type": "tool_call", "name": hostile, "call_id": "c", "arguments": hostile }]);
    let result = json!([{ "type": "tool_result", "call_id": "c", "output": hostile }]);
    let asked = json!({ "permission_id": "p", "action": hostile, "status": "requested",
        "metadata": { "command": hostile } });
    let read = shown(
        &mut view,
        &[
            ("item.started", item("1", "message", "assistant", &json!([]))),
            ("item.delta", json!({ "item_id": "1", "delta": hostile })),
            ("item.completed", item("2", "message", "assistant", &text(hostile))),
            ("item.completed", item("3", "tool_call", "assistant", &call)),
            ("item.completed", item("4", "tool_result", "tool", &result)),
            ("permission.requested", asked),
            ("error", json!({ "message": hostile, "code": hostile })),
        ],
    );
    let mut ours = read.clone();
    for code in ["2", "1", "31", "32", "33", "0"] {
        ours = ours.replace(&format!("\u{1b}[{code}m"), "");
    }
    let bad = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
    assert!(!ours.contains(bad), "{ours:?}");
}

#[test]
fn what_is_long_is_cut() {
    let mut view = View::new(false);
    let output = format!("{}\n{}", "x".repeat(1000), "line\n".repeat(50));
    let result = json!([{ "type": "tool_result", "call_id": "c", "output": output }]);
    let read = shown(&mut view, &[("item.completed", item("1", "tool_result", "tool", &result))]);
    assert_eq!(read.lines().count(), LINES_MAX + 1);
    assert!(read.ends_with("… 39 more lines\n"), "{read}");
    assert!(read.lines().all(|line| line.chars().count() <= COLUMNS_MAX + 4));
}
