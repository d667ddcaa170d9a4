//! The model relay: what a program inside says, what the vendor hears, and what is counted.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::client::PATIENCE;
use crate::harness::{Setup, TestServer};
use crate::vendor::{Vendor, request, say, tokens};

async fn start(vendor: &Vendor) -> TestServer {
    let allowed = format!("[llm]\nallowed_base_urls = '{}'", vendor.origin);
    Setup::with(&allowed).start().await
}

fn with_agent(agent: &str, base: (&str, &str)) -> Value {
    json!({ "template": "standard", "agent": agent, "llm_key": "sk-real-1",
        "env": { base.0: base.1 } })
}

/// A sandbox with an agent of Anthropic's, whose model is the double.
async fn sandbox(server: &TestServer, vendor: &Vendor) -> Value {
    let base = format!("{}/tenant-a", vendor.origin);
    let body = with_agent("claude", ("ANTHROPIC_BASE_URL", &base));
    server.operator.post("/v1/sandboxes", &body).await.json(201)
}

#[tokio::test]
async fn the_vendor_hears_the_real_key_and_nothing_of_the_placeholder() {
    let vendor = Vendor::start().await;
    let server = start(&vendor).await;
    let sandbox = sandbox(&server, &vendor).await;
    let said = say(&server, &sandbox, request("/v1/messages?beta=true&key=placeholder")).await;
    assert_eq!(said.status, StatusCode::OK);
    assert!(said.body.starts_with(b"{\"type\":\"message\""));
    let heard = vendor.last();
    assert_eq!(heard.target, "/tenant-a/v1/messages?beta=true");
    assert_eq!(heard.headers["x-api-key"], "sk-real-1");
    assert_eq!(heard.headers["anthropic-version"], "2023-06-01");
    assert_eq!(heard.headers["host"], vendor.origin.trim_start_matches("http://"));
    assert_eq!(heard.headers["accept-encoding"], "identity");
    assert_eq!(heard.body, "{\"model\":\"claude\"}");
    for absent in ["authorization", "cookie", "x-hop"] {
        assert!(!heard.headers.contains_key(absent), "{absent}");
    }
    assert!(!format!("{heard:?}").contains("bastide-relay"));
    server.stop().await;
}

#[tokio::test]
async fn each_vendor_gets_its_key_where_it_looks_for_it() {
    let vendor = Vendor::start().await;
    let server = start(&vendor).await;
    for (agent, model, variable, header, value) in [
        ("codex", "gpt-5", "OPENAI_BASE_URL", "authorization", "Bearer sk-real-1"),
        ("deictic", "gemini-2.5-pro", "GOOGLE_GEMINI_BASE_URL", "x-goog-api-key", "sk-real-1"),
        ("deictic", "deepseek-chat", "DEEPSEEK_BASE_URL", "authorization", "Bearer sk-real-1"),
        ("deictic", "claude-x", "ANTHROPIC_BASE_URL", "x-api-key", "sk-real-1"),
    ] {
        let mut body = with_agent(agent, (variable, &vendor.origin));
        body["model"] = model.into();
        let sandbox = server.operator.post("/v1/sandboxes", &body).await.json(201);
        say(&server, &sandbox, request("/anything")).await;
        let heard = vendor.last();
        assert_eq!(heard.headers[header], value, "{model}");
        let keys = ["authorization", "x-api-key", "x-goog-api-key"];
        let sent = keys.iter().filter(|name| heard.headers.contains_key(**name)).count();
        assert_eq!(sent, 1, "{model}");
    }
    server.stop().await;
}

