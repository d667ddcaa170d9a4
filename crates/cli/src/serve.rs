//! `bastide serve`: settings, store, drivers, engine, front door, in that order; then the reverse.

mod unreachable;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use driver_linux::{DiskConfig, LinuxConfig, LinuxDriver};
use engine::{Engine, EngineConfig, Pool};
use server::Config;
use server::config::{Environment, Flags, PoolKind, PoolSettings, load};
use store::Store;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::unreachable::Unreachable;
use crate::failure::Failure;

/// In the data directory.
const DATABASE: &str = "bastide.db";

pub(crate) fn execute(flags: &Flags) -> Result<ExitCode, Failure> {
    let config = load(flags, &Environment::of_process())?;
    server::log::start(&config.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(config))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(config: Config) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&config.data_dir)
        .with_context(|| format!("make the data directory {}", config.data_dir.display()))?;
    // First, so that a taken port or a second server changes nothing.
    let listeners = server::bind(&config).await?;
    let settings = config.engine();
    let opened = open_pools(&config, &settings).await?;
    let store = Store::open(&config.data_dir.join(DATABASE)).context("open the store")?;
    server::ensure_operator_key(&store, &config.data_dir).await?;
    let engine = Engine::start(settings, opened.pools, store.clone()).await?;
    let shutdown = CancellationToken::new();
    let asked = TaskTracker::new();
    let signalled = shutdown.clone();
    asked.spawn(async move {
        if let Err(error) = server::signalled().await {
            tracing::error!(error = format!("{error:#}"), "cannot watch for signals: ending");
        }
        signalled.cancel();
    });
    let served = server::serve(listeners, &config, engine, store, shutdown).await;
    for driver in opened.linux {
        driver.close().await;
    }
    served
}

struct Opened {
    pools: Vec<Pool>,
    /// To close at the end, when nothing uses them any more.
    linux: Vec<LinuxDriver>,
}

async fn open_pools(config: &Config, settings: &EngineConfig) -> anyhow::Result<Opened> {
    let mut opened = Opened { pools: Vec::new(), linux: Vec::new() };
    for pool in config.pools() {
        let driver: Arc<dyn driver::Driver> = match pool.kind {
            PoolKind::Linux => {
                let linux = LinuxDriver::open(linux_config(config, settings, &pool)?)
                    .await
                    .map_err(anyhow::Error::from)
                    .with_context(|| format!("open pool {}", pool.name))?;
                opened.linux.push(linux.clone());
                Arc::new(linux)
            }
            PoolKind::Unreachable => Arc::new(Unreachable),
        };
        opened.pools.push(Pool { name: pool.name, driver, max_sandboxes: pool.max_sandboxes });
    }
    Ok(opened)
}

fn linux_config(
    config: &Config,
    settings: &EngineConfig,
    pool: &PoolSettings,
) -> anyhow::Result<LinuxConfig> {
    let data_dir = pool.data_dir.clone().unwrap_or_else(|| config.data_dir.clone());
    let disk = DiskConfig { pool_gb: config.disk.pool_gb.map(u64::from), ..DiskConfig::default() };
    let policies = settings.policies.clone();
    let warm = config.warm.clone();
    Ok(LinuxConfig { disk, policies, warm, ..LinuxConfig::new(data_dir, keeper_command()?) })
}

/// This program again, as the keeper.
pub(crate) fn keeper_command() -> anyhow::Result<Vec<PathBuf>> {
    let program = std::env::current_exe().context("find this program")?;
    Ok(vec![program, "keeper".into()])
}
