//! `bastide session` against a server whose sandboxes have a real agent daemon, with the mock agent in it.

use std::collections::BTreeMap;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use driver::fake::FakeDriver;
use engine::{Engine, EngineConfig, Pool};
use model::{SessionId, SessionStatus};
use server::Config;
use store::{SessionRecord, Store};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Place {
    server: String,
    dir: tempfile::TempDir,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Place {
    async fn start() -> Self {
        let (dir, stop, tasks) =
            (tempfile::tempdir().unwrap(), CancellationToken::new(), TaskTracker::new());
        let agents = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let driver = FakeDriver::new();
        driver.set_agents(agents.local_addr().unwrap().port());
        let daemon = agentd::Config {
            data_dir: dir.path().join("agents"),
            directory: dir.path().to_owned(),
            environment: BTreeMap::new(),
            token: None,
            task: None,
            cors: None,
            patience: Duration::ZERO,
            adopt_orphans: false,
            mock_delay: Duration::from_millis(1),
            deictic: Vec::new(),
        };
        let until = stop.clone().cancelled_owned();
        tasks.spawn(async move { agentd::serve(agents, daemon, until).await.unwrap() });
        let config =
            Config { data_dir: dir.path().to_owned(), drain_seconds: 2, ..Config::default() };
        let store = Store::open(&dir.path().join("bastide.db")).unwrap();
        let blobs = Some(config.blobs().unwrap());
        let settings = EngineConfig { blobs, ..config.engine() };
        let pool = Pool { name: "pool".into(), driver: Arc::new(driver), max_sandboxes: None };
        let engine = Engine::start(settings, vec![pool], store.clone()).await.unwrap();
        server::ensure_operator_key(&store, dir.path()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let until = stop.clone();
        tasks.spawn(async move {
            server::serve(vec![listener], &config, engine, store, until).await.unwrap();
        });
        Self { server, dir, stop, tasks }
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        let ran = Command::new(env!("CARGO_BIN_EXE_bastide"))
            .arg("session")
            .args(arguments)
            .env_clear()
            .env("BASTIDE_DATA_DIR", self.dir.path())
            .env("BASTIDE_SERVER", &self.server)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        timeout(PATIENCE, ran).await.unwrap().unwrap()
    }

    async fn says(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        timeout(PATIENCE, self.tasks.wait()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_started_talked_to_read_forked_resumed_and_deleted() {
    let place = Place::start().await;
    let id = place.says(&["start", "--agent", "mock", "--detach"]).await;
    let id = id.trim();
    assert!(id.starts_with("ses_"), "{id}");

    let said = place.says(&["send", id, "tool"]).await;
    for part in
        ["> tool\n", "● mock.search example\n", "  mock search results\n", "  -old\n  +new\n"]
    {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
    let lines = place.says(&["send", id, "echo as json", "--json"]).await;
    let parsed: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(parsed.iter().all(|event| event["session_id"] == id), "{lines}");
    assert!(lines.contains("as json"));

    let list = place.says(&["list"]).await;
    assert!(list.contains(id) && list.contains("running") && list.contains("mock"), "{list}");
    let markdown = place.says(&["transcript", id]).await;
    assert!(markdown.contains("## User\n\ntool\n\n### Tool: mock.search\n"), "{markdown}");
    let jsonl = place.says(&["transcript", id, "--jsonl"]).await;
    assert!(jsonl.lines().count() > 5);
    for line in jsonl.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }

    let fork = place.says(&["fork", id, "--at", "5", "--detach"]).await;
    assert!(fork.trim().starts_with("ses_") && fork.trim() != id, "{fork}");
    let resumed = place.says(&["resume", id, "--detach"]).await;
    assert_eq!(resumed.trim(), id);
    let said = place.says(&["send", id, "echo again"]).await;
    assert!(said.contains("again"), "{said}");

    assert_eq!(place.says(&["delete", id, fork.trim()]).await.lines().count(), 2);
    let gone = place.run(&["send", id, "hello"]).await;
    assert_eq!(gone.status.code(), Some(1));
    let told = String::from_utf8_lossy(&gone.stderr);
    assert!(told.contains("error: no such session"), "{told}");
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_has_all_of_them_however_many_pages_that_takes() {
    let place = Place::start().await;
    let id = place.says(&["start", "--agent", "mock", "--detach"]).await;
    let store = Store::open(&place.dir.path().join("bastide.db")).unwrap();
    let one = store.session(id.trim().parse().unwrap()).await.unwrap().unwrap();
    let ended = SessionRecord { status: SessionStatus::Completed, sandbox: None, ..one };
    let write =
        |_| store.create_session(SessionRecord { id: SessionId::generate(), ..ended.clone() });
    let written: Vec<_> = (0..1000).map(write).collect();
    for one in written {
        one.await.unwrap();
    }
    let list: serde_json::Value =
        serde_json::from_str(&place.says(&["list", "--json"]).await).unwrap();
    assert_eq!(list["sessions"].as_array().unwrap().len(), 1001);
    place.end().await;
}
