//! `GET …/logs`, row by row.

use serde_json::json;

use crate::client::Client;
use crate::harness::TestServer;

async fn with_log(server: &TestServer, text: &str) -> (Client, String) {
    let operator = server.operator.clone();
    let path = operator.sandbox().await;
    let log = format!("{path}/files?path={}", engine::AGENT_LOG);
    operator.upload(&log, text.to_owned()).await.json(200);
    (operator, format!("{path}/logs"))
}

#[tokio::test]
async fn without_an_agent_the_log_is_empty() {
    let server = TestServer::start().await;
    let path = server.operator.sandbox().await;
    let empty = json!({ "content": "", "truncated": false, "total_bytes": 0 });
    for query in ["", "?stream=stderr", "?stream=agents", "?lines=5", "?bytes=5"] {
        let logs = server.operator.get(&format!("{path}/logs{query}")).await.json(200);
        assert_eq!(logs, empty, "{query}");
    }
    server.stop().await;
}

#[tokio::test]
async fn the_end_is_read_by_lines_or_bytes() {
    let server = TestServer::start().await;
    let text: String = (0..150).map(|i| format!("line {i:03}\n")).collect();
    let (operator, logs) = with_log(&server, &text).await;
    let get = async |query: &str| operator.get(&format!("{logs}{query}")).await.json(200);
    let plain = get("").await;
    assert_eq!(plain["content"].as_str().unwrap().lines().count(), 100);
    assert!(plain["content"].as_str().unwrap().starts_with("line 050\n"));
    assert_eq!(plain["truncated"], true);
    assert_eq!(plain["total_bytes"], text.len());
    assert_eq!(get("?lines=2").await["content"], "line 148\nline 149\n");
    let all = get("?lines=99999999999999999999").await;
    assert_eq!((&all["content"], &all["truncated"]), (&json!(text), &json!(false)));
    // 20 bytes begin in the middle of a line, which is dropped.
    assert_eq!(get("?bytes=20").await["content"], "line 148\nline 149\n");
    assert_eq!(get("?bytes=99999999").await["content"], json!(text));
    server.stop().await;
}

#[tokio::test]
async fn mistakes_are_named() {
    let server = TestServer::start().await;
    let (operator, logs) = with_log(&server, "x\n").await;
    for (query, field) in [
        ("lines=1&bytes=1", "lines"),
        ("lines=0", "lines"),
        ("bytes=0", "bytes"),
        ("lines=-1", "lines"),
        ("lines=ten", "lines"),
        ("lines=1.0", "lines"),
        ("lines=", "lines"),
        ("bytes=1k", "bytes"),
        ("stream=stdin", "stream"),
        ("tail=5", "tail"),
    ] {
        operator.get(&format!("{logs}?{query}")).await.refuses(field);
    }
    for stream in ["stdout", "all"] {
        let answer = operator.get(&format!("{logs}?stream={stream}")).await;
        answer.problem(501, "log_stream_not_available");
    }
    operator.get("/v1/sandboxes/nobody/logs").await.problem(404, "not_found");
    server.stop().await;
}
