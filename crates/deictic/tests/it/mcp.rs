//! Tool servers, a program and an address: what they offer can be called, and what they do wrong ends nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use deictic::protocol::{McpServer, PermissionMode, Reply, TurnStatus};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::model::{Dialect, Model, call, say};
use crate::talk::{Setup, gone, processes_with};

/// Enough of a server: it answers what the protocol wants answered, and its tools.
const PROGRAM: &str = r#"
import json, os, sys, time
for line in sys.stdin:
    m = json.loads(line)
    if 'id' not in m: continue
    method, result = m['method'], None
    if method == 'initialize':
        result = {'protocolVersion': m['params']['protocolVersion'], 'capabilities': {'tools': {}},
                  'serverInfo': {'name': 'test', 'version': '1'}}
    elif method == 'tools/list':
        schema = {'type': 'object', 'properties': {'text': {'type': 'string'}}}
        result = {'tools': [{'name': n, 'description': n, 'inputSchema': schema} for n in ['echo', 'fail', 'hang', 'flood']]}
    elif method == 'tools/call':
        name, text = m['params']['name'], m['params'].get('arguments', {}).get('text', '')
        if name == 'hang': time.sleep(1000)
        if name == 'flood': text = 'z' * 1000000
        result = {'content': [{'type': 'text', 'text': text + os.environ.get('LLM_API_KEY', '')}], 'isError': name == 'fail'}
    if result is None: out = {'jsonrpc': '2.0', 'id': m['id'], 'error': {'code': -32601, 'message': 'no'}}
    else: out = {'jsonrpc': '2.0', 'id': m['id'], 'result': result}
    print(json.dumps(out), flush=True)
"#;

fn program(mark: &str) -> McpServer {
    let command = ["python3", "-c", PROGRAM].map(str::to_owned).to_vec();
    McpServer::Local { command, env: BTreeMap::from([("DEICTIC_TEST".into(), mark.into())]) }
}

#[tokio::test]
async fn a_program_offers_tools() {
    let model = Model::serve(Dialect::OpenAi, |asked| match asked.number {
        1 => call("mcp__test__echo", json!({"text": "heard"})),
        2 => call("mcp__test__fail", json!({"text": "no"})),
        3 => call("mcp__test__flood", json!({})),
        _ => say(&asked.results[..2].join("|")),
    })
    .await;
    let setup = Setup::new(&model).server("test", program("mcp-1"));
    let mut talk = setup.open().await;
    assert_eq!(talk.turn("go").await, TurnStatus::Completed, "{:#?}", talk.turn);
    assert_eq!(talk.texts(), ["heard\n|no\n"], "and it did not get the key");
    let results = talk.results();
    assert_eq!((results[0].1, results[1].1), (true, false));
    assert!(results[2].0.len() < 40_000 && results[2].0.contains("bytes left out"));
    assert!(processes_with("DEICTIC_TEST=mcp-1") > 0);
    talk.close().await;
    // It ends with the session.
    gone("DEICTIC_TEST=mcp-1").await;
    model.close();
}

#[tokio::test]
async fn its_tools_are_asked_for() {
    let model = Model::serve(Dialect::Anthropic, |asked| match asked.number {
        1 | 3 => call("mcp__test__echo", json!({"text": "heard"})),
        _ => say("done"),
    })
    .await;
    let setup = Setup::new(&model).mode(PermissionMode::Default).server("test", program("mcp-2"));
    let mut talk = setup.open().await;
    talk.say("go").await;
    let (id, action) = talk.permission().await;
    assert_eq!(action, "mcp__test__echo");
    talk.reply(&id, Reply::Always).await;
    talk.end_of_turn().await;
    talk.turn("again").await;
    assert!(talk.results()[0].1);
    talk.close().await;
    model.close();
}

#[tokio::test]
async fn one_that_hangs_and_one_that_does_not_start() {
    let model = Model::serve(Dialect::Google, |asked| match asked.last_user() {
        "go" => call("mcp__test__hang", json!({})),
        _ => say("well"),
    })
    .await;
    let none = McpServer::Local { command: vec!["/nonexistent".into()], env: BTreeMap::new() };
    let mute = ["sleep", "1000"].map(str::to_owned).to_vec();
    let setup = Setup::new(&model)
        .server("test", program("mcp-3"))
        .limits(|limits| {
            limits.mcp_call = Duration::from_millis(200);
            limits.mcp_start = Duration::from_secs(5);
        })
        .server("none", none)
        .server("mute", McpServer::Local { command: mute, env: BTreeMap::new() });
    let mut talk = setup.open_after_statuses().await;
    let failed = talk.statuses("mcp_server");
    let names: Vec<_> = failed.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 2, "{failed:?}");
    assert!(names.contains(&"none") && names.contains(&"mute"));
    assert_eq!(talk.turn("go").await, TurnStatus::Failed);
    assert_eq!(talk.errors(), ["tool_timeout"]);
    assert_eq!(talk.turn("well").await, TurnStatus::Completed);
    talk.close().await;
    gone("DEICTIC_TEST=mcp-3").await;
    model.close();
}

/// A server over HTTP that wants its header with every request.
async fn remote(seen: Arc<Mutex<Vec<String>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let answer = move |method: Method, headers: HeaderMap, body: Bytes| async move {
        answer(&seen, &method, &headers, &body)
    };
    TaskTracker::new().spawn(async move {
        axum::serve(listener, Router::new().fallback(answer)).await.unwrap();
    });
    url
}

fn answer(
    seen: &Mutex<Vec<String>>,
    method: &Method,
    headers: &HeaderMap,
    body: &Bytes,
) -> Response {
    if headers.get("x-secret").is_none_or(|value| value != "sesame") {
        return StatusCode::FORBIDDEN.into_response();
    }
    if method != Method::POST {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let message: Value = serde_json::from_slice(body).unwrap();
    let name = message["method"].as_str().unwrap_or_default().to_owned();
    seen.lock().unwrap().push(name.clone());
    let result = match name.as_str() {
        "initialize" => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}}, "serverInfo": {"name": "far", "version": "1"},
        }),
        "tools/list" => json!({"tools": [{
            "name": "add", "inputSchema": {"type": "object"},
        }]}),
        "tools/call" => {
            let sum = message["params"]["arguments"]["a"].as_i64().unwrap() + 2;
            json!({"content": [{"type": "text", "text": sum.to_string()}]})
        }
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    if name == "tools/call" {
        let text = format!("event: message\ndata: {answer}\n\n");
        return ([("content-type", "text/event-stream")], text).into_response();
    }
    let headers = [("content-type", "application/json"), ("mcp-session-id", "one")];
    (headers, answer.to_string()).into_response()
}

#[tokio::test]
async fn an_address_offers_tools() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let url = remote(Arc::clone(&seen)).await;
    let model = Model::serve(Dialect::DeepSeek, |asked| match asked.number {
        1 => call("mcp__far__add", json!({"a": 40})),
        _ => say(asked.last_result()),
    })
    .await;
    let headers = BTreeMap::from([("x-secret".to_owned(), "sesame".to_owned())]);
    let setup = Setup::new(&model).server("far", McpServer::Remote { url, headers });
    let mut talk = setup.open().await;
    assert_eq!(talk.turn("go").await, TurnStatus::Completed, "{:#?}", talk.turn);
    assert_eq!(talk.texts(), ["42\n"]);
    talk.close().await;
    assert!(seen.lock().unwrap().contains(&"tools/call".to_owned()));
    model.close();
}
