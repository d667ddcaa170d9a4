//! Health, settings, tokens, browsers, and what is not there.

use guest_proto::{GUEST_PORT, Init};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::guest::TestGuest;
use crate::wire::{call, output, send, shell, stream};

const SIGNED: &str = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E";

async fn set_token(guest: &TestGuest, token: &str) {
    let init = Init { access_token: Some(token.into()), ..Init::default() };
    guest.guest.init(&init).await.unwrap();
}

#[tokio::test]
async fn health_proves_who_answers() {
    let guest = TestGuest::start();
    let health = guest.guest.health().await.unwrap();
    assert_eq!(health.nonce, "a-nonce");
    assert_eq!(health.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(send(&guest, "GET /health", &[], b"").await.status, 204);
}

#[tokio::test]
async fn init_sets_what_commands_find() {
    let guest = TestGuest::start();
    let body = json!({ "envVars": { "SET": "by init", "FROM_SPEC": "replaced" }, "defaultWorkdir": "/usr" });
    let answer = send(&guest, "POST /init", &[], body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
    let (messages, _) =
        stream(&guest, "process.Process/Start", &[], shell("echo $SET $FROM_SPEC; pwd")).await;
    assert_eq!(output(&messages, "stdout"), "by init replaced\n/usr\n");
    let envs = send(&guest, "GET /envs", &[], b"").await.json();
    assert_eq!(envs, json!({ "SET": "by init", "FROM_SPEC": "replaced" }));
    assert_eq!(send(&guest, "POST /init", &[], b"").await.status, 204, "nothing is fine, too");
}

#[tokio::test]
async fn an_overtaken_init_changes_nothing() {
    let guest = TestGuest::start();
    for (value, at) in [("new", "2030-01-01T00:00:00.5Z"), ("old", "2030-01-01T00:00:00Z")] {
        let body = json!({ "envVars": { "WHICH": value }, "timestamp": at }).to_string();
        assert_eq!(send(&guest, "POST /init", &[], body.as_bytes()).await.status, 204);
    }
    assert_eq!(send(&guest, "GET /envs", &[], b"").await.json()["WHICH"], "new");
}

#[tokio::test]
async fn metrics_are_measured() {
    let guest = TestGuest::start();
    let metrics = send(&guest, "GET /metrics", &[], b"").await.json();
    for field in
        ["ts", "cpu_count", "mem_total", "mem_used", "mem_total_mib", "disk_total", "disk_used"]
    {
        assert!(metrics[field].as_u64().is_some_and(|value| value > 0), "{field}: {metrics}");
    }
    let percent = metrics["cpu_used_pct"].as_f64().unwrap();
    assert!((0.0..=100.0).contains(&percent), "{metrics}");
    assert!(metrics["mem_cache"].is_u64() && metrics["mem_used_mib"].is_u64());
}

#[tokio::test]
async fn with_a_token_set_envd_needs_it() {
    let guest = TestGuest::start();
    set_token(&guest, "secret").await;
    let refused = send(&guest, "GET /envs", &[], b"").await;
    assert_eq!((refused.status, refused.json()["code"].as_u64()), (401, Some(401)));
    assert_eq!(send(&guest, "GET /envs", &["X-Access-Token: wrong!"], b"").await.status, 401);
    assert_eq!(send(&guest, "GET /envs", &["X-Access-Token: secret"], b"").await.status, 200);
    assert_eq!(call(&guest, "process.Process/List", json!({})).await.status, 401);
    // The host's own socket needs none for what is the host's.
    guest.guest.health().await.unwrap();
    guest.guest.sync("/").await.unwrap();
}

#[tokio::test]
async fn the_token_is_changed_only_by_who_knows_it() {
    let guest = TestGuest::start();
    set_token(&guest, "first").await;
    set_token(&guest, "first").await;
    let second = json!({ "accessToken": "second" }).to_string();
    assert_eq!(send(&guest, "POST /init", &[], second.as_bytes()).await.status, 401);
    let knows = ["X-Access-Token: first"];
    assert_eq!(send(&guest, "POST /init", &knows, second.as_bytes()).await.status, 204);
    assert_eq!(send(&guest, "GET /envs", &["X-Access-Token: second"], b"").await.status, 200);
}

#[tokio::test]
async fn files_take_a_signature_instead_of_the_token() {
    let guest = TestGuest::start();
    set_token(&guest, "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0").await;
    std::fs::write(guest.path("hello.txt"), "hello").unwrap();
    let check = async |query: &str, headers: &[&str], status: u16, text: &str| {
        let answer = send(&guest, &format!("GET /files?{query}"), headers, b"").await;
        assert_eq!(answer.status, status, "{query}: {}", answer.text());
        assert!(answer.text().contains(text), "{query}: {}", answer.text());
    };
    let hello = "path=hello.txt";
    check(hello, &[], 401, "missing signature query parameter").await;
    check(
        hello,
        &["X-Access-Token: wrong"],
        401,
        "access token present in header but does not match",
    )
    .await;
    check(hello, &["X-Access-Token: 0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"], 200, "hello").await;
    check(&format!("{hello}&signature=v1_x"), &[], 401, "invalid signature").await;
    // Of the user `user`, who is unknown here: the signature is right, the user is not.
    let signed = format!("{hello}&username=user&signature={SIGNED}");
    check(&signed, &[], 401, "error looking up user 'user': user: unknown user user").await;
    check(&format!("{signed}&signature_expiration=1"), &[], 401, "invalid signature").await;
}

#[tokio::test]
async fn an_expired_signature_is_refused() {
    use sha2::Digest as _;
    let guest = TestGuest::start();
    set_token(&guest, "t").await;
    std::fs::write(guest.path("f"), "x").unwrap();
    for (expiration, status, text) in
        [(1_u64, 401, "signature is already expired"), (9_999_999_999, 200, "x")]
    {
        let digest = sha2::Sha256::digest(format!("f:read::t:{expiration}"));
        let signature =
            crate::wire::encode_bytes(&digest).trim_end_matches('=').replace('+', "%2B");
        let line =
            format!("GET /files?path=f&signature=v1_{signature}&signature_expiration={expiration}");
        let answer = send(&guest, &line, &[], b"").await;
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.text().contains(text), "{}", answer.text());
    }
}

#[tokio::test]
async fn browsers_may_call() {
    let guest = TestGuest::start();
    set_token(&guest, "secret").await;
    let preflight = send(&guest, "OPTIONS /files", &["Origin: https://example.org"], b"").await;
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), Some("*"));
    assert_eq!(preflight.header("access-control-allow-headers"), Some("*"));
    let health = send(&guest, "GET /health", &["Origin: https://example.org"], b"").await;
    assert_eq!(health.header("access-control-allow-origin"), Some("*"));
}

#[tokio::test]
async fn what_is_not_there_says_so_in_json() {
    let guest = TestGuest::start();
    for (line, status) in [
        ("GET /", 404),
        ("GET /bastide/v1/nothing", 404),
        ("PUT /health", 405),
        ("DELETE /bastide/v1/tail", 405),
    ] {
        let answer = send(&guest, line, &[], b"").await;
        assert_eq!(answer.status, status, "{line}");
        assert_eq!(answer.json()["code"], status, "{line}");
    }
}

#[tokio::test]
async fn control_routes_do_not_exist_through_a_tunnel() {
    let guest = TestGuest::start();
    set_token(&guest, "secret").await;
    for (line, status) in [
        ("GET /health", "204"),
        ("POST /init", "404"),
        ("POST /bastide/v1/sync?path=/", "404"),
        ("GET /envs", "401"),
    ] {
        let mut tunnel = guest.guest.tunnel(GUEST_PORT).await.unwrap();
        let request =
            format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        tunnel.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tunnel.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(status), "{line}: {answer}");
    }
}
