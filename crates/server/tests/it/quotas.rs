//! The free plan's quotas (003), and the settings that change them.

use serde_json::json;

use crate::client::Answer;
use crate::harness::{Setup, TestServer};

#[track_caller]
fn exceeded(answer: &Answer) -> u64 {
    answer.problem(429, "quota_exceeded");
    answer.header("retry-after").parse().unwrap()
}

#[tokio::test]
async fn the_free_plan_has_3_ephemeral_and_1_persistent() {
    let server = TestServer::start().await;
    let ann = server.tenant("ann").await;
    let ephemeral = json!({ "template": "standard" });
    let persistent = json!({ "image": "standard", "tier": "persistent" });
    let first = ann.sandbox().await;
    for _ in 0..2 {
        ann.create(&ephemeral).await;
    }
    let wait = exceeded(&ann.post("/v1/sandboxes", &ephemeral).await);
    assert!((1..=3600).contains(&wait), "{wait}");
    ann.create(&persistent).await;
    exceeded(&ann.post("/v1/sandboxes", &persistent).await);
    server.tenant("bob").await.create(&ephemeral).await;
    ann.delete(&first).await.json(200);
    ann.create(&ephemeral).await;
    server.stop().await;
}

#[tokio::test]
async fn disks_of_a_tier_have_a_sum() {
    let server = TestServer::start().await;
    let ann = server.tenant("ann").await;
    ann.create(&json!({ "template": "standard", "disk_gb": 18 })).await;
    let more = json!({ "template": "standard", "disk_gb": 3 });
    exceeded(&ann.post("/v1/sandboxes", &more).await);
    ann.create(&json!({ "template": "standard", "disk_gb": 2 })).await;
    ann.create(&json!({ "image": "standard", "tier": "persistent", "disk_gb": 20 })).await;
    server.stop().await;
}

#[tokio::test]
async fn a_stopped_sandbox_does_not_count_until_it_starts() {
    let server = Setup::with("[quotas.free]\nephemeral_max = 1\n").start().await;
    let ann = server.tenant("ann").await;
    let first = ann.sandbox().await;
    ann.post_nothing(&format!("{first}/stop")).await.json(200);
    let second = ann.sandbox().await;
    exceeded(&ann.post_nothing(&format!("{first}/start")).await);
    ann.delete(&second).await.json(200);
    ann.post_nothing(&format!("{first}/start")).await.json(200);
    server.stop().await;
}

#[tokio::test]
async fn the_operator_has_no_limits() {
    let server = TestServer::start().await;
    for _ in 0..5 {
        server.operator.sandbox().await;
        server.operator.create(&json!({ "image": "standard", "tier": "persistent" })).await;
    }
    server.stop().await;
}
