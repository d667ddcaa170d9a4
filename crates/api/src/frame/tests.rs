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
        (json!({"type": "interrupt"}), ClientFrame::Interrupt),
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
