//! `/v1/usage` and `/v1/dashboard`.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;

use crate::harness::TestServer;

#[tokio::test]
async fn what_ran_is_shown_by_month_by_day_and_by_sandbox() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.account("ann").await, server.account("bob").await);
    for _ in 0..2 {
        let path = ann.sandbox().await;
        ann.delete(&path).await.json(200);
    }
    ann.sandbox().await;
    let mut now = ann.get("/v1/usage").await.json(200);
    for _ in 0..500 {
        // Legs are written behind the answers.
        if now["infra_usage"]["sandbox_count"] == 3 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        now = ann.get("/v1/usage").await.json(200);
    }
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    let period = format!("{}..{}", today.first_of_month(), today.last_of_month());
    assert_eq!(now["period"], period);
    assert_eq!(now["infra_usage"]["sandbox_count"], 3);
    assert!(now["infra_usage"]["cpu_seconds"].is_i64());
    assert_eq!(now["infra_usage"]["credits_used_usd"], 0.0);
    assert_eq!(now["credits"], json!({ "balance_usd": 0.0, "auto_topup_enabled": false }));
    assert_eq!(now.get("subtenant_id"), None);

    let tomorrow = today.tomorrow().unwrap();
    let history = ann.get(&format!("/v1/usage/history?to={tomorrow}")).await.json(200);
    let last = history["entries"].as_array().unwrap().last().unwrap();
    assert_eq!(last["period_start"], last["period_end"]);
    assert_eq!(last["session_count"], 0);
    let daily =
        format!("/v1/dashboard/usage/daily?from={}&to={tomorrow}", today.yesterday().unwrap());
    let daily = ann.get(&daily).await.json(200);
    assert_eq!(daily["entries"][0]["input_tokens"], 0);
    let overview = ann.get("/v1/dashboard/overview").await.json(200);
    assert_eq!(overview["sandbox_count"], 3);
    assert_eq!(overview["billable_tool_calls"], 0);

    let page = ann.get("/v1/dashboard/sandboxes?limit=2").await.json(200);
    assert_eq!(page["total"], 3);
    let shown = page["sandboxes"].as_array().unwrap();
    assert_eq!(shown.len(), 2);
    assert!(shown[0].get("last_ended_at").is_none(), "the newest runs");
    assert_eq!(shown[0]["starts"], 1);
    let rest = ann.get("/v1/dashboard/sandboxes?limit=2&offset=2").await.json(200);
    assert_eq!(rest["sandboxes"].as_array().unwrap().len(), 1);

    let theirs = bob.get("/v1/usage").await.json(200);
    assert_eq!(theirs["infra_usage"]["sandbox_count"], 0);
    assert_ne!(theirs["tenant_id"], now["tenant_id"]);
    assert_eq!(bob.get("/v1/dashboard/sandboxes").await.json(200)["total"], 0);
    server.stop().await;
}

#[tokio::test]
async fn days_that_are_none_are_named() {
    let server = TestServer::start().await;
    let ann = server.account("ann").await;
    for bad in ["2026-4-1", "yesterday", "2026-02-30", "2026-04-01T00:00:00Z", "", "20260401"] {
        ann.get(&format!("/v1/usage/history?from={bad}")).await.refuses("from");
    }
    let path = "/v1/usage/history";
    ann.get(&format!("{path}?from=2026-04-02&to=2026-04-02")).await.refuses("to");
    ann.get(&format!("{path}?from=2020-01-01&to=2026-04-02")).await.refuses("from");
    let daily = "/v1/dashboard/usage/daily";
    ann.get(daily).await.refuses("from");
    ann.get(&format!("{daily}?from=2026-04-02")).await.refuses("to");
    ann.get(&format!("{daily}?from=2026-04-02&to=2026-04-01")).await.refuses("to");
    let none = ann.get(&format!("{daily}?from=2020-04-02&to=2020-04-02")).await.json(200);
    assert_eq!(none, json!({ "entries": [] }));
    server.tenant("carol").await.get("/v1/usage").await.json(200);
    let by_key = server.tenant("carol").await.get("/v1/dashboard/overview").await;
    by_key.problem(401, "unauthorized");
    server.stop().await;
}
