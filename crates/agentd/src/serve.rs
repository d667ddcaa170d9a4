//! Serving: the caller binds and decides when to stop.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::future::{Future, IntoFuture as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agents;
use crate::daemon::Daemon;
use crate::host::Host;
use crate::http::{Cors, Token, router};
use crate::process::orphans;
use crate::task::TaskPlace;

/// How long connections and tasks may take to end after everything else has.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// How a daemon is set up.
pub struct Config {
    pub data_dir: PathBuf,
    /// Where sessions work that do not say where.
    pub directory: PathBuf,
    /// What agents get: see [`crate::host::passed_environment`].
    pub environment: BTreeMap<OsString, OsString>,
    pub token: Option<Token>,
    /// Where the one-shot task of a sandbox has its files; elsewhere there is none.
    pub task: Option<TaskPlace>,
    pub cors: Option<Cors>,
    /// How long running turns may go on after the stop.
    pub patience: Duration,
    /// This process has no other children: what agents leave behind becomes its own and ends with it.
    pub adopt_orphans: bool,
    /// What the mock agent takes between two things that it says; 200 ms for the contract.
    pub mock_delay: Duration,
    /// Our own agent as a command: a program and its first arguments.
    pub deictic: Vec<OsString>,
}

/// Serves until `stop`, then drains: no new connection, turns end or are stopped, sessions are kept.
pub async fn serve(
    listener: TcpListener,
    config: Config,
    stop: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let host = Arc::new(Host {
        data_dir: config.data_dir,
        environment: config.environment,
        directory: config.directory,
        tasks: TaskTracker::new(),
        stop: CancellationToken::new(),
        mock_delay: config.mock_delay,
        deictic: config.deictic,
    });
    if config.adopt_orphans {
        orphans::adopt()?;
        let stop = host.stop.clone();
        host.tasks.spawn(async move {
            if let Err(error) = orphans::reap_until(stop).await {
                tracing::error!("cannot watch for processes that end: {error}");
            }
        });
    }
    let daemon = Daemon::open(Arc::clone(&host), agents::all(), config.task)?;
    let app = router(Arc::clone(&daemon), config.token, config.cors);
    let closing = CancellationToken::new();
    // An event that is not full of words waits for nobody's acknowledgement.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("a connection that is already gone: {error}");
        }
    });
    let server = axum::serve(listener, app)
        .with_graceful_shutdown(closing.clone().cancelled_owned())
        .into_future();
    let mut server = std::pin::pin!(server);
    tokio::select! {
        served = &mut server => return served,
        () = stop => {}
    }
    closing.cancel();
    let drain = async {
        daemon.drain(config.patience).await;
        host.stop.cancel();
        host.tasks.close();
        let _ = timeout(CLOSE_MAX, host.tasks.wait()).await;
        orphans::end_all().await;
    };
    let close = async {
        // Streams end with `host.stop`; what hangs longer is cut.
        let _ = tokio::join!(drain, timeout(config.patience + CLOSE_MAX * 7, &mut server));
    };
    close.await;
    Ok(())
}
