//! The backend in `examples/` with the real server: killed in the middle, and started again.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::doubles::{AUTH, Daemon};
use super::{make, say};
use crate::harness::Setup;

struct Reference(Child);

impl Reference {
    fn start(dir: &Path, port: u16) -> (Self, u16) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/persistence/backend.py");
        let mut child = Command::new("python3")
            .arg(script)
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(["--database", dir.join("kept.db").to_str().unwrap()])
            .env("PERSISTENCE_AUTH", AUTH)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit_once(':').unwrap().1.parse().unwrap();
        (Self(child), port)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What it has of a conversation.
fn kept(port: u16, conversation: &str) -> Option<Value> {
    let path = format!("http://127.0.0.1:{port}/?conversation={conversation}&after=0&limit=1000");
    let program = "import json, sys, urllib.request as u\n\
        r = u.Request(sys.argv[1], headers={'Authorization': sys.argv[2]})\n\
        print(u.urlopen(r).read().decode())";
    let asked = Command::new("python3").args(["-c", program, &path, AUTH]).output().unwrap();
    serde_json::from_slice(&asked.stdout).ok()
}

async fn has(port: u16, conversation: &str, count: u64) -> Value {
    for _ in 0..200 {
        if let Some(kept) = kept(port, conversation)
            && kept["last_sequence"].as_u64().unwrap() >= count
        {
            return kept;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("it has not {count} events of {conversation}");
}

#[tokio::test]
async fn the_reference_backend_keeps_a_conversation_over_its_own_death() {
    let (daemon, dir) = (Daemon::start().await, tempfile::tempdir().unwrap());
    let (mut backend, port) = Reference::start(dir.path(), 0);
    let origin = format!("http://127.0.0.1:{port}");
    let setup = Setup::with(&format!("[persistence]\nallowed_urls = '{origin}'"));
    setup.pools[0].0.set_agents(daemon.port);
    let server = setup.start().await;
    let body = json!({ "template": "standard", "agent": "claude", "llm_key": "sk-1",
        "persistence_url": origin, "persistence_auth_header": AUTH });
    let sandbox = make(&server, &body).await;
    daemon.busy(true);
    daemon.records("s", 100);
    say(&server, &sandbox, "s").await;
    has(port, &sandbox, 100).await;
    backend.kill();
    daemon.records("s", 60);
    sleep(Duration::from_millis(1200)).await;
    let (_backend, _) = Reference::start(dir.path(), port);
    daemon.busy(false);
    let kept = has(port, &sandbox, 160).await;
    let events = kept["events"].as_array().unwrap();
    let numbers = events.iter().map(|one| one["sequence"].as_u64().unwrap());
    assert!(numbers.eq(1..=160));
    assert!(events.iter().all(|one| one["event"]["data"]["delta"] == "ünïcode ☃"));
    server.stop().await;
}
