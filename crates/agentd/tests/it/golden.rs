//! 171 exchanges that were recorded with the original program, replayed in their order. What differs
//! on purpose is in [`INTENDED`], with the reason; everything else is the same to the byte, but times.

use std::time::Duration;

use agentd::Cors;
use http::HeaderValue;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::daemon::{Answer, Daemon, Setup};

/// What is different, and how.
enum Difference {
    /// The framework's plain text: a problem with the same status and the same text in `detail`.
    ProblemInsteadOfText,
    /// Not the same body; what holds of it instead.
    Other(fn(&Exchange, &Answer)),
}

/// Each with the reason.
const INTENDED: &[(&[&str], Difference)] = &[
    // A client can read every error in the same way.
    (
        &[
            "install-no-body-no-ctype",
            "install-wrong-ctype",
            "install-bad-json",
            "install-wrong-type",
            "session-create-missing-agent",
            "session-create-bad-json",
            "session-create-no-ctype",
            "session-create-no-body",
            "events-bad-offset",
            "events-negative-offset",
            "events-bad-include-raw",
            "message-missing-field",
            "message-wrong-type",
            "message-bad-json",
            "perm-reply-bad-value",
            "question-reply-bad-shape",
        ],
        Difference::ProblemInsteadOfText,
    ),
    // The original understates what its agents can do; after its five comes ours.
    (&["agents-list"], Difference::Other(same_agents)),
    // Agents come from a registry of packages; the text of the failure is another.
    (&["install-claude-offline", "session-create-claude-offline"], Difference::Other(same_failure)),
    // What is pending at the end is resolved, and nothing comes after the end.
    (
        &["events-after-terminate", "sse-after-terminate", "term2-events"],
        Difference::Other(ends_with_the_end),
    ),
    // Therefore those sessions have other numbers of events.
    (&["sessions-list-final"], Difference::Other(same_sessions)),
];

#[derive(Debug, Deserialize)]
struct Exchange {
    name: String,
    server: String,
    method: String,
    path: String,
    headers: std::collections::BTreeMap<String, String>,
    body: Option<String>,
    status: u16,
    head: std::collections::BTreeMap<String, String>,
    answer: String,
}

#[tokio::test]
async fn every_recorded_exchange_is_the_same_but_for_what_is_meant_to_differ() {
    let exchanges = exchanges();
    assert_eq!(exchanges.len(), 171);
    for name in INTENDED.iter().flat_map(|(names, _)| names.iter()) {
        assert!(exchanges.iter().any(|one| one.name == *name), "no such exchange: {name}");
    }
    let mut failures = Vec::new();
    for server in ["notoken", "token", "cors", "cors2"] {
        let directory = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(directory.path(), setup(server)).await;
        for exchange in exchanges.iter().filter(|one| one.server == server) {
            let answer = replay(&daemon, exchange).await;
            if let Err(failure) = std::panic::catch_unwind(|| compare(exchange, &answer)) {
                let text = failure.downcast_ref::<String>().cloned().unwrap_or_default();
                failures.push(format!("{}: {text}", exchange.name));
            }
        }
        daemon.stop().await;
    }
    assert!(failures.is_empty(), "{} differ:\n{}", failures.len(), failures.join("\n\n"));
}

fn exchanges() -> Vec<Exchange> {
    let text = include_str!("../fixtures/golden.jsonl");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn setup(server: &str) -> Setup {
    let values = |list: &[&'static str]| {
        list.iter().map(|one| HeaderValue::from_static(one)).collect::<Vec<_>>()
    };
    let cors = match server {
        "cors" => {
            Some(Cors { origins: values(&["http://a.test", "http://b.test"]), ..Cors::default() })
        }
        "cors2" => Some(Cors {
            origins: values(&["http://a.test"]),
            methods: values(&["GET", "POST"]),
            headers: values(&["authorization", "content-type"]),
            credentials: true,
        }),
        _ => None,
    };
    let token = matches!(server, "token" | "cors2").then_some("sekret");
    Setup { token, cors, mock_delay: Duration::from_millis(1), ..Setup::default() }
}

async fn replay(daemon: &Daemon, exchange: &Exchange) -> Answer {
    let headers: Vec<_> =
        exchange.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let request = format!("{} {}", exchange.method, exchange.path);
    // A stream that is not ended by the server is read until nothing more comes.
    let endless = exchange.path.contains("/events/sse") && exchange.status == 200;
    let quiet = Duration::from_millis(if endless { 500 } else { 60_000 });
    if exchange.name == "sse-live-s1" {
        let posted = daemon.post("/v1/sessions/s1/messages", &json!({ "message": "live" })).await;
        assert_eq!(posted.status, 204);
        daemon.wait_idle("s1").await;
    }
    let answer = daemon.send(&request, &headers, exchange.body.as_deref(), quiet).await;
    let session = exchange.path.strip_prefix("/v1/sessions/").and_then(|rest| {
        let (id, rest) = rest.split_once('/')?;
        rest.starts_with("messages").then(|| id.to_owned())
    });
    if let Some(session) = session.filter(|_| answer.status < 300) {
        daemon.wait_idle(&session).await;
    }
    answer
}

fn compare(exchange: &Exchange, answer: &Answer) {
    let Exchange { name, .. } = exchange;
    assert_eq!(answer.status, exchange.status, "{name}: status; {}", answer.body);
    let intended = INTENDED.iter().find(|(names, _)| names.contains(&name.as_str()));
    match intended {
        Some((_, Difference::ProblemInsteadOfText)) => is_problem(exchange, answer),
        Some((_, Difference::Other(check))) => check(exchange, answer),
        None => {
            for (header, value) in &exchange.head {
                assert_eq!(answer.headers.get(header), Some(value), "{name}: {header}");
            }
            for header in answer.headers.keys().filter(|one| one.starts_with("access-control")) {
                assert!(exchange.head.contains_key(header), "{name}: {header} is too much");
            }
            assert_eq!(scrubbed(&answer.body), exchange.answer, "{name}: body");
        }
    }
}

fn is_problem(exchange: &Exchange, answer: &Answer) {
    let problem: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(problem["type"], "urn:sandbox-agent:error:invalid_request");
    assert_eq!(problem["status"], exchange.status);
    // In front of what is wrong with a query we name the field.
    let (begin, end) = exchange.answer.split_once(": ").unwrap_or((&exchange.answer, ""));
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.starts_with(&format!("invalid request: {begin}")), "{detail}");
    assert!(detail.ends_with(end), "{detail}");
}

