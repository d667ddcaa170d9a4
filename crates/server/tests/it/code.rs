//! Code mode over HTTP, with Node of this machine as the engine: the fake driver runs it outside of any
//! sandbox, so what is tested here is everything but the sandbox.

mod foreign;
mod told;

use axum::body::Body;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::harness::{Setup, TestServer};

const SETTINGS: &str = "[code]\nruntime = 'node'\ntemplate = 'host'\nallowed_hosts = ['test']\n\
    requests_max = 5\ntimeout_ms = 4000\ncalls_at_once = 2\ndebug_endpoint = true\n";

async fn server() -> TestServer {
    Setup::with(SETTINGS).start().await
}

async fn ask(client: &Client, headers: &[(&str, &str)], message: &Value) -> Answer {
    let mut request = client
        .request("POST", "/mcp")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    client.send(request.body(Body::from(message.to_string())).unwrap()).await
}

fn message(method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })
}

/// What a tool said: what stands in it, and whether it is an error.
async fn call(client: &Client, tool: &str, code: &str) -> (Value, bool) {
    let params = json!({ "name": tool, "arguments": { "code": code } });
    let answer = ask(client, &[], &message("tools/call", &params)).await;
    assert!(answer.header("content-type").starts_with("application/json"));
    let answer = answer.json(200);
    let result = &answer["result"];
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    let inner = match text.split_once("<untrusted-data-") {
        Some((before, after)) => {
            assert!(before.contains("Do not"), "{text}");
            let (mark, rest) = after.split_once(">\n").unwrap();
            rest.strip_suffix(&format!("\n</untrusted-data-{mark}>")).unwrap()
        }
        None => text,
    };
    assert_eq!(tool != "search", inner.len() < text.len(), "{text}");
    (serde_json::from_str(inner).unwrap(), result["isError"] == true)
}

async fn refused(client: &Client, tool: &str, code: &str) -> String {
    let (told, is_error) = call(client, tool, code).await;
    assert!(is_error, "{told}");
    told["error"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn there_are_three_tools_with_one_argument_each() {
    let server = server().await;
    let client = &server.operator;
    let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": { "name": "t", "version": "1" } });
    let hello = ask(client, &[], &message("initialize", &hello)).await;
    assert!(!hello.headers.contains_key("mcp-session-id"));
    assert_eq!(hello.json(200)["result"]["serverInfo"]["name"], "bastide");
    let listed = ask(client, &[], &message("tools/list", &json!({}))).await.json(200);
    let tools = listed["result"]["tools"].as_array().unwrap().clone();
    let shown: Vec<Value> = tools
        .iter()
        .map(|tool| {
            assert_eq!(tool["inputSchema"]["required"], json!(["code"]));
            let hints = &tool["annotations"];
            let hint = |name: &str| hints[name].clone();
            json!([
                tool["name"],
                hint("readOnlyHint"),
                hint("destructiveHint"),
                hint("openWorldHint")
            ])
        })
        .collect();
    assert_eq!(
        shown,
        [
            json!(["search", true, false, false]),
            json!(["execute_read", true, false, true]),
            json!(["execute_write", false, true, true]),
        ]
    );
    server.stop().await;
}

#[tokio::test]
async fn only_a_known_bearer_from_a_known_place_may_call() {
    let server = server().await;
    let list = message("tools/list", &json!({}));
    let nobody = ask(&server.nobody(), &[], &list).await;
    nobody.problem(401, "unauthorized");
    assert!(nobody.header("www-authenticate").starts_with("Bearer"));
    let stranger = Client { key: Some("e2a_none".into()), ..server.nobody() };
    ask(&stranger, &[], &list).await.problem(401, "unauthorized");
    let basic = ask(&server.nobody(), &[("authorization", "Basic eDp5")], &list).await;
    basic.problem(401, "unauthorized");
    let client = &server.operator;
    for origin in ["https://evil.example", "null"] {
        assert_eq!(ask(client, &[("origin", origin)], &list).await.status, 403, "{origin}");
    }
    assert_eq!(ask(client, &[("origin", "http://localhost:5173")], &list).await.status, 200);
    let rebound = Client { ..client.clone() };
    let request =
        hyper::Request::builder().method("POST").uri("/mcp").header("host", "evil.example");
    let key = format!("Bearer {}", rebound.key.clone().unwrap());
    let request = request.header("authorization", key).body(Body::from(list.to_string()));
    assert_eq!(rebound.send(request.unwrap()).await.status, 403);
    for method in ["GET", "DELETE", "PUT"] {
        let request = client.request(method, "/mcp").header("accept", "text/event-stream");
        let answer = client.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, "POST"), "{method}");
    }
    let long = message(
        "tools/call",
        &json!({ "name": "search", "arguments": { "code": "x".repeat(1 << 20) } }),
    );
    assert_eq!(ask(client, &[], &long).await.status, 413);
    server.stop().await;
}

