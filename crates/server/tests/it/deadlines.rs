//! Clocks, seen from outside, with a clock that the test moves.

use std::time::Duration;

use engine::Clock;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::harness::{Setup, TestServer};

async fn manual() -> TestServer {
    let clock = Clock::manual(Timestamp::now());
    Setup { clock, ..Setup::new() }.start().await
}

/// Time goes on meanwhile, slowly: a timer that is due fires a moment after.
async fn becomes(server: &TestServer, path: &str, state: &str) -> Value {
    let mut seen = json!(null);
    for _ in 0..500 {
        seen = server.operator.get(path).await.json(200);
        if seen["state"] == state {
            return seen;
        }
        server.clock.advance(Duration::from_millis(10));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not {state}: {seen}");
}

async fn path_of(server: &TestServer, body: Value) -> String {
    let made = server.operator.create(&body).await;
    format!("/v1/sandboxes/{}", made["id"].as_str().unwrap())
}

#[tokio::test]
async fn an_idle_template_sandbox_is_destroyed_after_60_s() {
    let server = manual().await;
    let path = path_of(&server, json!({ "template": "standard" })).await;
    server.clock.advance(Duration::from_secs(59));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.operator.get(&path).await.json(200)["state"], "running");
    let exec = server.operator.post(&format!("{path}/exec"), &json!({ "command": "true" })).await;
    exec.json(200);
    server.clock.advance(Duration::from_secs(59));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.operator.get(&path).await.json(200)["state"], "running");
    server.clock.advance(Duration::from_secs(2));
    assert_eq!(becomes(&server, &path, "destroyed").await["end_reason"], "idle");
    server.stop().await;
}

#[tokio::test]
async fn an_idle_image_sandbox_is_stopped_after_15_min_and_deleted_after_a_day() {
    let server = manual().await;
    let path = path_of(&server, json!({ "image": "standard" })).await;
    server.clock.advance(Duration::from_secs(15 * 60 + 1));
    assert_eq!(becomes(&server, &path, "stopped").await["end_reason"], "idle");
    server.clock.advance(Duration::from_secs(24 * 3600 - 15 * 60 + 30));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.operator.get(&path).await.json(200)["state"], "stopped");
    server.clock.advance(Duration::from_secs(60));
    assert_eq!(becomes(&server, &path, "destroyed").await["end_reason"], "deadline");
    server.stop().await;
}

#[tokio::test]
async fn a_lifetime_ends_a_paused_sandbox_too() {
    let server = manual().await;
    let body = json!({ "template": "standard", "max_lifetime_seconds": 100 });
    let path = path_of(&server, body).await;
    server.operator.post_nothing(&format!("{path}/pause")).await.json(200);
    server.clock.advance(Duration::from_secs(99));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.operator.get(&path).await.json(200)["state"], "paused");
    server.clock.advance(Duration::from_secs(1));
    assert_eq!(becomes(&server, &path, "destroyed").await["end_reason"], "lifetime");
    server.stop().await;
}

#[tokio::test]
async fn a_destroyed_sandbox_is_shown_for_60_s() {
    let server = manual().await;
    let path = path_of(&server, json!({ "template": "standard" })).await;
    server.operator.delete(&path).await.json(200);
    server.clock.advance(Duration::from_secs(59));
    assert_eq!(server.operator.get(&path).await.json(200)["state"], "destroyed");
    server.clock.advance(Duration::from_secs(2));
    server.operator.get(&path).await.problem(404, "not_found");
    server.operator.delete(&path).await.problem(404, "not_found");
    assert_eq!(server.operator.get("/v1/sandboxes").await.json(200), json!([]));
    server.stop().await;
}
