//! Connections: accepted up to a bound, answered by whatever this server's part is now, and ended.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use super::local;
use super::socket::{MayStall, Socket};
use crate::forward;
use crate::limits::{
    CUT_OFF_TIMEOUT, FIRST_REQUEST_WAIT, HANDSHAKE_TIMEOUT, HEADER_BYTES_MAX, HEADERS_MAX,
};
use crate::metrics::Metrics;
use crate::tls::Acceptor;

/// All that a connection needs.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) part: Part,
    pub(super) metrics: Arc<Metrics>,
    pub(super) acceptor: Option<Acceptor>,
    pub(super) header_timeout: Duration,
    pub(super) stall_timeout: Duration,
    pub(super) room: Arc<Semaphore>,
    pub(super) connections: TaskTracker,
    /// Cancelled when answers in flight are the last ones.
    pub(super) ending: CancellationToken,
    /// The end of the drain time.
    pub(super) cut_off: CancellationToken,
}

/// The routes as they are now: a server's part changes when it gets the lease. What is being answered
/// then is answered by the old ones.
#[derive(Clone)]
pub(super) struct Part(Arc<RwLock<Router>>);

impl Part {
    pub(super) fn new(router: Router) -> Self {
        Self(Arc::new(RwLock::new(router)))
    }

    /// The same routes for now, which change on their own.
    pub(super) fn apart(&self) -> Self {
        Self::new(self.now())
    }

    pub(super) fn set(&self, router: Router) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = router;
    }

    fn now(&self) -> Router {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same for who is a part of these routes: they would keep each other alive.
    pub(super) fn inside(&self) -> Inside {
        Inside(Arc::downgrade(&self.0))
    }
}

/// The server's own routes, for what runs in it and asks as a client would.
#[derive(Clone)]
pub(crate) struct Inside(Weak<RwLock<Router>>);

impl Inside {
    /// `None` once the server is gone.
    pub(crate) fn routes(&self) -> Option<Router> {
        Some(Part(self.0.upgrade()?).now())
    }
}

/// Who is at the other end of a request's connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAddress(pub(crate) SocketAddr);

/// The other end of a connection.
struct Peer {
    /// `None`: another server of ours.
    address: Option<SocketAddr>,
    may_stall: MayStall,
}

impl Door {
    pub(super) async fn accept(self, listener: TcpListener, until: CancellationToken) {
        loop {
            let room = Arc::clone(&self.room);
            let next = async {
                let permit = room.acquire_owned().await.expect("the semaphore is never closed");
                (permit, listener.accept().await)
            };
            let (permit, accepted) = tokio::select! {
                next = next => next,
                () = until.cancelled() => return,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let connection = connect(self.clone(), stream, peer, permit);
                    self.connections.spawn(connection);
                }
                Err(error) => could_not_accept(&error).await,
            }
        }
    }

    /// Calls that other servers of the data directory pass on.
    pub(super) async fn accept_local(self, listener: UnixListener, until: CancellationToken) {
        while let Some(accepted) = until.run_until_cancelled(listener.accept()).await {
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    could_not_accept(&error).await;
                    continue;
                }
            };
            self.spawn_local(stream);
        }
        match local::close(listener) {
            Ok(waiting) => waiting.into_iter().for_each(|stream| self.spawn_local(stream)),
            Err(error) => tracing::warn!(error = format!("{error:#}"), "calls may be lost"),
        }
    }

    fn spawn_local(&self, stream: UnixStream) {
        if let Err(error) = local::of_ours(&stream) {
            tracing::warn!(error = format!("{error:#}"), "refused a connection");
            return;
        }
        let peer = Peer { address: None, may_stall: MayStall::default() };
        self.connections.spawn(answer(self.clone(), stream, peer));
    }

    /// Lets answers in flight finish for as long as `patience`, then cuts connections.
    pub(super) async fn drain(&self, tasks: Option<&TaskTracker>, patience: Duration) {
        self.ending.cancel();
        self.connections.close();
        let all = async {
            self.connections.wait().await;
            if let Some(tasks) = tasks {
                tasks.wait().await;
            }
        };
        if timeout(patience, all).await.is_ok() {
            return;
        }
        let open = self.connections.len();
        tracing::warn!(open, "the drain time is over: cutting connections");
        self.cut_off.cancel();
        let _ = timeout(CUT_OFF_TIMEOUT, self.connections.wait()).await;
    }
}

async fn could_not_accept(error: &io::Error) {
    // Out of descriptors, most likely: wait for some to be freed.
    tracing::warn!(error = error.to_string(), "could not accept a connection");
    sleep(Duration::from_millis(100)).await;
}

async fn connect(door: Door, stream: TcpStream, address: SocketAddr, permit: OwnedSemaphorePermit) {
    if let Err(error) = prepare(&stream) {
        tracing::debug!(peer = %address, error = error.to_string(), "a connection broke at once");
        return;
    }
    let socket = Socket::new(stream, permit);
    let may_stall = MayStall::default();
    let half = socket.half(door.stall_timeout, may_stall.clone());
    let peer = Peer { address: Some(address), may_stall };
    let ending = door.ending.clone();
    match door.acceptor.as_ref().map(Acceptor::now) {
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
        ending.run_until_cancelled(socket.linger()).await;
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // A client that vanished without a word is noticed within some minutes.
    rustix::net::sockopt::set_socket_keepalive(stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(stream, Duration::from_secs(60))?;
    Ok(())
}

async fn answer<I>(door: Door, io: I, peer: Peer)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (part, is_last) = (door.part.clone(), door.ending.clone());
    let asked = CancellationToken::new();
    let was_asked = asked.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        was_asked.cancel();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.may_stall.clone());
        // Only another server of ours is believed whom it speaks for.
        let address = peer.address.or_else(|| forward::peer_of(request.headers()));
        if let Some(address) = address {
            request.extensions_mut().insert(PeerAddress(address));
        }
        let (answer, is_last) = (part.now().call(request), is_last.clone());
        async move {
            let mut response = answer.await?;
            if is_last.is_cancelled() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(door.header_timeout)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    // Hyper would close a connection at once that has not been asked anything, but its first request
    // may be on its way.
    let mut ending = std::pin::pin!(async {
        door.ending.cancelled().await;
        let _ = timeout(FIRST_REQUEST_WAIT, asked.cancelled()).await;
    });
    door.metrics.connections.inc();
    let mut is_ending = false;
    let ended = loop {
        tokio::select! {
            // First, so that a request which has come is seen.
            biased;
            ended = connection.as_mut() => break ended,
            () = ending.as_mut(), if !is_ending => {
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = door.cut_off.cancelled() => break Ok(()),
        }
    };
    door.metrics.connections.dec();
    if let Err(error) = ended {
        tracing::debug!(peer = ?peer.address, error = error.to_string(), "a connection broke");
    }
}