#[tokio::test]
async fn answers_are_streamed_and_counted() {
    let vendor = Vendor::start().await;
    let server = start(&vendor).await;
    let account = server.account("ann").await;
    let body = with_agent("claude", ("ANTHROPIC_BASE_URL", &vendor.origin));
    let sandbox = account.post("/v1/sandboxes", &body).await.json(201);
    let said = say(&server, &sandbox, request("/stream")).await;
    assert_eq!(said.headers["content-type"], "text/event-stream");
    assert!(!said.headers.contains_key("set-cookie"));
    assert!(said.body.ends_with(b"\"output_tokens\":1}}}\n\n"));
    say(&server, &sandbox, request("/v1/messages")).await;
    for _ in 0..500 {
        if tokens(&account).await == (14, 6) {
            return server.stop().await;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("counted: {:?}", tokens(&account).await);
}

#[tokio::test]
async fn a_long_answer_is_counted_too_and_so_are_calls_of_tools() {
    let vendor = Vendor::start().await;
    let server = start(&vendor).await;
    let account = server.account("ann").await;
    let body = with_agent("claude", ("ANTHROPIC_BASE_URL", &vendor.origin));
    let sandbox = account.post("/v1/sandboxes", &body).await.json(201);
    let said = say(&server, &sandbox, request("/long")).await;
    assert!(said.body.len() > 6 << 20);
    for _ in 0..500 {
        if tokens(&account).await == (900, 80) {
            let seen = account.get("/v1/dashboard/overview").await.json(200);
            assert_eq!(seen["billable_tool_calls"], 2);
            return server.stop().await;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("counted: {:?}", tokens(&account).await);
}

#[tokio::test]
async fn the_key_survives_the_server_is_replaced_at_once_and_goes_with_the_sandbox() {
    let vendor = Vendor::start().await;
    let server = start(&vendor).await;
    let made = sandbox(&server, &vendor).await;
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let plain = server.operator.sandbox().await;
    server.operator.patch(&plain, &json!({ "llm_key": "sk-2" })).await.refuses("llm_key");
    server.operator.patch(&path, &json!({ "llm_key": "" })).await.refuses("llm_key");
    server.operator.patch(&path, &json!({ "llm_key": "sk-real-2" })).await.json(200);
    say(&server, &made, request("/a")).await;
    assert_eq!(vendor.last().headers["x-api-key"], "sk-real-2");
    // Another server on the same data has it too.
    let (dir, pools) = (Arc::clone(&server.dir), vec![(server.driver.clone(), None)]);
    server.stop().await;
    let allowed = format!("[llm]\nallowed_base_urls = '{}'", vendor.origin);
    let server = Setup { dir, pools, ..Setup::with(&allowed) }.start().await;
    server.operator.get(&path).await.json(200);
    say(&server, &made, request("/a")).await;
    assert_eq!(vendor.last().headers["x-api-key"], "sk-real-2");

    // What lies on the disk does not tell it.
    for entry in std::fs::read_dir(server.dir.path()).unwrap().flatten() {
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        for secret in ["sk-real-1", "sk-real-2"] {
            let found = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!found, "{:?} has {secret}", entry.path());
        }
    }
    server.operator.delete(&path).await.json(200);
    // Nobody waits for what the store is told then.
    let mut said = say(&server, &made, request("/a")).await;
    for _ in 0..500 {
        if said.status == StatusCode::NOT_FOUND {
            break;
        }
        sleep(Duration::from_millis(10)).await;
        said = say(&server, &made, request("/a")).await;
    }
    assert_eq!(said.status, StatusCode::NOT_FOUND);
    server.stop().await;
}

#[tokio::test]
async fn a_path_cannot_lead_out_of_the_base_url() {
    let vendor = Vendor::start().await;
    let server = start(&vendor).await;
    let sandbox = sandbox(&server, &vendor).await;
    for path in ["/../tenant-b/v1", "/%2e%2e/tenant-b", "/a/../../tenant-b", "/.%2E/.%2e/x"] {
        let said = say(&server, &sandbox, request(path)).await;
        assert_eq!(said.status, StatusCode::BAD_REQUEST, "{path}");
        let told: Value = serde_json::from_slice(&said.body).unwrap();
        assert!(told["error"]["message"].as_str().unwrap().contains("path"), "{told}");
    }
    // Another host in the request line is nobody.
    say(&server, &sandbox, request("http://other.test/v1/x")).await;
    assert_eq!(vendor.last().target, "/tenant-a/v1/x");
    assert_eq!(vendor.count(), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_redirect_is_shown_and_not_followed() {
    let vendor = Vendor::start().await;
    let server = start(&vendor).await;
    let sandbox = sandbox(&server, &vendor).await;
    let said = say(&server, &sandbox, request("/moved")).await;
    assert_eq!(said.status, StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(said.headers["location"], HeaderValue::from_static("/elsewhere"));
    assert_eq!(vendor.count(), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_sandbox_has_so_many_calls_at_a_time() {
    let vendor = Vendor::start().await;
    let server = start(&vendor).await;
    let sandbox = sandbox(&server, &vendor).await;
    let calls = (0..40).map(|_| say(&server, &sandbox, request("/slow")));
    let said = futures_util::future::join_all(calls).await;
    let count = |status| said.iter().filter(|said| said.status == status).count();
    assert_eq!((count(StatusCode::OK), count(StatusCode::TOO_MANY_REQUESTS)), (32, 8));
    // And again as many when they are done.
    assert_eq!(say(&server, &sandbox, request("/a")).await.status, StatusCode::OK);
    server.stop().await;
}

#[tokio::test]
async fn only_public_https_and_what_the_operator_lists_may_be_a_model() {
    let vendor = Vendor::start().await;
    let origin = vendor.origin.clone();
    let setup = format!(
        "[llm]\nallowed_base_urls = ['{origin}']\n[hosts]\n'inside.test' = ['10.0.0.7']\n\
         'mixed.test' = ['1.1.1.1', '127.0.0.1']\n'outside.test' = ['1.1.1.1']"
    );
    let server = Setup::with(&setup).start().await;
    let port = origin.rsplit_once(':').unwrap().1;
    for bad in [
        "http://outside.test".to_owned(),
        "https://inside.test".into(),
        "https://mixed.test".into(),
        "https://no-such-host.invalid".into(),
        "https://127.0.0.1".into(),
        "https://[::1]".into(),
        "https://169.254.169.254".into(),
        format!("http://localhost:{port}"),
        format!("https://127.0.0.1:{port}"),
    ] {
        let body = with_agent("claude", ("ANTHROPIC_BASE_URL", &bad));
        let answer = server.operator.post("/v1/sandboxes", &body).await;
        answer.refuses("env.ANTHROPIC_BASE_URL");
    }
    for good in ["https://outside.test/v1", "https://1.1.1.1", &origin] {
        let body = with_agent("claude", ("ANTHROPIC_BASE_URL", good));
        server.operator.post("/v1/sandboxes", &body).await.json(201);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_name_that_turns_private_after_the_create_is_not_dialled() {
    let first = "[hosts]\n'model.test' = ['1.1.1.1']";
    let server = Setup::with(first).start().await;
    let body = with_agent("claude", ("ANTHROPIC_BASE_URL", "https://model.test"));
    let made = server.operator.post("/v1/sandboxes", &body).await.json(201);
    let (dir, pools) = (Arc::clone(&server.dir), vec![(server.driver.clone(), None)]);
    server.stop().await;
    // One that listens there would be found.
    let second = Setup::with("[hosts]\n'model.test' = ['127.0.0.1']");
    let server = Setup { dir, pools, ..second }.start().await;
    server.operator.get("/v1/sandboxes").await.json(200);
    let stream = timeout(PATIENCE, say(&server, &made, request("/v1/messages"))).await.unwrap();
    assert_eq!(stream.status, StatusCode::BAD_GATEWAY);
    let text = String::from_utf8_lossy(&stream.body).into_owned();
    assert!(text.contains("public addresses"), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn the_environment_inside_names_the_relay_and_no_key() {
    let vendor = Vendor::start().await;
    let server = start(&vendor).await;
    let made = sandbox(&server, &vendor).await;
    let path = format!("/v1/sandboxes/{}/exec", made["id"].as_str().unwrap());
    let env = server.operator.post(&path, &json!({ "command": "env" })).await.json(200);
    let env = env["output"].as_str().unwrap();
    for line in [
        "ANTHROPIC_BASE_URL=http://198.19.255.254:4010",
        "ANTHROPIC_API_KEY=bastide-relay",
        "LLM_API_KEY=bastide-relay",
    ] {
        assert!(env.lines().any(|one| one == line), "{line} is not in:\n{env}");
    }
    assert!(!env.contains("sk-real"), "{env}");
    let mut without = with_agent("claude", ("ANTHROPIC_BASE_URL", "https://1.1.1.1"));
    without["model_relay"] = json!(false);
    let made = server.operator.post("/v1/sandboxes", &without).await.json(201);
    let path = format!("/v1/sandboxes/{}/exec", made["id"].as_str().unwrap());
    let env = server.operator.post(&path, &json!({ "command": "env" })).await.json(200);
    let env = env["output"].as_str().unwrap();
    assert!(env.contains("ANTHROPIC_BASE_URL=https://1.1.1.1"), "{env}");
    assert!(!env.contains("bastide-relay") && !env.contains("sk-real"), "{env}");
    server.stop().await;
}
