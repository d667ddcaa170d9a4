use serde_json::{Value, json};

use super::*;

#[track_caller]
fn taken(frame: &Value) -> ClientFrame {
    ClientFrame::parse(&frame.to_string()).unwrap_or_else(|error| panic!("{frame}: {error}"))
}

#[track_caller]
fn refused(text: &str, says: &str) {
    let error = ClientFrame::parse(text).unwrap_err().to_string();
    assert!(error.contains(says), "{text}: {error:?} does not contain {says:?}");
}

#[test]
fn every_frame_of_a_client_is_read() {
    let text = |text: &str| text.to_owned();
    for (frame, read) in [
        (json!({"type": "message", "message": "hi"}), ClientFrame::Message { message: text("hi") }),
        (
            json!({"type": "permission.reply", "permission_id": "p", "reply": "always"}),
            ClientFrame::PermissionReply {
                permission_id: text("p"),
                reply: PermissionReply::Always,
            },
        ),
        (
            json!({"type": "question.reply", "question_id": "q", "answers": [["a"], []]}),
            ClientFrame::QuestionReply {
                question_id: text("q"),
                answers: vec![vec![text("a")], vec![]],
            },
        ),
        (
            json!({"type": "question.reject", "question_id": "q"}),
            ClientFrame::QuestionReject { question_id: text("q") },
        ),
        (json!({"type": "interrupt"}), ClientFrame::Interrupt {}),
        (
            json!({"type": "exec", "command": "ls -la"}),
            ClientFrame::Exec { command: text("ls -la"), id: None },
        ),
        (
            json!({"type": "exec", "command": "ls", "id": "7"}),
            ClientFrame::Exec { command: text("ls"), id: Some(text("7")) },
        ),
        (json!({"type": "from", "sequence": 0}), ClientFrame::From { sequence: 0 }),
        (
            json!({"type": "mouse_click", "x": 1, "y": 2}),
            ClientFrame::MouseClick { x: 1, y: 2, button: None },
        ),
        (
            json!({"type": "scroll", "x": 1, "y": 2, "clicks": -3}),
            ClientFrame::Scroll { x: 1, y: 2, clicks: -3 },
        ),
    ] {
        assert_eq!(taken(&frame), read);
    }
}

#[test]
fn what_is_no_frame_is_refused_with_a_reason() {
    refused("", "is empty");
    refused("\u{0}", "must be a JSON object");
    refused("[]", "must be a JSON object");
    refused("\"message\"", "must be a JSON object");
    refused("{", "EOF");
    refused("{\"type\":\"message\",\"message\":\"a\"}{}", "more than one value");
    refused("{\"type\":\"dance\"}", "unknown variant `dance`");
    refused("{\"message\":\"a\"}", "missing field `type`");
    refused("{\"type\":\"message\"}", "missing field `message`");
    refused("{\"type\":\"message\",\"message\":7}", "expected a string");
    refused("{\"type\":\"message\",\"message\":\"a\",\"as\":\"root\"}", "unknown field `as`");
    refused("{\"type\":\"message\",\"message\":\"a\",\"message\":\"b\"}", "duplicate field");
    refused("{\"type\":\"message\",\"message\":\" \"}", "must not be empty");
    refused("{\"type\":\"from\",\"sequence\":-1}", "expected u64");
    refused("{\"type\":\"exec\",\"command\":\"\"}", "must not be empty");
    refused("{\"type\":\"permission.reply\",\"permission_id\":\"p\",\"reply\":\"yes\"}", "reject");
    let long = format!("{{\"type\":\"exec\",\"command\":\"ls\",\"id\":\"{}\"}}", "x".repeat(129));
    refused(&long, "at most 128 bytes");
    // Deeper than anything that is read.
    refused(&format!("{{\"answers\":{}", "[".repeat(1000)), "recursion limit");
}

/// Every frame without a mistake.
const GOOD: &[&str] = &[
    r#"{"type":"message","message":"hi"}"#,
    r#"{"type":"permission.reply","permission_id":"p","reply":"once"}"#,
    r#"{"type":"question.reply","question_id":"q","answers":[["a"],[]]}"#,
    r#"{"type":"question.reject","question_id":"q"}"#,
    r#"{"type":"interrupt"}"#,
    r#"{"type":"exec","command":"ls","id":"7"}"#,
    r#"{"type":"from","sequence":4}"#,
    r#"{"type":"mouse_move","x":1,"y":2}"#,
    r#"{"type":"mouse_click","x":1,"y":2,"button":3}"#,
    r#"{"type":"keyboard_type","text":"a"}"#,
    r#"{"type":"press_key","key":"Return"}"#,
    r#"{"type":"scroll","x":1,"y":2,"clicks":-3}"#,
    r#"{"type":"screenshot"}"#,
];

