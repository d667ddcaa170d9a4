//! `bastide serve`: settings, listeners, store, then a part: to lead, with drivers and an engine of its
//! own, or to follow whoever leads until that one ends. And the reverse.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use driver::Unreachable;
use driver_linux::egress::{EgressConfig, Resolver};
use driver_linux::template::{Credentials, ImageAccess};
use driver_linux::{
    DiskConfig, DiskKind, Fence, ImageSettings, LinuxConfig, LinuxDriver, LinuxView, Privilege,
    Weakness, make_data_dir,
};
use engine::{Engine, EngineConfig, Followed, Pool};
use server::config::{Environment, Flags, PoolKind, PoolSettings, load};
use server::{Config, Lease, Lock, Server};
use store::Store;
use tokio::time::{Instant, sleep};

use crate::failure::Failure;

/// For a predecessor that gave up the lease to be gone altogether.
const PREDECESSOR_WAIT: Duration = Duration::from_secs(10);

pub(crate) fn execute(flags: &Flags) -> Result<ExitCode, Failure> {
    run(load(flags, &Environment::of_process())?, None)
}

/// What else the process does while it serves; it ends with that.
pub(crate) type Beside = Box<dyn FnOnce() -> BesideTask>;
pub(crate) type BesideTask = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;

pub(crate) fn run(config: Config, beside: Option<Beside>) -> Result<ExitCode, Failure> {
    let privilege = driver_linux::enter(&config.data_dir)?;
    let weaknesses = driver_linux::weaknesses();
    server::log::start(&config.log)?;
    if privilege != Privilege::Host {
        tracing::info!(?privilege, "running without root, in a user namespace");
    }
    for Weakness { code, missing, effect, hint } in weaknesses {
        tracing::warn!(weaker = code, missing, hint, "{effect}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(config, beside));
    if served.is_err() {
        // Who lost the lease stops here, whatever it was doing.
        runtime.shutdown_background();
    }
    served?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(config: Config, beside: Option<Beside>) -> anyhow::Result<()> {
    make_data_dir(&config.data_dir)?;
    // First, so that a taken port changes nothing.
    let listeners = server::bind(&config).await?;
    let store = server::open_store(&config)?;
    let mut server = Server::open(listeners, &config, store.clone())?;
    server.listen_for_sessions(server::bind_rt(&config).await?)?;
    server.enter_roster()?;
    let dir = config.data_dir.clone();
    let mut town = Town { config, store, server, linux: Vec::new() };
    let mut signalled = std::pin::pin!(until(beside));
    let lock = match Lock::try_take(&dir)? {
        Some(lock) => lock,
        None => {
            town.follow()?;
            ready();
            tokio::select! {
                lock = Lock::wait(&dir)? => lock.context("wait for the lease")??,
                ended = &mut signalled => {
                    Box::pin(town.end()).await;
                    return ended;
                }
            }
        }
    };
    let lease = town.lead(lock).await?;
    ready();
    tokio::select! {
        ended = signalled => {
            Box::pin(town.end()).await;
            ended
        }
        () = lease.lost() => bail!("the lease on {} was lost: another server may act", dir.display()),
    }
}

/// Until the process is asked to end, or what it does beside is done.
async fn until(beside: Option<Beside>) -> anyhow::Result<()> {
    match beside {
        None => server::signalled().await,
        Some(beside) => tokio::select! {
            signalled = server::signalled() => signalled,
            done = beside() => done,
        },
    }
}

/// Tells the service manager, if one started us and wants to know (`Type=notify`): a restart of another
/// server waits for it.
fn ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let told = || -> std::io::Result<()> {
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address).map(drop)
    };
    if let Err(error) = told() {
        tracing::warn!(error = error.to_string(), "could not tell the service manager");
    }
}

/// A server and what it works with.
struct Town {
    config: Config,
    store: Store,
    server: Server,
    /// To close at the end, when nothing uses them any more.
    linux: Vec<LinuxDriver>,
}

impl Town {
    /// Takes over everything: what runs is adopted, what was left half done is finished.
    async fn lead(&mut self, lock: Lock) -> anyhow::Result<Lease> {
        let lease = Lease::begin(lock, &self.store).await.context("take the lease")?;
        tracing::info!(epoch = lease.epoch().0, "leading");
        let settings = self.config.engine();
        let pools = self.open_pools(&settings, &lease).await?;
        server::ensure_operator_key(&self.store, &self.config.data_dir).await?;
        let store = self.store.fenced(lease.epoch());
        let settings = EngineConfig { blobs: Some(self.config.blobs()?), ..settings };
        let engine = Engine::start(settings, pools, store).await?;
        self.server.lead(engine, Some(lease.epoch()))?;
        Ok(lease)
    }

    fn follow(&mut self) -> anyhow::Result<()> {
        tracing::info!("another server leads: following it");
        let mut followed = Vec::new();
        for pool in self.config.pools() {
            match pool.kind {
                PoolKind::Linux => {
                    let dir = self.dir_of(&pool);
                    make_data_dir(&dir)?;
                    let view = LinuxView::open(&dir).map_err(anyhow::Error::from)?;
                    followed.push(Followed { name: pool.name, view: Arc::new(view) });
                }
                PoolKind::Unreachable => {}
            }
        }
        self.server.follow(Engine::follow(self.config.engine(), followed, self.store.clone()))
    }

    async fn end(self) {
        self.server.end().await;
        for driver in self.linux {
            driver.close().await;
        }
    }

    async fn open_pools(
        &mut self,
        settings: &EngineConfig,
        lease: &Lease,
    ) -> anyhow::Result<Vec<Pool>> {
        let mut pools = Vec::new();
        for pool in self.config.pools() {
            let driver: Arc<dyn driver::Driver> = match pool.kind {
                PoolKind::Linux => {
                    let linux = self.open_linux(&pool, settings, lease).await;
                    let linux = linux.with_context(|| format!("open pool {}", pool.name))?;
                    self.linux.push(linux.clone());
                    Arc::new(linux)
                }
                PoolKind::Unreachable => Arc::new(Unreachable),
            };
            pools.push(Pool { name: pool.name, driver, max_sandboxes: pool.max_sandboxes });
        }
        Ok(pools)
    }

    async fn open_linux(
        &self,
        pool: &PoolSettings,
        settings: &EngineConfig,
        lease: &Lease,
    ) -> anyhow::Result<LinuxDriver> {
        let until = Instant::now() + PREDECESSOR_WAIT;
        loop {
            match LinuxDriver::open(self.linux_config(pool, settings, lease)?).await {
                Err(model::Error::Unavailable { .. }) if Instant::now() < until => {
                    sleep(Duration::from_millis(20)).await;
                }
                opened => return Ok(opened?),
            }
        }
    }

    fn linux_config(
        &self,
        pool: &PoolSettings,
        settings: &EngineConfig,
        lease: &Lease,
    ) -> anyhow::Result<LinuxConfig> {
        let lease = lease.clone();
        Ok(LinuxConfig {
            disk: disk(&self.config.disk),
            policies: settings.policies.clone(),
            warm: self.config.warm.clone().into_iter().chain(self.config.code.warm()).collect(),
            images: images(&self.config.images)?,
            egress: EgressConfig {
                resolver: Resolver::with_hosts(self.config.hosts.clone()),
                ..EgressConfig::default()
            },
            fence: Fence::new(move || lease.holds()),
            sealer: self.config.sealer()?,
            ..LinuxConfig::new(self.dir_of(pool))
        })
    }

    fn dir_of(&self, pool: &PoolSettings) -> PathBuf {
        pool.data_dir.clone().unwrap_or_else(|| self.config.data_dir.clone())
    }
}

fn disk(settings: &server::config::Disk) -> DiskConfig {
    use server::config::DiskKind as Wanted;
    DiskConfig {
        kind: match settings.kind {
            Wanted::Auto => DiskKind::Auto,
            Wanted::Btrfs => DiskKind::Btrfs,
            Wanted::Image => DiskKind::Image,
            Wanted::Plain => DiskKind::Plain,
        },
        pool_gb: settings.pool_gb.map(u64::from),
        reserve_bytes: settings.reserve_mib << 20,
        bytes_per_second: settings.io_bytes_per_second,
        operations_per_second: settings.io_operations_per_second,
    }
}

fn images(settings: &server::config::Images) -> anyhow::Result<ImageSettings> {
    let credentials = match &settings.docker_config {
        Some(path) => Credentials::from_docker_config(path).context("images.docker_config")?,
        None => Credentials::default(),
    };
    let access = ImageAccess {
        credentials,
        plain_http: settings.plain_http.clone(),
        bytes_max: u64::from(settings.max_gb) << 30,
        time_max: Duration::from_secs(settings.pull_timeout_seconds),
        ..ImageAccess::default()
    };
    Ok(ImageSettings { access, allowed_registries: settings.allowed_registries.clone() })
}
