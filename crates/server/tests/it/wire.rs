//! What `docs/wire.md` says is so: its example is replayed, and `docs/wire.schema.json` and the types agree on what is
//! a frame.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use api::frame::{ClientFrame, ControlFrame};
use events::UniversalEvent;
use serde_json::{Value, json};

use crate::harness::Setup;
use crate::talk::{Talk, start, wanted};

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// `true` for what a client sends.
fn example() -> Vec<(bool, Value)> {
    let page = std::fs::read_to_string(docs("wire.md")).unwrap();
    let (_, block) = page.split_once("```wire\n").unwrap();
    let (block, _) = block.split_once("\n```").unwrap();
    let line = |line: &str| {
        let (from_client, text) = match line.split_at(2) {
            ("> ", text) => (true, text),
            ("< ", text) => (false, text),
            _ => panic!("neither > nor <: {line}"),
        };
        (from_client, serde_json::from_str(text).unwrap_or_else(|error| panic!("{line}: {error}")))
    };
    let lines: Vec<_> = block.lines().map(line).collect();
    assert!(lines.len() > 10, "the example is there");
    lines
}

/// `…` stands for what is another one every time.
#[track_caller]
fn same(said: &Value, expected: &Value) {
    match (said, expected) {
        (_, Value::String(any)) if any == "…" => {}
        (Value::Object(said), Value::Object(expected)) => {
            let (left, right): (Vec<_>, Vec<_>) =
                (said.keys().collect(), expected.keys().collect());
            assert_eq!(left, right);
            said.iter().for_each(|(key, value)| same(value, &expected[key]));
        }
        (Value::Array(said), Value::Array(expected)) => {
            assert_eq!(said.len(), expected.len(), "{said:?}");
            said.iter().zip(expected).for_each(|(said, expected)| same(said, expected));
        }
        _ => assert_eq!(said, expected),
    }
}

#[tokio::test]
async fn the_example_of_the_documentation_replays() {
    let (server, _daemon) = start(Setup::new()).await;
    let ann = server.tenant("ann").await;
    let made = ann.post("/v1/sessions", &wanted("usr_ann")).await.json(201);
    let mut talk = Talk::with(&made).await;
    let (example, mut pairs, mut all) = (example(), Vec::new(), String::new());
    for (from_client, frame) in &example {
        if *from_client {
            talk.say(frame).await;
            all.push_str(&format!("> {frame}\n"));
        } else {
            let said = talk.next().await.unwrap();
            all.push_str(&format!("< {said}\n"));
            pairs.push((said, frame));
        }
    }
    // For who changes the example.
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("wire.said"), all).unwrap();
    for (said, expected) in pairs {
        same(&said, expected);
    }
    server.stop().await;
}

/// By an implementation of JSON Schema that is not ours (`tests-api`).
const CHECK: &str = "
import json, sys, jsonschema_rs
schema = json.load(open(sys.argv[1]))
def validator(name):
    return jsonschema_rs.validator_for({**schema, '$ref': '#/$defs/' + name})
client, server = validator('FromClient'), validator('FromServer')
for line in sys.stdin:
    from_client, good, frame = json.loads(line)
    checked = client if from_client else server
    assert checked.is_valid(frame) == good, (from_client, good, frame)
";

/// Whether the types take it, from whom it comes.
fn is_read(from_client: bool, frame: &Value) -> bool {
    let text = frame.to_string();
    if from_client {
        return ClientFrame::parse(&text).is_ok();
    }
    serde_json::from_str::<UniversalEvent>(&text).is_ok()
        || serde_json::from_str::<ControlFrame>(&text).is_ok()
}

#[test]
fn the_schema_and_the_types_agree_on_what_is_a_frame() {
    let mut frames = example();
    for from_client in [
        json!({ "type": "message", "message": "hi" }),
        json!({ "type": "permission.reply", "permission_id": "p", "reply": "always" }),
        json!({ "type": "question.reply", "question_id": "q", "answers": [["a"], []] }),
        json!({ "type": "question.reject", "question_id": "q" }),
        json!({ "type": "interrupt" }),
        json!({ "type": "exec", "command": "ls" }),
        json!({ "type": "exec", "command": "ls", "id": "7" }),
        json!({ "type": "exec", "command": "ls", "id": "x".repeat(129) }),
        json!({ "type": "from", "sequence": 0 }),
        json!({ "type": "from", "sequence": -1 }),
        json!({ "type": "mouse_click", "x": 1, "y": 2 }),
        json!({ "type": "scroll", "x": 1, "y": 2, "clicks": -3 }),
        json!({ "type": "press_key", "key": "Return" }),
        json!({ "type": "screenshot" }),
        json!({ "type": "screenshot", "surprise": 1 }),
        json!({ "type": "interrupt", "surprise": 1 }),
        json!({ "type": "mouse_move", "x": 1 }),
        json!({}),
        json!({ "type": "message" }),
        json!({ "type": "message", "message": 7 }),
        json!({ "type": "message", "message": "hi", "surprise": 1 }),
        json!({ "type": "permission.reply", "permission_id": "p", "reply": "maybe" }),
    ] {
        frames.push((true, from_client));
    }
    for from_server in [
        json!({ "type": "system", "event": "cancel", "reason": "timeout" }),
        json!({ "type": "system", "event": "cancel", "reason": "boredom" }),
        json!({ "type": "system", "event": "config_update", "keys": ["LLM_API_KEY"] }),
        json!({ "type": "system", "event": "party" }),
        json!({ "type": "stderr", "data": "x" }),
        json!({ "type": "exit", "id": "1", "exit_code": 0 }),
        json!({ "type": "exit" }),
    ] {
        frames.push((false, from_server));
    }
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests-api/venv/bin/python");
    let mut check = Command::new(python)
        .args(["-c", CHECK])
        .arg(docs("wire.schema.json"))
        .stdin(Stdio::piped())
        .spawn()
        .expect("scripts/install-deps.sh test has made tests-api/venv");
    let mut stdin = check.stdin.take().unwrap();
    for (from_client, frame) in frames {
        let good = is_read(from_client, &frame);
        writeln!(stdin, "{}", json!([from_client, good, frame])).unwrap();
    }
    drop(stdin);
    assert!(check.wait().unwrap().success());
}