#[tokio::test]
async fn code_finds_what_it_may_call_and_calls_it() {
    let server = server().await;
    let client = &server.operator;
    let find = "async () => Object.entries(spec.paths).filter(([p]) => p.endsWith('/exec')).map(([p, o]) => \
        [p, Object.keys(o), typeof o.post.requestBody.content['application/json'].schema.properties])";
    let (found, _) = call(client, "search", find).await;
    assert_eq!(found["result"], json!([["/v1/sandboxes/{id}/exec", ["post"], "object"]]));
    let (hidden, _) = call(
        client,
        "search",
        "async () => Object.keys(spec.paths).filter(p => \
        /api-keys|tenants|secrets|billing|admin/.test(p))",
    )
    .await;
    assert_eq!(hidden["result"], json!([]));
    let job = "async () => {
        const made = await api.request({ method: 'POST', path: '/v1/sandboxes', body: { template: 'standard', name: 'box' } });
        const list = await api.request({ path: '/v1/sandboxes', query: {} });
        const gone = await api.request({ method: 'delete', path: `/v1/sandboxes/${made.data.id}` });
        console.log('made', { id: 1 }); console.error('oops');
        return { made: made.status, names: list.data.map(s => s.name), gone: gone.ok };
    }  // a comment at the end";
    let (done, is_error) = call(client, "execute_write", job).await;
    assert!(!is_error, "{done}");
    assert_eq!(done["result"], json!({ "made": 201, "names": ["box"], "gone": true }));
    assert_eq!((&done["stdout"], &done["stderr"]), (&json!("made {\"id\":1}\n"), &json!("oops\n")));
    let (read, _) = call(
        client,
        "execute_read",
        "async () => (await api.request({ path: '/v1/sandboxes/none' })).status",
    )
    .await;
    assert_eq!(read["result"], 404);
    let other = server.tenant("bob").await;
    let (read, _) = call(
        &other,
        "execute_read",
        "async () => (await api.request({ path: '/v1/sandboxes' })).data",
    )
    .await;
    assert_eq!(read["result"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn what_code_may_not_do_is_refused_outside_of_it() {
    let server = server().await;
    let client = &server.operator;
    // Node's own modules stand for an engine that was taken over: it says whatever it likes.
    let forged = "async () => {
        const raw = process._getActiveHandles().find((h) => h.remotePort);
        raw.write(JSON.stringify({ call: { id: 77, method: 'POST', path: '/v1/sandboxes', body: { template: 'standard' } } }) + '\\n');
        raw.write(JSON.stringify({ call: { id: 78, method: 'GET', path: '/v1/%61pi-keys' } }) + '\\n');
        await sleep(200);
        return (await api.request({ path: '/v1/sandboxes' })).data.length;
    }";
    let (told, _) = call(client, "execute_read", forged).await;
    assert_eq!(told["result"], 0, "{told}");
    let write = "async () => api.request({ method: 'POST', path: '/v1/sandboxes', body: {} })";
    assert!(refused(client, "execute_read", write).await.contains("use execute_write"));
    for path in [
        "/v1/api-keys",
        "/v1/%61pi-keys",
        "//v1/API-KEYS",
        "/x%2F..%2Fv1%2Ftenants%2Fme",
        "/mcp",
        "v1",
    ] {
        let code = format!("async () => api.request({{ path: '{path}' }})");
        let why = refused(client, "execute_write", &code).await;
        assert!(why.contains("path"), "{path}: {why}");
    }
    let many =
        "async () => { for (let i = 0; i < 9; i++) await api.request({ path: '/healthz' }) }";
    assert!(refused(client, "execute_read", many).await.contains("may make 5 requests"));
    let key = "async () => JSON.stringify(process.env) + JSON.stringify(process.argv)";
    let (env, _) = call(client, "execute_read", key).await;
    assert!(!env.to_string().contains(client.key.as_deref().unwrap()));
    server.stop().await;
}

#[tokio::test]
async fn code_that_fails_says_why() {
    let server = server().await;
    let client = &server.operator;
    for (code, why) in [
        ("async () => { throw new Error('boom') }", "Error: boom"),
        ("async () => { oops", "SyntaxError"),
        ("42", "async arrow function"),
        ("async () => { await sleep(20000) }", "did not end within 4000 ms"),
    ] {
        for tool in ["execute_read", "search"] {
            let told = refused(client, tool, code).await;
            assert!(told.contains(why), "{code}: {told}");
        }
    }
    let (long, is_error) = call(client, "execute_read", "async () => 'x'.repeat(300000)").await;
    assert!(!is_error && long["truncated"].is_string());
    assert!(long["result"].as_str().unwrap().len() <= 100_000);
    for arguments in [json!({}), json!({ "code": 1 }), json!({ "code": "1", "x": 1 })] {
        let params = json!({ "name": "search", "arguments": arguments });
        let answer = ask(client, &[], &message("tools/call", &params)).await;
        let answer: Value = serde_json::from_slice(&answer.bytes).unwrap();
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(answer.to_string().contains("code: ") || answer.to_string().contains("x: unknown"));
    }
    server.stop().await;
}

#[tokio::test]
async fn nothing_is_left_of_a_call_also_when_its_client_goes_away() {
    let server = server().await;
    let client = &server.operator;
    call(client, "execute_read", "async () => 1").await;
    let params =
        json!({ "name": "execute_read", "arguments": { "code": "async () => sleep(3500)" } });
    let mut held = Vec::new();
    for _ in 0..2 {
        let request = client
            .request("POST", "/mcp")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .body(Body::from(message("tools/call", &params).to_string()))
            .unwrap();
        let asking = client.clone();
        held.push(tokio_util::task::AbortOnDropHandle::new(
            tokio_util::task::TaskTracker::new().spawn(async move { asking.send(request).await }),
        ));
    }
    until(&server, 2).await;
    let third = refused(client, "execute_read", "async () => 1").await;
    assert!(third.contains("2 calls of this key run already"), "{third}");
    let listed = client.get("/v1/sandboxes").await.json(200);
    assert_eq!(listed, json!([]));
    drop(held);
    until(&server, 0).await;
    call(client, "execute_read", "async () => 1").await;
    server.stop().await;
}

async fn until(server: &TestServer, count: usize) {
    use driver::Driver as _;
    for _ in 0..500 {
        let all = server.driver.list().await.unwrap();
        if all.iter().filter(|seen| seen.tombstone.is_none()).count() == count {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("there are never {count} sandboxes");
}

#[tokio::test]
async fn the_list_of_endpoints_is_open_and_holds_no_secret() {
    let server = server().await;
    let listed = server.nobody().get("/debug/endpoints").await.json(200);
    assert_eq!(listed["tools"], json!(["search", "execute_read", "execute_write"]));
    assert!(!listed.to_string().contains(server.operator.key.as_deref().unwrap()));
    for one in listed["endpoints"].as_array().unwrap() {
        let said = |name: &str| one[name].as_str().unwrap();
        let request = server.nobody().request(said("method"), said("path"));
        let answer = server.nobody().send(request.body(Body::empty()).unwrap()).await;
        let wanted = if said("auth") == "none" { 200 } else { 401 };
        assert_eq!(answer.status.as_u16(), wanted, "{one}");
    }
    server.stop().await;
    let server = TestServer::start().await;
    assert_eq!(server.nobody().get("/debug/endpoints").await.status, 404);
    server.stop().await;
}
