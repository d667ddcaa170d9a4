//! Its documented form: Claude's lines, of one turn a process.

use serde_json::{Value, json};

use super::super::claude::decoder::Decoder;
use super::super::decoded::Decoded;
use super::arguments;
use crate::adapter::{PermissionMode, SessionSpec};
use crate::conversion::Conversion;

/// A turn of it.
pub(in crate::agents) fn documented() -> Vec<Value> {
    vec![
        json!({"type": "system", "subtype": "init", "cwd": "/w", "session_id": "T-1", "tools": ["Bash"]}),
        json!({"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "list"}]},
            "parent_tool_use_id": null, "session_id": "T-1"}),
        json!({"type": "assistant", "message": {"type": "message", "role": "assistant", "content": [
            {"type": "thinking", "thinking": "I look."},
            {"type": "text", "text": "Looking."},
            {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"cmd": "ls"}},
        ]}, "session_id": "T-1"}),
        json!({"type": "user", "message": {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "README.md", "is_error": false},
        ]}, "session_id": "T-1"}),
        json!({"type": "assistant", "message": {"type": "message", "role": "assistant", "content": [
            {"type": "text", "text": "One file."},
        ]}, "session_id": "T-1"}),
        json!({"type": "result", "subtype": "success", "is_error": false, "result": "One file.",
            "num_turns": 2, "session_id": "T-1"}),
    ]
}

#[test]
fn a_turn_of_its_documented_stream_becomes_events() {
    let lines = documented();
    let mut decoder = Decoder::default();
    let shown: Vec<String> =
        lines.iter().flat_map(|line| decoder.decode(line)).filter_map(|one| shown(&one)).collect();
    assert_eq!(
        shown,
        [
            "native id T-1",
            "started Message",
            "completed Message Completed",
            "started Message",
            "completed Message Completed",
            "started ToolCall",
            "completed ToolCall Completed",
            "completed ToolResult Completed",
            "started Message",
            "native id T-1",
            "completed Message Completed",
            "completed Status Completed",
            "turn over completed",
        ]
    );
}

fn shown(decoded: &Decoded) -> Option<String> {
    Some(match decoded {
        Decoded::NativeId(id) => format!("native id {id}"),
        Decoded::TurnOver(summary) => format!("turn over {}", summary["status"].as_str()?),
        Decoded::Record(Conversion::ItemStarted(item)) => format!("started {:?}", item.kind),
        Decoded::Record(Conversion::ItemCompleted(item)) => {
            format!("completed {:?} {:?}", item.kind, item.status)
        }
        Decoded::Record(_) | Decoded::Send(_) => return None,
    })
}

#[test]
fn messages_are_not_arguments_and_threads_are_continued() {
    let spec = SessionSpec {
        session_id: "s".to_owned(),
        agent_mode: "build".to_owned(),
        permission_mode: PermissionMode::Bypass,
        model: None,
        variant: None,
        directory: "/".into(),
        env: std::collections::BTreeMap::new(),
        secrets: crate::Secrets::default(),
        app: None,
        mcp: std::collections::BTreeMap::new(),
        resume: None,
    };
    assert_eq!(
        arguments(&spec, Some("T-1")).join(" "),
        "threads continue T-1 --execute --stream-json --stream-json-thinking --stream-json-input \
         --dangerously-allow-all"
    );
}
