//! The document, tried out: a tester sends what follows from it and what nearly does, and looks that every
//! answer is one that the document names, and none a bug of ours (`tests-api`).

use std::path::Path;
use std::process::Stdio;

use serde_json::json;

use crate::client::Client;
use crate::harness::{Setup, TestServer};

/// The same requests in every run.
const SEED: &str = "20260722";
/// Never ends by itself; it has tests of its own.
const ENDLESS: &str = "follow_events";

/// Many sign-ups from one address, and whatever else would only be refused for coming often.
const SETTINGS: &str = "[auth]\nattempts_per_minute = 100000\n[limits]\nbody_timeout_seconds = 5\n";

async fn try_out(client: &Client, (max_examples, more): (&str, &[&str])) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests-api");
    let ran = tokio::process::Command::new(root.join("venv/bin/schemathesis"))
        .args(["--config-file", "schemathesis.toml", "run"])
        .arg(format!("http://{}/openapi.json", client.address))
        .args(["--checks", "no_bug_of_ours,status_code_conformance", "--seed", SEED])
        .args(["--phases", "examples,coverage,fuzzing", "--max-examples", max_examples])
        .args(["--workers", "1", "--generation-database", "none", "--no-color"])
        .args(["--suppress-health-check", "all", "--exclude-operation-id", ENDLESS])
        .args(["-H", &format!("Authorization: Bearer {}", client.key.as_deref().unwrap())])
        .args(more)
        .env("SCHEMATHESIS_HOOKS", "checks")
        .env("PYTHONPATH", &root)
        .current_dir(&root)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("scripts/install-deps.sh test has made tests-api/venv");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("API Operations"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_gets_no_answer_that_the_document_does_not_name() {
    let server = Setup::with(SETTINGS).start().await;
    try_out(&server.operator, ("12", &[])).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_does_a_tenant() {
    let server: TestServer = Setup::with(SETTINGS).start().await;
    let ann = server.account("ann").await;
    ann.create(&json!({ "template": "standard", "name": "there" })).await;
    try_out(&ann, ("6", &["--exclude-path-regex", "^/v1/admin"])).await;
    server.stop().await;
}
