//! Commands: blocking, streamed, re-attached, killed, abandoned.

use axum::body::Body;
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::client::{Client, next};
use crate::harness::{TestServer, becomes};

async fn stream(client: &Client, path: &str, body: &Value) -> crate::client::Open {
    let request = client.request("POST", &format!("{path}/exec/stream"));
    client.open(request.body(Body::from(body.to_string())).unwrap()).await
}

#[tokio::test]
async fn a_command_answers_everything_it_said() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let path = format!("{}/exec", operator.sandbox().await);
    let said = operator.post(&path, &json!({ "command": "echo out; echo err >&2; exit 3" })).await;
    let said = said.json(200);
    assert_eq!((&said["stdout"], &said["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!(said["output"].as_str().unwrap().len(), 8);
    assert_eq!(said["exit_code"], 3);
    assert_eq!((&said["truncated"], &said["timed_out"]), (&json!(false), &json!(false)));
    assert!(said["duration_ms"].is_u64());

    let full = json!({
        "command": "cat; echo $WORD; basename $PWD", "cwd": "/workspace", "env": { "WORD": "b" },
        "stdin": "a\n", "timeout_seconds": 20
    });
    assert_eq!(operator.post(&path, &full).await.json(200)["output"], "a\nb\nworkspace\n");
    let bytes = json!({ "command": "printf '\\377'" });
    assert_eq!(operator.post(&path, &bytes).await.json(200)["output"], "\u{fffd}");
    server.stop().await;
}

#[tokio::test]
async fn bad_commands_are_named() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let sandbox = operator.sandbox().await;
    for verb in ["exec", "exec/stream"] {
        let path = format!("{sandbox}/{verb}");
        for (body, field) in [
            (json!({}), "command"),
            (json!({ "command": "" }), "command"),
            (json!({ "command": "  " }), "command"),
            (json!({ "command": null }), "command"),
            (json!({ "command": ["ls"] }), "command"),
            (json!({ "command": "a\u{0}b" }), "command"),
            (json!({ "command": "true", "cwd": "tmp" }), "cwd"),
            (json!({ "command": "true", "cwd": "/a/../b" }), "cwd"),
            (json!({ "command": "true", "env": { "A": 1 } }), "env.A"),
            (json!({ "command": "true", "env": { "A=B": "1" } }), "env.A=B"),
            (json!({ "command": "true", "timeout_seconds": 0 }), "timeout_seconds"),
            (json!({ "command": "true", "timeout_seconds": 86_401 }), "timeout_seconds"),
            (json!({ "command": "true", "timeout_seconds": 1.5 }), "timeout_seconds"),
            (json!({ "command": "true", "stdin": 1 }), "stdin"),
            (json!({ "command": "true", "user": "a b" }), "user"),
            (json!({ "command": "true", "shell": "zsh" }), "shell"),
        ] {
            operator.post(&path, &body).await.refuses(field);
        }
        operator.post_text(&path, "{").await.refuses("body");
        operator.post_nothing(&path).await.refuses("body");
    }
    let unknown = operator.post("/v1/sandboxes/nobody/exec", &json!({ "command": "true" })).await;
    unknown.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn a_command_is_killed_at_its_time() {
    let server = TestServer::start().await;
    let path = format!("{}/exec", server.operator.sandbox().await);
    let slow = json!({ "command": "echo began; sleep 60", "timeout_seconds": 1 });
    let said = server.operator.post(&path, &slow).await.json(200);
    assert_eq!((&said["timed_out"], &said["stdout"]), (&json!(true), &json!("began\n")));
    assert_ne!(said["exit_code"], 0);
    server.stop().await;
}

#[tokio::test]
async fn output_beyond_8_mib_is_cut_off() {
    let server = TestServer::start().await;
    let path = format!("{}/exec", server.operator.sandbox().await);
    let much = json!({ "command": "head -c 9000000 /dev/zero | tr '\\0' x" });
    let said = server.operator.post(&path, &much).await.json(200);
    assert_eq!(said["truncated"], true);
    assert_eq!(said["output"].as_str().unwrap().len(), 8 * 1024 * 1024);
    assert_eq!(said["exit_code"], 0);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_command() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let path = format!("{}/exec", operator.sandbox().await);
    let request = operator.request("POST", &path);
    let command = r#"{"command": "sleep 7654.321 & sleep 7654.321; true"}"#;
    let request = request.body(Body::from(command)).unwrap();
    let client = operator.clone();
    let tasks = tokio_util::task::TaskTracker::new();
    let waiting = tasks.spawn(async move { client.open(request).await });
    becomes(true, "7654.321").await;
    waiting.abort();
    becomes(false, "7654.321").await;
    server.stop().await;
}

#[tokio::test]
async fn a_streamed_command_outlives_its_client() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let path = operator.sandbox().await;
    let command = json!({ "command": "echo one; read line; echo $line" , "stdin": "two\n" });
    let mut events = stream(operator, &path, &command).await.events();
    let started = next(&mut events, "started").await;
    let exec = started.json()["exec_id"].as_str().unwrap().to_owned();
    assert!(exec.starts_with("ex-"));
    drop(events);

    let again = format!("{path}/exec/{exec}");
    let request = operator.request("GET", &again).body(Body::empty()).unwrap();
    let all: Vec<_> = operator.open(request).await.events().collect().await;
    let said: String = all
        .iter()
        .filter(|sent| sent.event == "output")
        .map(|sent| sent.json()["data"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(said, "one\ntwo\n");
    let last = all.last().unwrap();
    assert_eq!(last.event, "exit");
    assert_eq!(last.json()["exit_code"], 0);
    assert_eq!(last.json()["total_bytes"], 8);
    server.stop().await;
}

#[tokio::test]
async fn a_stream_is_resumed_by_offset_or_by_event_id() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let path = operator.sandbox().await;
    let command = json!({ "command": "echo 0123456789; echo err >&2" });
    let mut events = stream(operator, &path, &command).await.events();
    let exec = next(&mut events, "started").await.json()["exec_id"].as_str().unwrap().to_owned();
    let output = next(&mut events, "output").await;
    assert_eq!(output.json()["offset"], 0);
    next(&mut events, "exit").await;
    assert!(events.next().await.is_none(), "something came after the exit");

    for (query, header, from) in
        [("?offset=4", None, 4), ("", Some("6"), 6), ("?offset=5", Some("9"), 5)]
    {
        let mut request = operator.request("GET", &format!("{path}/exec/{exec}{query}"));
        if let Some(id) = header {
            request = request.header("last-event-id", id);
        }
        let mut events = operator.open(request.body(Body::empty()).unwrap()).await.events();
        let first = next(&mut events, "output").await.json();
        assert_eq!(first["offset"], from, "{query} {header:?}");
        next(&mut events, "exit").await;
    }
    let bad = operator.get(&format!("{path}/exec/{exec}?offset=x")).await;
    bad.refuses("offset");
    operator.get(&format!("{path}/exec/{exec}?from=1")).await.refuses("from");
    server.stop().await;
}

#[tokio::test]
async fn output_that_is_no_text_is_base64() {
    let server = TestServer::start().await;
    let path = server.operator.sandbox().await;
    let command = json!({ "command": "printf '\\377\\000'" });
    let mut events = stream(&server.operator, &path, &command).await.events();
    let output = next(&mut events, "output").await.json();
    assert_eq!(output["data_base64"], "/wA=");
    assert!(output.get("data").is_none());
    next(&mut events, "exit").await;
    server.stop().await;
}

#[tokio::test]
async fn a_streamed_command_can_be_killed() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let path = operator.sandbox().await;
    let mut events = stream(operator, &path, &json!({ "command": "sleep 60" })).await.events();
    let exec = next(&mut events, "started").await.json()["exec_id"].as_str().unwrap().to_owned();
    let kill = format!("{path}/exec/{exec}");
    assert_eq!(operator.delete(&kill).await.status, 204);
    assert_ne!(next(&mut events, "exit").await.json()["exit_code"], 0);
    assert_eq!(operator.delete(&kill).await.status, 204);
    for id in ["ex-0123456789abcdef0123456789abcdef", "nonsense", "ex-"] {
        operator.delete(&format!("{path}/exec/{id}")).await.problem(404, "not_found");
        operator.get(&format!("{path}/exec/{id}")).await.problem(404, "not_found");
    }
    let other = operator.sandbox().await;
    operator.get(&format!("{other}/exec/{exec}")).await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn a_stream_tells_why_its_sandbox_ended() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let path = operator.sandbox().await;
    let mut events = stream(operator, &path, &json!({ "command": "sleep 60" })).await.events();
    next(&mut events, "started").await;
    operator.delete(&path).await.json(200);
    let last = next(&mut events, "error").await.json();
    assert_eq!(last["reason"], "user_request");
    assert!(events.next().await.is_none());
    server.stop().await;
}
