//! The front of the guest: connections, who may call what, and which part answers.

mod body;
mod gate;
mod route;

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderValue, StatusCode, header};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

pub(crate) use self::body::{Body, BodyReader, json_body, read_all};
pub(crate) use self::gate::{Peer, given as given_token, same};
use crate::refusal::{Code, Refusal};
use crate::state::State;

pub(crate) type Request = ::http::Request<hyper::body::Incoming>;
pub(crate) type Response = ::http::Response<Body>;

/// More wait until one is closed.
const CONNECTIONS_MAX: usize = 512;

/// Before accepting again when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where the guest is reached.
#[derive(Debug)]
pub enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// A listening socket of either kind, as the launcher hands it in.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        match rustix::net::sockopt::socket_domain(&fd)? {
            rustix::net::AddressFamily::UNIX => {
                let listener = std::os::unix::net::UnixListener::from(fd);
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener).map(Self::Unix)
            }
            _ => {
                let listener = std::net::TcpListener::from(fd);
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener).map(Self::Tcp)
            }
        }
    }
}

/// Serves connections for ever.
pub(crate) async fn accept(listener: &Listener, state: &Arc<State>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let state = Arc::clone(state);
        let tasks = state.tasks.clone();
        match listener {
            Listener::Unix(listener) => {
                let Ok((stream, _)) = listener.accept().await else {
                    pause().await;
                    continue;
                };
                tasks.spawn(async move {
                    serve(state, stream, Peer::Socket).await;
                    drop(permit);
                });
            }
            Listener::Tcp(listener) => {
                let Ok((stream, _)) = listener.accept().await else {
                    pause().await;
                    continue;
                };
                let _ = stream.set_nodelay(true);
                tasks.spawn(async move {
                    serve(state, stream, Peer::Network).await;
                    drop(permit);
                });
            }
        }
    }
}

/// One connection until its end, which is never an error of ours.
async fn serve(
    state: Arc<State>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
) {
    let service = service_fn(move |request: Request| {
        let state = Arc::clone(&state);
        async move { Ok::<_, Infallible>(answer(state, request, peer).await) }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let _ = connection.with_upgrades().await;
}

/// The same for a connection that came through a connection: its type would contain itself.
pub(crate) fn serve_inner(
    state: Arc<State>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(serve(state, stream, Peer::Tunnel))
}

async fn answer(state: Arc<State>, request: Request, peer: Peer) -> Response {
    let from_browser = request.headers().contains_key(header::ORIGIN);
    let mut response = Box::pin(route::route(state, request, peer)).await;
    if from_browser {
        gate::allow_browsers(response.headers_mut());
    }
    response
}

async fn pause() {
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// An answer with nothing in it.
pub(crate) fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// An answer in JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> Response {
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Body::full(body));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// A refusal in plain HTTP: `{"code":404,"message":"…"}`.
pub(crate) fn refused(refusal: &Refusal) -> Response {
    let status = refusal.code.status();
    let mut response =
        json(&serde_json::json!({ "code": status.as_u16(), "message": refusal.message }));
    *response.status_mut() = status;
    if refusal.code == Code::Unauthenticated || refusal.code == Code::TooLarge {
        // A body may be left unread.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
