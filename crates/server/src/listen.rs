//! Accepting connections, and ending gracefully: bind, serve, drain.
//!
//! Connections are bounded; a slow head is cut off; a client that goes away drops its handler, and
//! with it what the handler was doing.

mod socket;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use engine::Engine;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use store::Store;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use crate::app::{App, PublicAddress, Shared};
use crate::config::Config;
use crate::limits::{CUT_OFF_TIMEOUT, HANDSHAKE_TIMEOUT, HEADER_BYTES_MAX, HEADERS_MAX};
pub(crate) use crate::listen::socket::MayStall;
use crate::listen::socket::Socket;
use crate::metrics::Metrics;
use crate::{openapi, routes, tls};

/// Opens every address of the settings.
pub async fn bind(config: &Config) -> Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in &config.listen.0 {
        let listener = TcpListener::bind(address);
        listeners.push(listener.await.with_context(|| format!("listen: bind {address}"))?);
    }
    Ok(listeners)
}

/// Resolves once the process is asked to end by SIGTERM or SIGINT.
pub async fn signalled() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("watch for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Answers requests until `shutdown`; then lets those in flight finish for `drain_seconds`, ends
/// streams and tunnels, and shuts the engine down. Sandboxes go on.
pub async fn serve(
    listeners: Vec<TcpListener>,
    config: &Config,
    engine: Engine,
    store: Store,
    shutdown: CancellationToken,
) -> Result<()> {
    let acceptor = match (&config.tls_cert, &config.tls_key) {
        (Some(cert), Some(key)) => Some(tls::acceptor(cert, key)?),
        (Some(_), None) | (None, Some(_)) | (None, None) => None,
    };
    let first = listeners.first().context("listen: no address")?.local_addr()?;
    let address = public_address(config, first)?;
    let (router, document) = openapi::router();
    let app: App = Arc::new(Shared {
        metrics: Metrics::new(document.paths.paths.keys().cloned()),
        pages: openapi::pages(&document, &address.url)?,
        engine: engine.clone(),
        store,
        address,
        limits: config.limits,
        metrics_access: config.metrics,
        draining: CancellationToken::new(),
        tasks: TaskTracker::new(),
    });
    let door = Door {
        router: routes::finish(router, &app),
        app: Arc::clone(&app),
        acceptor,
        header_timeout: Duration::from_secs(config.limits.header_timeout_seconds),
        stall_timeout: Duration::from_secs(config.limits.body_timeout_seconds),
        connections: TaskTracker::new(),
        room: Arc::new(Semaphore::new(config.limits.connections as usize)),
        cut_off: CancellationToken::new(),
    };
    let accepting = TaskTracker::new();
    for listener in listeners {
        tracing::info!("listening on {}", listener.local_addr()?);
        accepting.spawn(accept(listener, door.clone(), shutdown.clone()));
    }
    shutdown.cancelled().await;
    accepting.close();
    accepting.wait().await;
    drain(&door, Duration::from_secs(config.drain_seconds)).await;
    engine.shutdown().await;
    Ok(())
}

/// All that a connection needs.
#[derive(Clone)]
struct Door {
    router: Router,
    app: App,
    acceptor: Option<TlsAcceptor>,
    header_timeout: Duration,
    stall_timeout: Duration,
    connections: TaskTracker,
    room: Arc<Semaphore>,
    /// The end of the drain time.
    cut_off: CancellationToken,
}

async fn accept(listener: TcpListener, door: Door, shutdown: CancellationToken) {
    loop {
        let room = Arc::clone(&door.room);
        let next = async {
            let permit = room.acquire_owned().await.expect("the semaphore is never closed");
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            next = next => next,
            () = shutdown.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = connect(door.clone(), stream, peer, permit);
                door.connections.spawn(connection);
            }
            Err(error) => {
                // Out of descriptors, most likely: wait for some to be freed.
                tracing::warn!(error = error.to_string(), "could not accept a connection");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connect(door: Door, stream: TcpStream, address: SocketAddr, permit: OwnedSemaphorePermit) {
    if let Err(error) = prepare(&stream) {
        tracing::debug!(peer = %address, error = error.to_string(), "a connection broke at once");
        return;
    }
    let socket = Socket::new(stream, permit);
    let may_stall = MayStall::default();
    let half = socket.half(door.stall_timeout, may_stall.clone());
    let peer = Peer { address, may_stall };
    let draining = door.app.draining.clone();
    match door.acceptor.clone() {
        None => answer(door, half, peer).await,
        Some(acceptor) => match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(half)).await {
            Ok(Ok(secured)) => answer(door, secured, peer).await,
            Ok(Err(error)) => {
                tracing::debug!(peer = %address, error = error.to_string(), "TLS failed")
            }
            Err(_) => tracing::debug!(peer = %address, "TLS took too long"),
        },
    }
    // Not after an upgrade, when a tunnel has the other half.
    if socket.is_last() {
        draining.run_until_cancelled(socket.linger()).await;
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // A client that vanished without a word is noticed within some minutes.
    rustix::net::sockopt::set_socket_keepalive(stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(stream, Duration::from_secs(60))?;
    Ok(())
}

/// The other end of a connection.
struct Peer {
    address: SocketAddr,
    may_stall: MayStall,
}

async fn answer<I>(door: Door, io: I, peer: Peer)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let router = door.router.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.may_stall.clone());
        router.clone().call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(door.header_timeout)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    door.app.metrics.connections.inc();
    let mut asked = false;
    let ended = loop {
        tokio::select! {
            ended = connection.as_mut() => break ended,
            () = door.app.draining.cancelled(), if !asked => {
                asked = true;
                connection.as_mut().graceful_shutdown();
            }
            () = door.cut_off.cancelled() => break Ok(()),
        }
    };
    door.app.metrics.connections.dec();
    if let Err(error) = ended {
        let address = peer.address;
        tracing::debug!(peer = %address, error = error.to_string(), "a connection broke");
    }
}

async fn drain(door: &Door, patience: Duration) {
    let open = door.connections.len();
    tracing::info!(open, "draining");
    door.app.draining.cancel();
    door.connections.close();
    door.app.tasks.close();
    let all = async {
        door.connections.wait().await;
        door.app.tasks.wait().await;
    };
    if timeout(patience, all).await.is_ok() {
        return;
    }
    let open = door.connections.len();
    tracing::warn!(open, "the drain time is over: cutting connections");
    door.cut_off.cancel();
    let _ = timeout(CUT_OFF_TIMEOUT, door.connections.wait()).await;
}

/// `public_url`, or the address that is listened on.
fn public_address(config: &Config, bound: SocketAddr) -> Result<PublicAddress> {
    let https = config.tls_cert.is_some();
    let text = match &config.public_url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => {
            let scheme = if https { "https" } else { "http" };
            let local = match (bound.ip().is_unspecified(), bound) {
                (false, bound) => bound,
                (true, SocketAddr::V4(_)) => ([127, 0, 0, 1], bound.port()).into(),
                (true, SocketAddr::V6(_)) => (std::net::Ipv6Addr::LOCALHOST, bound.port()).into(),
            };
            format!("{scheme}://{local}")
        }
    };
    let url = url::Url::parse(&text).context("public_url: not a URL")?;
    let port = url.port_or_known_default().context("public_url: has no port")?;
    Ok(PublicAddress { url: text, port })
}
