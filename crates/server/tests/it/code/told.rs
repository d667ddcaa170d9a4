//! What the log says of calls.

use serde_json::{Value, json};
use tracing::Level;

use super::{ask, call, message, server};
use crate::client::Client;
use crate::journal::Journal;

#[tokio::test]
async fn a_call_has_a_line_with_what_it_did_under_its_requests_id() {
    let journal = Journal::start(Level::INFO);
    let server = server().await;
    let client = &server.operator;
    let twice = "async () => { await api.request({ path: '/v1/sandboxes' });
        return (await api.request({ path: '/v1/sandboxes/none' })).status }";
    assert_eq!(call(client, "execute_read", twice).await.0["result"], 404);
    call(client, "search", "async () => { throw new Error('TOPSECRET') }").await;
    let list = message("tools/list", &json!({}));
    ask(&server.nobody(), &[], &list).await.problem(401, "unauthorized");
    let stranger = Client { key: Some("e2a_TOPSECRET".into()), ..server.nobody() };
    ask(&stranger, &[], &list).await.problem(401, "unauthorized");
    assert_eq!(ask(client, &[("origin", "https://evil.example")], &list).await.status, 403);
    let key = client.key.clone().unwrap();
    server.stop().await;

    let text = journal.text();
    assert!(!text.contains(&key) && !text.contains("TOPSECRET"), "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |target: &'static str| lines.iter().filter(move |line| line["target"] == target);
    let mcp: Vec<&Value> = of("access").filter(|line| line["path"] == "/mcp").collect();
    let levels: Vec<Value> =
        mcp.iter().map(|line| json!([line["status"], line["level"]])).collect();
    assert_eq!(
        json!(levels),
        json!([[200, "INFO"], [200, "INFO"], [401, "WARN"], [401, "WARN"], [403, "WARN"]])
    );
    // What the code asks for is between it and the API.
    let inside = of("access").find(|line| line["path"] == "/v1/sandboxes/none").unwrap();
    assert_eq!((&inside["status"], &inside["level"]), (&json!(404), &json!("INFO")));
    let ran: Vec<&Value> = of("code").collect();
    let shown = format!("{}…{}", &key[..4], &key[key.len() - 4..]);
    for (line, (tool, called, is_error, request)) in
        ran.iter().zip([("execute_read", 2, false, mcp[0]), ("search", 0, true, mcp[1])])
    {
        assert_eq!(
            [&line["tool"], &line["called"], &line["is_error"], &line["key"], &line["owner"]],
            [&json!(tool), &json!(called), &json!(is_error), &json!(shown), &json!("usr_operator")]
        );
        assert!(line["duration_ms"].is_u64(), "{line}");
        assert_eq!(line["span"]["request.id"], request["span"]["request.id"], "{line}");
    }
    assert_eq!(ran.len(), 2);
}
