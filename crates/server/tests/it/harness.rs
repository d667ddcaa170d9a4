//! A running server to test against, and its orderly end.

use std::sync::Arc;
use std::time::Duration;

use driver::fake::FakeDriver;
use engine::{Clock, Engine, EngineConfig, Pool};
use server::Config;
use store::Store;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::{Client, PATIENCE};

/// What a test may want to be different.
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) pools: Vec<(FakeDriver, Option<u32>)>,
    pub(crate) dir: Arc<TempDir>,
}

pub(crate) struct TestServer {
    pub(crate) operator: Client,
    pub(crate) driver: FakeDriver,
    pub(crate) clock: Clock,
    pub(crate) dir: Arc<TempDir>,
    pub(crate) shutdown: CancellationToken,
    serving: JoinHandle<anyhow::Result<()>>,
}

impl Setup {
    pub(crate) fn new() -> Self {
        let text =
            "drain_seconds = 2\ntest_mode = true\n[policies]\ndefault = ['packages.example:443']\n";
        Self {
            config: toml::from_str(text).unwrap(),
            clock: Clock::system(),
            pools: vec![(FakeDriver::new(), None)],
            dir: Arc::new(tempfile::tempdir().unwrap()),
        }
    }

    pub(crate) fn with(toml: &str) -> Self {
        let setup = Self::new();
        let mut table = toml::Table::try_from(&setup.config).unwrap();
        merge(&mut table, toml.parse().unwrap());
        let config: Config = table.try_into().unwrap();
        config.check().unwrap();
        Self { config, ..setup }
    }

    pub(crate) async fn start(self) -> TestServer {
        let store = store(self.dir.path());
        let driver = self.pools[0].0.clone();
        let pools = self.pools.iter().enumerate().map(|(i, (driver, max_sandboxes))| Pool {
            name: format!("pool-{i}"),
            driver: Arc::new(driver.clone()),
            max_sandboxes: *max_sandboxes,
        });
        let config = Config { data_dir: self.dir.path().to_owned(), ..self.config };
        let blobs = Some(config.blobs().unwrap());
        let settings = EngineConfig { clock: self.clock.clone(), blobs, ..config.engine() };
        let engine = Engine::start(settings, pools.collect(), store.clone()).await.unwrap();
        let file = server::ensure_operator_key(&store, self.dir.path()).await.unwrap();
        let key = std::fs::read_to_string(file).unwrap().trim().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let until = shutdown.clone();
        let serving = TaskTracker::new().spawn(async move {
            server::serve(vec![listener], &config, engine, store, until).await
        });
        TestServer {
            operator: Client { address, key: Some(key) },
            driver,
            clock: self.clock,
            dir: self.dir,
            shutdown,
            serving,
        }
    }
}

impl TestServer {
    pub(crate) async fn start() -> Self {
        Setup::new().start().await
    }

    /// A client of another owner on the free plan.
    pub(crate) async fn tenant(&self, name: &str) -> Client {
        let body = serde_json::json!({ "owner": format!("usr_{name}"), "plan": "free" });
        let made = self.operator.post("/v1/api-keys", &body).await.json(201);
        Client { key: Some(made["key"].as_str().unwrap().into()), ..self.operator }
    }

    /// Somebody who has signed in, with an account's token.
    pub(crate) async fn account(&self, name: &str) -> Client {
        let nobody = self.nobody();
        let email = format!("{name}@e2a-qa.test");
        let asked = serde_json::json!({ "email": email });
        let sent = nobody.post("/v1/auth/register", &asked).await.json(201);
        let asked = serde_json::json!({ "email": email, "code": sent["verify_code"] });
        let signed_in = nobody.post("/v1/auth/verify-otp", &asked).await.json(200);
        Client { key: Some(signed_in["token"].as_str().unwrap().into()), ..nobody }
    }

    pub(crate) fn nobody(&self) -> Client {
        Client { key: None, ..self.operator }
    }

    /// Ends it as SIGTERM would, and looks that it does end.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        timeout(PATIENCE, self.serving).await.unwrap().unwrap().unwrap();
    }
}

/// What a server on that directory keeps.
pub(crate) fn store(dir: &std::path::Path) -> Store {
    match crate::again::url_for(dir) {
        Some(url) => Store::open_postgres(&url, dir).unwrap(),
        None => Store::open(&dir.join("bastide.db")).unwrap(),
    }
}

/// Whether a process with this argument runs on this machine.
fn runs(argument: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|c| *c == 0).any(|word| word == argument.as_bytes())
    })
}

/// Waits until such a process runs, or does not.
pub(crate) async fn becomes(wanted: bool, argument: &str) {
    for _ in 0..500 {
        if runs(argument) == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{argument}: running is not {wanted}");
}

fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}
