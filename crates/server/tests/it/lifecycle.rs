//! Start, stop, pause, resume, delete, cancel: from every state.

use model::EndReason;
use serde_json::json;

use crate::harness::TestServer;

#[tokio::test]
async fn stop_and_start_keep_the_workspace() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let path = operator.sandbox().await;
    operator.upload(&format!("{path}/files?path=/workspace/a"), "kept").await.json(200);
    let stopped = operator.post_nothing(&format!("{path}/stop")).await.json(200);
    assert_eq!(stopped["state"], "stopped");
    assert_eq!(stopped["end_reason"], "user_request");
    let again = operator.post_nothing(&format!("{path}/stop")).await.json(200);
    assert_eq!(again["state"], "stopped");
    assert_eq!(operator.get(&path).await.json(200)["state"], "stopped");
    for (verb, body) in [("exec", json!({ "command": "true" })), ("cancel", json!({}))] {
        let answer = operator.post(&format!("{path}/{verb}"), &body).await;
        answer.problem(409, "wrong_state");
    }
    for verb in ["pause", "resume"] {
        operator.post_nothing(&format!("{path}/{verb}")).await.problem(409, "wrong_state");
    }
    for what in ["logs", "files?path=/workspace/a"] {
        operator.get(&format!("{path}/{what}")).await.problem(409, "wrong_state");
    }
    operator
        .upload(&format!("{path}/files?path=/workspace/b"), "x")
        .await
        .problem(409, "wrong_state");
    let started = operator.post_nothing(&format!("{path}/start")).await.json(200);
    assert_eq!(started["state"], "running");
    assert!(started.get("end_reason").is_none());
    let again = operator.post_nothing(&format!("{path}/start")).await.json(200);
    assert_eq!(again["state"], "running");
    let kept = operator.get(&format!("{path}/files?path=/workspace/a")).await;
    assert_eq!(&kept.bytes[..], b"kept");
    server.stop().await;
}

#[tokio::test]
async fn pause_and_resume() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let path = operator.sandbox().await;
    for _ in 0..2 {
        let paused = operator.post_nothing(&format!("{path}/pause")).await.json(200);
        assert_eq!(paused["state"], "paused");
    }
    let exec = operator.post(&format!("{path}/exec"), &json!({ "command": "true" })).await;
    exec.problem(409, "wrong_state");
    operator.post_nothing(&format!("{path}/cancel")).await.problem(409, "wrong_state");
    for _ in 0..2 {
        let resumed = operator.post_nothing(&format!("{path}/resume")).await.json(200);
        assert_eq!(resumed["state"], "running");
    }
    operator.post(&format!("{path}/exec"), &json!({ "command": "true" })).await.json(200);
    operator.post_nothing(&format!("{path}/pause")).await.json(200);
    let stopped = operator.post_nothing(&format!("{path}/stop")).await.json(200);
    assert_eq!(stopped["state"], "stopped");
    server.stop().await;
}

#[tokio::test]
async fn delete_works_from_every_state_and_twice() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    for verb in ["", "stop", "pause"] {
        let path = operator.sandbox().await;
        if !verb.is_empty() {
            operator.post_nothing(&format!("{path}/{verb}")).await.json(200);
        }
        for _ in 0..2 {
            let gone = operator.delete(&path).await.json(200);
            assert_eq!(gone["state"], "destroyed");
            assert_eq!(gone["end_reason"], "user_request");
            assert_eq!(format!("/v1/sandboxes/{}", gone["vm_id"].as_str().unwrap()), path);
        }
        let shown = operator.get(&path).await.json(200);
        assert_eq!(shown["state"], "destroyed");
        for verb in ["start", "stop", "pause", "resume", "cancel"] {
            operator.post_nothing(&format!("{path}/{verb}")).await.problem(404, "not_found");
        }
        let exec = operator.post(&format!("{path}/exec"), &json!({ "command": "true" })).await;
        exec.problem(404, "not_found");
        operator.patch(&path, &json!({ "name": "x" })).await.problem(404, "not_found");
        operator.get(&format!("{path}/logs")).await.problem(404, "not_found");
    }
    operator.delete("/v1/sandboxes/nobody").await.problem(404, "not_found");
    assert_eq!(server.driver.count(), 0);
    let list = operator.get("/v1/sandboxes").await.json(200);
    assert!(list.as_array().unwrap().iter().all(|one| one["state"] == "destroyed"), "{list}");
    server.stop().await;
}

#[tokio::test]
async fn compute_that_dies_ends_a_template_sandbox_and_stops_an_image_one() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    for (source, state) in [("template", "destroyed"), ("image", "stopped")] {
        let made = operator.create(&json!({ (source): "standard" })).await;
        let id = made["id"].as_str().unwrap();
        server.driver.kill(id.parse().unwrap(), EndReason::Oom);
        let mut seen = json!(null);
        for _ in 0..200 {
            seen = operator.get(&format!("/v1/sandboxes/{id}")).await.json(200);
            if seen["state"] == state {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(seen["state"], state);
        assert_eq!(seen["end_reason"], "oom");
    }
    server.stop().await;
}

#[tokio::test]
async fn cancel_reaches_nobody_without_a_client() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let path = operator.sandbox().await;
    let told = operator.post_nothing(&format!("{path}/cancel")).await.json(200);
    let id = path.rsplit('/').next().unwrap();
    assert_eq!(told, json!({ "vm_id": id, "cancelled": false, "reason": "user_request" }));
    operator.post_text(&format!("{path}/cancel"), "  ").await.json(200);
    assert_eq!(
        operator.post(&format!("{path}/cancel"), &json!({})).await.json(200)["reason"],
        "user_request"
    );
    for reason in ["credits_exhausted", "user_request", "admin_action", "timeout"] {
        let body = json!({ "reason": reason });
        let told = operator.post(&format!("{path}/cancel"), &body).await.json(200);
        assert_eq!(told["reason"], reason);
    }
    operator.post(&format!("{path}/cancel"), &json!({ "reason": "bored" })).await.refuses("reason");
    operator.post(&format!("{path}/cancel"), &json!({ "why": "x" })).await.refuses("why");
    operator.post_text(&format!("{path}/cancel"), "{").await.refuses("body");
    operator.post_nothing("/v1/sandboxes/nobody/cancel").await.problem(404, "not_found");
    assert_eq!(operator.get(&path).await.json(200)["state"], "running");
    server.stop().await;
}

#[tokio::test]
async fn usage_is_counted_on_the_host() {
    let server = TestServer::start().await;
    server.driver.set_cpu_usec(1_500_000);
    let path = server.operator.sandbox().await;
    let used = server.operator.get(&format!("{path}/usage")).await.json(200);
    assert!((used["cpu_seconds"].as_f64().unwrap() - 1.5).abs() < 1e-9, "{used}");
    for field in ["memory_bytes", "processes", "disk_bytes", "oom_kills"] {
        assert!(used[field].is_u64(), "{field}");
    }
    server.stop().await;
}
