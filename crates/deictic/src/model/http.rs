//! The little of HTTP that models and tool servers need: a request, the head of its answer, the pieces of
//! its body, each with a wait that ends. TLS by rustls with the roots of the system, which are read
//! when the first https address is dialled; a relay on loopback never needs them. It follows neither
//! redirects nor proxy settings: a key goes where it was meant to go.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::task::TaskTracker;

use crate::fault::Fault;

/// Until a connection that was used before says that it can be used again.
const REUSE_WAIT: Duration = Duration::from_millis(5);

/// The head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Keeps one connection for the next request.
#[derive(Debug)]
pub(crate) struct Http {
    connect: Duration,
    tls: OnceLock<Result<Tls, String>>,
    idle: Mutex<Option<Idle>>,
    connections: TaskTracker,
}

#[derive(Clone)]
struct Tls(TlsConnector);

impl std::fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Tls")
    }
}

#[derive(Debug)]
struct Idle {
    origin: String,
    sender: SendRequest<Full<Bytes>>,
}

/// When what is waited for has to be there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Between two pieces.
    pub(crate) idle: Duration,
    pub(crate) total: Duration,
    pub(crate) until: Instant,
}

impl Patience {
    pub(crate) fn new(idle: Duration, total: Duration) -> Self {
        Self { idle, total, until: Instant::now() + total }
    }

    /// Waits no longer than it may.
    pub(crate) async fn wait<T>(&self, what: impl Future<Output = T>) -> Result<T, Fault> {
        let soon = Instant::now() + self.idle;
        let (until, fault) = match soon < self.until {
            true => (soon, Fault::Silent(self.idle)),
            false => (self.until, Fault::Slow(self.total)),
        };
        timeout_at(until, what).await.map_err(|_| fault)
    }
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

impl Http {
    pub(crate) fn new(connect: Duration) -> Self {
        Self {
            connect,
            tls: OnceLock::new(),
            idle: Mutex::new(None),
            connections: TaskTracker::new(),
        }
    }

    /// The head of the answer. The request's address is absolute.
    pub(crate) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        patience: &Patience,
    ) -> Result<Response<Incoming>, Fault> {
        let target = Target::of(request.uri())?;
        let host = HeaderValue::from_str(&target.authority)
            .map_err(|_| Fault::Unusable(format!("not a host: {}", target.authority)))?;
        request.headers_mut().insert(header::HOST, host);
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path.parse().map_err(|_| target.unusable("not a path"))?;
        let gone = |error: hyper::Error| target.unreachable(format!("{error}"));
        if let Some(mut sender) = self.take_idle(&target).await {
            let sent = sender.try_send_request(request);
            match patience.wait(sent).await? {
                Ok(response) => {
                    self.keep(&target, sender);
                    return Ok(response);
                }
                // It was closed before it got anything.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(gone(error.into_error())),
                },
            }
        }
        let mut sender = self.connect(&target).await?;
        let response = patience.wait(sender.send_request(request)).await?.map_err(gone)?;
        self.keep(&target, sender);
        Ok(response)
    }

    async fn take_idle(&self, target: &Target) -> Option<SendRequest<Full<Bytes>>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let Idle { origin, mut sender } = idle;
        if origin != target.origin() {
            return None;
        }
        timeout(REUSE_WAIT, sender.ready()).await.ok()?.ok()?;
        Some(sender)
    }

    fn keep(&self, target: &Target, sender: SendRequest<Full<Bytes>>) {
        let idle = Idle { origin: target.origin(), sender };
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(idle);
    }

    async fn connect(&self, target: &Target) -> Result<SendRequest<Full<Bytes>>, Fault> {
        let late = || target.unreachable(format!("no connection in {} s", self.connect.as_secs()));
        let io = timeout(self.connect, self.dial(target)).await.map_err(|_| late())??;
        let shake = http1::Builder::new().max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(io));
        let (sender, connection) = timeout(self.connect, shake)
            .await
            .map_err(|_| late())?
            .map_err(|error| target.unreachable(error.to_string()))?;
        // Ends with its sender and its body.
        self.connections.spawn(connection);
        Ok(sender)
    }

    async fn dial(&self, target: &Target) -> Result<Box<dyn Io>, Fault> {
        let failed = |error: std::io::Error| target.unreachable(error.to_string());
        let stream =
            TcpStream::connect((target.host.as_str(), target.port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        if !target.secure {
            return Ok(Box::new(stream));
        }
        let Tls(tls) = self.tls.get_or_init(connector).clone().map_err(Fault::Unusable)?;
        let name = ServerName::try_from(target.host.clone())
            .map_err(|_| target.unusable("not a name for TLS"))?;
        Ok(Box::new(tls.connect(name, stream).await.map_err(failed)?))
    }
}

/// The next piece of a body; `None` at its end.
pub(crate) async fn next_piece(
    body: &mut Incoming,
    patience: &Patience,
) -> Result<Option<Bytes>, Fault> {
    loop {
        match patience.wait(body.frame()).await? {
            None => return Ok(None),
            Some(Err(_)) => return Err(Fault::Cut),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// As much of a body as is wanted; the rest is not read.
pub(crate) async fn read_up_to(
    body: &mut Incoming,
    bytes_max: usize,
    patience: &Patience,
) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    while let Some(piece) = next_piece(body, patience).await? {
        let room = bytes_max - bytes.len();
        bytes.extend_from_slice(&piece[..piece.len().min(room)]);
        if piece.len() >= room {
            break;
        }
    }
    Ok(bytes)
}

fn connector() -> Result<Tls, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("no certificates of authorities on this system: install ca-certificates, or \
             set SSL_CERT_FILE"
            .to_owned());
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot set up TLS: {error}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Tls(TlsConnector::from(Arc::new(config))))
}

/// Where a request goes.
#[derive(Debug)]
struct Target {
    secure: bool,
    host: String,
    port: u16,
    authority: String,
}

impl Target {
    fn of(uri: &Uri) -> Result<Self, Fault> {
        let unusable = || Fault::Unusable(format!("not an http or https address: {uri}"));
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(unusable()),
        };
        let authority = uri.authority().ok_or_else(unusable)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
        // Without a name and a password, which are no part of where it goes.
        let name = authority.as_str().rsplit('@').next().unwrap_or_default().to_owned();
        Ok(Self { secure, host, port, authority: name })
    }

    fn origin(&self) -> String {
        format!("{}{}:{}", if self.secure { "s" } else { "" }, self.host, self.port)
    }

    fn unreachable(&self, why: String) -> Fault {
        Fault::Unreachable { host: self.authority.clone(), why }
    }

    fn unusable(&self, why: &str) -> Fault {
        Fault::Unusable(format!("{why}: {}", self.authority))
    }
}
