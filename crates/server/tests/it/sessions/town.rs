//! Several servers on one data directory, and one database, as processes are: each on a runtime of its own, which can
//! be asked to end and can be dropped in the middle of anything. Their sandboxes have one agent daemon.

use std::path::PathBuf;
use std::sync::Arc;

use driver::fake::FakeDriver;
use engine::{Engine, EngineConfig, Followed, Pool};
use serde_json::json;
use server::{Config, Lease, Lock, Server};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{Duration, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::parts::Daemon;
use crate::client::{Client, PATIENCE};
use crate::harness::{Setup, store};

pub(super) struct Town {
    config: Config,
    pub(super) driver: FakeDriver,
    pub(super) dir: Arc<TempDir>,
    pub(super) daemon: Daemon,
}

/// One server.
pub(super) struct Replica {
    pub(super) operator: Client,
    runtime: Option<Runtime>,
    shutdown: CancellationToken,
    serving: JoinHandle<anyhow::Result<()>>,
}

impl Town {
    async fn new() -> Self {
        let daemon = Daemon::start().await;
        let Setup { config, pools, dir, .. } = Setup::new();
        let driver = pools[0].0.clone();
        driver.set_agents(daemon.port);
        // What they answer does not depend on which of them does.
        let public_url = Some("http://town.test".to_owned());
        let data_dir = PathBuf::from(dir.path());
        Self { config: Config { data_dir, public_url, ..config }, driver, dir, daemon }
    }

    /// Two servers: one that leads, and one that follows it.
    pub(super) async fn of_two() -> (Self, Replica, Replica) {
        let town = Self::new().await;
        let leader = town.join().await;
        assert_eq!(leader.role().await.as_deref(), Some("leader"));
        let follower = town.join().await;
        assert_eq!(follower.role().await.as_deref(), Some("follower"));
        (town, leader, follower)
    }

    /// When the leader has gone: the one that followed leads, and a new one follows.
    pub(super) async fn succession(&self, follower: Replica) -> (Replica, Replica) {
        follower.until_leads().await;
        (follower, self.join().await)
    }

    /// Whoever of the servers is left ends well, in this order, and then the daemon.
    pub(super) async fn end<const LEFT: usize>(self, left: [Replica; LEFT]) {
        for replica in left {
            replica.stop().await;
        }
        self.daemon.stop().await;
    }

    /// One more server. It leads if nobody else does.
    pub(super) async fn join(&self) -> Replica {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (config, driver) = (self.config.clone(), self.driver.clone());
        let shutdown = CancellationToken::new();
        let until = shutdown.clone();
        let served = Box::pin(serve(listener, config, driver, until));
        let serving = TaskTracker::new().spawn_on(served, runtime.handle());
        let mut replica = Replica {
            operator: Client { address, key: None },
            runtime: Some(runtime),
            shutdown,
            serving,
        };
        replica.until("it answers", |_| true).await;
        let key = std::fs::read_to_string(self.dir.path().join("operator.key")).unwrap();
        replica.operator.key = Some(key.trim().to_owned());
        replica
    }
}

/// As `bastide serve` does it.
async fn serve(
    listener: std::net::TcpListener,
    config: Config,
    driver: FakeDriver,
    until: CancellationToken,
) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let store = store(&config.data_dir);
    let mut server = Server::open(vec![TcpListener::from_std(listener)?], &config, store.clone())?;
    let name = "pool-0".to_owned();
    let lock = match Lock::try_take(&config.data_dir)? {
        Some(lock) => lock,
        None => {
            let followed = Followed { name: name.clone(), view: Arc::new(driver.clone()) };
            server.follow(Engine::follow(config.engine(), vec![followed], store.clone()))?;
            tokio::select! {
                lock = Lock::wait(&config.data_dir)? => lock??,
                () = until.cancelled() => {
                    server.end().await;
                    return Ok(());
                }
            }
        }
    };
    let lease = Lease::begin(lock, &store).await?;
    let pool = Pool { name, driver: Arc::new(driver), max_sandboxes: None };
    server::ensure_operator_key(&store, &config.data_dir).await?;
    let settings = EngineConfig { blobs: Some(config.blobs()?), ..config.engine() };
    let engine = Engine::start(settings, vec![pool], store.fenced(lease.epoch())).await?;
    server.lead(engine, Some(lease.epoch()))?;
    until.cancelled().await;
    server.end().await;
    drop(lease);
    Ok(())
}

impl Replica {
    /// A client of another owner on the free plan.
    pub(super) async fn tenant(&self, name: &str) -> Client {
        let body = json!({ "owner": format!("usr_{name}"), "plan": "free" });
        let made = self.operator.post("/v1/api-keys", &body).await.json(201);
        Client { key: Some(made["key"].as_str().unwrap().into()), ..self.operator }
    }

    /// The same caller, who asks here.
    pub(super) fn asked_by(&self, other: &Client) -> Client {
        Client { key: other.key.clone(), ..self.operator }
    }

    async fn role(&self) -> Option<String> {
        let health = self.operator.try_get("/healthz").await?;
        Some(health["role"].as_str()?.to_owned())
    }

    pub(super) async fn until_leads(&self) {
        self.until("it leads", |role| role == "leader").await;
    }

    async fn until(&self, what: &str, holds: impl Fn(&str) -> bool) {
        for _ in 0..2000 {
            if self.role().await.is_some_and(|role| holds(&role)) {
                return;
            }
            assert!(!self.serving.is_finished(), "it ended before {what}");
            sleep(Duration::from_millis(10)).await;
        }
        panic!("never: {what}");
    }

    /// As SIGTERM, and looks that it ends well.
    pub(super) async fn stop(mut self) {
        self.shutdown.cancel();
        timeout(PATIENCE, &mut self.serving).await.unwrap().unwrap().unwrap();
    }

    /// As `kill -9`: nothing of it goes on, and nobody is told.
    pub(super) fn kill(mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
