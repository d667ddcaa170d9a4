//! What `docs/wire.md` says is so: its example is replayed, and `docs/wire.schema.json` is made from the types and
//! holds for every frame of it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use api::frame::{ClientFrame, ControlFrame};
use events::UniversalEvent;
use serde_json::{Value, json};
use utoipa::OpenApi;

use crate::harness::Setup;
use crate::talk::{Talk, start, wanted};

#[derive(OpenApi)]
#[openapi(components(schemas(ClientFrame, ControlFrame, UniversalEvent)))]
struct Frames;

/// Of wire version 1, which has types for writing only.
fn plain_frame() -> Value {
    let sequence = json!({ "type": "integer", "minimum": 1 });
    let text = json!({ "type": "string" });
    let frame = |kind: &str, mut fields: Value, required: &[&str]| {
        fields["type"] = json!({ "const": kind });
        fields["sequence"] = sequence.clone();
        json!({ "type": "object", "properties": fields, "required": required,
            "additionalProperties": false })
    };
    json!({ "oneOf": [
        frame("text", json!({
            "role": { "enum": ["user", "assistant", "system", "error"] }, "text": text,
        }), &["type", "sequence", "role", "text"]),
        frame("tool", json!({
            "id": text, "name": text, "text": text,
            "state": { "enum": ["called", "completed", "failed", "asked", "answered"] },
        }), &["type", "sequence", "id", "state"]),
        frame("done", json!({ "status": { "enum": ["completed", "failed", "terminated"] } }),
            &["type", "sequence", "status"]),
    ]})
}

fn schema() -> Value {
    let document = serde_json::to_string(&Frames::openapi()).unwrap();
    let document = document.replace("#/components/schemas/", "#/$defs/");
    let document: Value = serde_json::from_str(&document).unwrap();
    let mut defs = document["components"]["schemas"].clone();
    defs["PlainFrame"] = plain_frame();
    defs["FromClient"] = json!({ "$ref": "#/$defs/ClientFrame" });
    let events = ["UniversalEvent", "ControlFrame"];
    let plain = ["PlainFrame", "ControlFrame"];
    let any = |names: [&str; 2]| {
        let refs = names.map(|name| json!({ "$ref": format!("#/$defs/{name}") }));
        json!({ "anyOf": refs })
    };
    defs["FromServer"] = any(events);
    defs["FromServerVersion1"] = any(plain);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The frames of a session's WebSocket",
        "$ref": "#/$defs/FromServer",
        "$defs": defs,
    })
}

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
        (Value::String(_), Value::String(any)) if any == "…" => {}
        (Value::Object(said), Value::Object(expected)) => {
            let (left, right): (Vec<_>, Vec<_>) = (said.keys().collect(), expected.keys().collect());
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
    for (from_client, frame) in example() {
        if from_client {
            talk.say(&frame).await;
        } else {
            same(&talk.next().await.unwrap(), &frame);
        }
    }
    server.stop().await;
}

#[test]
fn the_schema_is_that_of_the_types() {
    let fresh = format!("{}\n", serde_json::to_string_pretty(&schema()).unwrap());
    let file = docs("wire.schema.json");
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    if kept != fresh {
        let beside = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wire.schema.json");
        std::fs::write(&beside, fresh).unwrap();
        panic!("docs/wire.schema.json is not that of the types; {} is", beside.display());
    }
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

#[test]
fn the_schema_holds_for_every_frame_of_the_example_and_for_no_bad_one() {
    let mut lines: Vec<Value> =
        example().iter().map(|(from_client, frame)| json!([from_client, true, frame])).collect();
    for good in [
        json!({ "type": "system", "event": "cancel", "reason": "timeout" }),
        json!({ "type": "system", "event": "config_update", "keys": ["LLM_API_KEY"] }),
        json!({ "type": "stderr", "data": "x" }),
        json!({ "type": "exit", "id": "1", "exit_code": 0 }),
    ] {
        lines.push(json!([false, true, good]));
    }
    for bad in [
        json!({}),
        json!({ "type": "dance" }),
        json!({ "type": "message" }),
        json!({ "type": "message", "message": 7 }),
        json!({ "type": "permission.reply", "permission_id": "p", "reply": "maybe" }),
    ] {
        lines.push(json!([true, false, bad]));
    }
    lines.push(json!([false, false, { "type": "system", "event": "party" }]));
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests-api/venv/bin/python");
    let mut check = Command::new(python)
        .args(["-c", CHECK])
        .arg(docs("wire.schema.json"))
        .stdin(Stdio::piped())
        .spawn()
        .expect("scripts/install-deps.sh test has made tests-api/venv");
    let mut stdin = check.stdin.take().unwrap();
    for line in lines {
        writeln!(stdin, "{line}").unwrap();
    }
    drop(stdin);
    assert!(check.wait().unwrap().success());
}