fn same_agents(exchange: &Exchange, answer: &Answer) {
    let theirs: Value = serde_json::from_str(&exchange.answer).unwrap();
    let ours: Value = serde_json::from_str(&answer.body).unwrap();
    let (ours, theirs) = (ours["agents"].as_array().unwrap(), theirs["agents"].as_array().unwrap());
    assert_eq!(ours.len(), theirs.len() + 1);
    let last = ours.last().unwrap();
    assert_eq!((&last["id"], &last["installed"]), (&json!("deictic"), &json!(true)));
    for (ours, theirs) in ours.iter().zip(theirs) {
        for field in ["id", "installed", "version", "serverStatus"] {
            assert_eq!(ours.get(field), theirs.get(field), "{field}");
        }
        for (name, can) in theirs["capabilities"].as_object().unwrap() {
            let ours = ours["capabilities"][name].as_bool().unwrap();
            assert!(ours || !can.as_bool().unwrap(), "{name}");
        }
    }
}

fn same_failure(exchange: &Exchange, answer: &Answer) {
    let mut ours: Value = serde_json::from_str(&answer.body).unwrap();
    assert!(ours["details"]["stderr"].as_str().is_some_and(|text| !text.is_empty()));
    ours["details"]["stderr"] = "E".into();
    assert_eq!(ours, serde_json::from_str::<Value>(&exchange.answer).unwrap());
}

fn ends_with_the_end(exchange: &Exchange, answer: &Answer) {
    let ours = events_of(&answer.body);
    let theirs = events_of(&exchange.answer);
    let end = ours.iter().position(|one| one["type"] == "session.ended").expect("it ends");
    assert_eq!(end, ours.len() - 1, "nothing comes after the end");
    assert_eq!(ours[end]["data"], json!({"reason": "terminated", "terminated_by": "daemon"}));
    for (n, event) in ours.iter().enumerate() {
        assert_eq!(event["sequence"], n + 1);
    }
    let asked = |what: &str| ours.iter().filter(|one| one["type"] == what).count();
    assert_eq!(asked("permission.requested"), asked("permission.resolved"));
    assert_eq!(asked("question.requested"), asked("question.resolved"));
    // Up to there it is the same.
    let theirs = theirs.iter().take_while(|one| one["type"] != "session.ended");
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!(scrubbed(&ours.to_string()), scrubbed(&theirs.to_string()));
    }
}

fn same_sessions(exchange: &Exchange, answer: &Answer) {
    let mut ours: Value = serde_json::from_str(&answer.body).unwrap();
    let mut theirs: Value = serde_json::from_str(&exchange.answer).unwrap();
    for list in [&mut ours, &mut theirs] {
        for session in list["sessions"].as_array_mut().unwrap() {
            let id = session["sessionId"].as_str().unwrap();
            if id == "term" || id == "term2" {
                session["eventCount"] = Value::Null;
            }
        }
    }
    assert_eq!(ours, theirs);
}

fn events_of(text: &str) -> Vec<Value> {
    if text.starts_with('{') {
        let list: Value = serde_json::from_str(text).unwrap();
        return list["events"].as_array().unwrap().clone();
    }
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Without times, and without what the original does not send in streams: ids and comments.
fn scrubbed(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\"time\":\"") {
        let (_, after) = after.split_once('"').unwrap_or(("", ""));
        out += before;
        out += "\"time\":\"T\"";
        rest = after;
    }
    out += rest;
    let lines: Vec<_> = out.lines().filter(|line| !line.starts_with("id: ")).collect();
    lines.join("\n").trim_end_matches('\n').to_owned()
}