#[track_caller]
fn names(frame: &str, field: &str) {
    match ClientFrame::parse(frame).unwrap_err() {
        Error::Invalid { field: named, detail } => assert_eq!(named, field, "{frame}: {detail}"),
        other => panic!("{frame}: {other}"),
    }
}

/// Each frame, with each mistake that one can make in each field.
#[test]
fn a_mistake_is_named_by_its_field_in_every_frame() {
    for text in GOOD {
        let good: Value = serde_json::from_str(text).unwrap();
        taken(&good);
        let kind = good["type"].as_str().unwrap();
        for unknown in ["surprise", "x_", "message_", "typ", kind] {
            if good.get(unknown).is_none() {
                let mut bad = good.clone();
                bad[unknown] = json!(1);
                names(&bad.to_string(), unknown);
            }
        }
        for field in good.as_object().unwrap().keys() {
            for wrong in [json!({}), json!(true), json!([7]), json!(1.5)] {
                let inside = if wrong.is_array() && field == "answers" { "[0]" } else { "" };
                let mut bad = good.clone();
                bad[field] = wrong;
                names(&bad.to_string(), &format!("{field}{inside}"));
            }
            let mut without = good.clone();
            without.as_object_mut().unwrap().remove(field);
            match field.as_str() {
                "id" | "button" => drop(taken(&without)),
                field => names(&without.to_string(), field),
            }
            let begin = text.strip_suffix('}').unwrap();
            names(&format!("{begin},\"{field}\":{}}}", good[field]), field);
        }
    }
}

#[test]
fn what_is_wrong_with_a_value_is_said_where_it_is() {
    names(r#"{"type":"dance"}"#, "type");
    names(r#"{"type":"Message","message":"hi"}"#, "type");
    names(r#"{"type":"","message":"hi"}"#, "type");
    names(r#"{"type":"permission.reply","permission_id":"p","reply":"yes"}"#, "reply");
    names(r#"{"type":"question.reply","question_id":"q","answers":[[],[7]]}"#, "answers[1][0]");
    names(r#"{"type":"mouse_move","x":-1,"y":2}"#, "x");
    names(r#"{"type":"mouse_move","x":4294967296,"y":2}"#, "x");
    names(r#"{"type":"mouse_click","x":1,"y":2,"button":256}"#, "button");
    names(r#"{"type":"message","message":" "}"#, "message");
    for none in ["", "{", "[]", "7", "null", "{}{}"] {
        names(none, "body");
    }
}

#[test]
fn an_error_repeats_no_more_than_a_part_of_a_frame() {
    let long = "é".repeat(100_000);
    for bad in [
        json!({ "type": long }),
        json!({ "type": "from", "sequence": long }),
        json!({ "type": "interrupt", long.as_str(): 1 }),
    ] {
        let error = ClientFrame::parse(&bad.to_string()).unwrap_err().to_string();
        let text = ControlFrame::error(FrameError::InvalidFrame, error).text();
        assert!(text.len() < 2000, "{}", text.len());
    }
}

#[test]
fn control_frames_are_as_the_document_has_them() {
    let system = |frame| ControlFrame::System(frame);
    for (frame, written) in [
        (
            system(SystemFrame::Cancel { reason: CancelReason::Timeout }),
            json!({"type": "system", "event": "cancel", "reason": "timeout"}),
        ),
        (
            system(SystemFrame::ConfigUpdate { keys: vec!["LLM_API_KEY".into()] }),
            json!({"type": "system", "event": "config_update", "keys": ["LLM_API_KEY"]}),
        ),
        (
            ControlFrame::Stdout { id: None, data: "total 68\n".into() },
            json!({"type": "stdout", "data": "total 68\n"}),
        ),
        (
            ControlFrame::Exit { id: Some("7".into()), exit_code: 0 },
            json!({"type": "exit", "id": "7", "exit_code": 0}),
        ),
        (
            ControlFrame::error(FrameError::InvalidFrame, "no"),
            json!({"type": "system", "event": "error", "code": "invalid_frame", "detail": "no"}),
        ),
    ] {
        let text = frame.text();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), written);
        assert_eq!(serde_json::from_str::<ControlFrame>(&text).unwrap(), frame);
    }
}
