use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::decoder::Decoder;
use super::{DESCRIPTION, arguments};
use crate::adapter::{
    Adapter as _, Answer, McpServer, PermissionMode, PermissionReply, SessionSpec,
};
use crate::agents::decoded::Decoded;
use crate::conversion::Conversion;
use crate::error::Error;
use crate::secrets::Secrets;

fn spec() -> SessionSpec {
    SessionSpec {
        session_id: "s".to_owned(),
        agent_mode: "build".to_owned(),
        permission_mode: PermissionMode::Default,
        model: None,
        variant: None,
        directory: PathBuf::from("/"),
        env: BTreeMap::new(),
        secrets: Secrets::default(),
        app: None,
        mcp: BTreeMap::new(),
        resume: None,
    }
}

fn ask(request_id: &str, tool: &str, input: &Value) -> Value {
    json!({"type": "control_request", "request_id": request_id, "request": {
        "subtype": "can_use_tool", "tool_name": tool, "input": input, "tool_use_id": "call",
    }})
}

fn sent(decoded: &[Decoded]) -> Vec<&Value> {
    decoded
        .iter()
        .filter_map(|one| match one {
            Decoded::Send(value) => Some(value),
            Decoded::Record(_) | Decoded::NativeId(_) | Decoded::TurnOver(_) => None,
        })
        .collect()
}

#[test]
fn planning_is_a_permission_too() {
    let claude = super::Claude;
    let modes = claude.choose_modes(Some("plan"), None).unwrap();
    assert_eq!((modes.agent.as_str(), modes.permission), ("plan", PermissionMode::Plan));
    let refused = claude.choose_modes(Some("plan"), Some("bypass")).unwrap_err();
    let wanted = "Claude agentMode=plan requires permissionMode=plan";
    assert_eq!(refused, Error::invalid(wanted));
    let modes = claude.choose_modes(None, Some("plan")).unwrap();
    assert_eq!((modes.agent.as_str(), modes.permission), ("build", PermissionMode::Plan));
    assert!(claude.choose_modes(Some("other"), None).is_err());
    assert_eq!(DESCRIPTION.modes[0].id, "build");
}

#[test]
fn what_a_session_asks_for_is_on_the_command_line() {
    let command = BTreeMap::from([(
        "files".to_owned(),
        McpServer::Local { command: vec!["serve".into(), "-v".into()], env: BTreeMap::new() },
    )]);
    let spec = SessionSpec {
        model: Some("opus".to_owned()),
        resume: Some("7c".to_owned()),
        permission_mode: PermissionMode::Bypass,
        mcp: command,
        ..spec()
    };
    let line = arguments(&spec).join(" ");
    let wanted = "--dangerously-skip-permissions --model=opus --resume=7c --mcp-config=\
        {\"mcpServers\":{\"files\":{\"args\":[\"-v\"],\"command\":\"serve\",\"env\":{},\"type\":\"stdio\"}}}";
    assert!(line.ends_with(wanted), "{line}");
}

#[test]
fn always_without_a_rule_is_for_exactly_this_call() {
    let mut decoder = Decoder::default();
    let input = json!({"command": "make"});
    decoder.decode(&ask("1", "Bash", &input));
    let answer = decoder.permit("1", PermissionReply::Always).unwrap();
    assert_eq!(answer["response"]["response"]["updatedPermissions"], Value::Null);
    let again = decoder.decode(&ask("2", "Bash", &input));
    assert_eq!(sent(&again)[0]["response"]["response"]["behavior"], "allow");
    let other = decoder.decode(&ask("3", "Bash", &json!({"command": "make install"})));
    assert!(sent(&other).is_empty(), "another call is asked for");
    assert!(decoder.permit("3", PermissionReply::Reject).is_some());
    assert!(decoder.permit("3", PermissionReply::Once).is_none(), "once each");
}

#[test]
fn a_plan_is_approved_rejected_or_changed() {
    let answer = |said: &str| {
        let mut decoder = Decoder::default();
        let asked = decoder.decode(&ask("1", "ExitPlanMode", &json!({"plan": "1. Do it"})));
        assert!(matches!(
            &asked[..],
            [Decoded::Record(Conversion::QuestionRequested { id, prompt, .. })]
                if id == "call" && prompt.ends_with("1. Do it")
        ));
        let answer = Answer::Answered(vec![vec![said.to_owned()]]);
        decoder.answer("call", answer, &mut Vec::new()).unwrap()["response"]["response"].clone()
    };
    assert_eq!(answer("approve")["behavior"], "allow");
    assert_eq!(answer("reject")["message"], "The user does not approve of the plan.");
    assert_eq!(answer("use rust")["message"], "The user wants the plan changed: use rust");
}

#[test]
fn a_withdrawn_request_is_resolved_and_not_answered() {
    let mut decoder = Decoder::default();
    decoder.decode(&ask("1", "Bash", &json!({})));
    let out = decoder.decode(&json!({"type": "control_cancel_request", "request_id": "1"}));
    let wanted = Conversion::PermissionResolved { id: "1".to_owned(), approved: false };
    assert_eq!(out, [Decoded::Record(wanted)]);
    assert!(decoder.permit("1", PermissionReply::Once).is_none());
}

#[test]
fn what_it_asks_and_we_do_not_know_is_declined() {
    let mut decoder = Decoder::default();
    let hook =
        json!({"type": "control_request", "request_id": "9", "request": {"subtype": "hook"}});
    let out = decoder.decode(&hook);
    assert_eq!(sent(&out)[0]["response"]["error"], "not supported: hook");
}

#[test]
fn lines_of_other_versions_are_statuses() {
    let mut decoder = Decoder::default();
    for line in [json!({"type": "news", "x": 1}), json!({"type": 7}), json!([]), json!(null)] {
        let out = decoder.decode(&line);
        assert!(matches!(&out[..], [Decoded::Record(Conversion::ItemCompleted(_))]), "{line}");
    }
    // Without ids, types or what is in them.
    for kind in ["system", "stream_event", "assistant", "user", "result", "control_request"] {
        decoder.decode(&json!({"type": kind}));
    }
}
