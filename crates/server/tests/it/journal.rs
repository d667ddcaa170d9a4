//! What is logged: a line for every request, and never a secret.

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;

use crate::client::Client;
use crate::harness::TestServer;

#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Vec<u8>>>);

impl io::Write for Journal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Journal {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Journal {
    /// Keeps what is logged from now on; a test has its process to itself.
    pub(crate) fn start(level: tracing::Level) -> Self {
        let journal = Self::default();
        tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_max_level(level)
            .with_writer(journal.clone())
            .try_init()
            .unwrap();
        journal
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[tokio::test]
async fn every_request_has_a_line_and_no_secret_is_in_any() {
    // Everything, of every crate.
    let journal = Journal::start(tracing::Level::TRACE);
    let server = TestServer::start().await;
    let operator = &server.operator;
    let made = operator.post_nothing("/v1/api-keys").await.json(201);
    let path = operator.sandbox().await;
    let wrong = Client { key: Some("e2a_live_TOPSECRET1".into()), ..operator.clone() };
    wrong.get("/v1/sandboxes").await.problem(401, "unauthorized");
    operator.get("/v1/sandboxes?token=TOPSECRET2").await;
    let env = json!({ "command": "echo TOPSECRET3", "env": { "A": "TOPSECRET4" },
        "stdin": "TOPSECRET5" });
    operator.post(&format!("{path}/exec"), &env).await.json(200);
    let agent = json!({ "template": "standard", "agent": "claude", "llm_key": "TOPSECRET6",
        "env": { "B": "TOPSECRET7" }, "agent_env": { "D": "TOPSECRET10" } });
    operator.create(&agent).await;
    let persistence = json!({ "template": "standard", "agent": "claude", "llm_key": "TOPSECRET6",
        "persistence_url": "https://1.1.1.1/", "persistence_auth_header": "Bearer TOPSECRET8" });
    operator.post("/v1/sandboxes", &persistence).await.json(201);
    let kept = json!({ "template": "standard", "env": { "C": "TOPSECRET9" } });
    operator.create(&kept).await;
    let key = operator.key.clone().unwrap();
    server.stop().await;

    let text = journal.text();
    let secrets = [key.as_str(), made["key"].as_str().unwrap(), "TOPSECRET"];
    for line in text.lines() {
        for secret in secrets {
            assert!(!line.contains(secret), "{line}");
        }
    }
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let access: Vec<Value> = lines.filter(|line| line["target"] == "access").collect();
    let statuses: Vec<u64> = access.iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 201, 401, 400, 200, 201, 201, 201]);
    for line in &access {
        assert!(line["latency_ms"].as_f64().unwrap() > 0.0, "{line}");
        assert!(line["span"]["request.id"].as_str().unwrap().starts_with("req-"), "{line}");
        assert!(!line["path"].as_str().unwrap().contains('?'), "{line}");
    }
}
