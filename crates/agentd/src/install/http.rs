//! The little of HTTP that a registry needs: GET over HTTP/1.1, TLS by rustls, redirects, ranges.
//! It deliberately keeps no connections and follows no proxy settings.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::task::TaskTracker;
use url::Url;

use super::InstallError;
use super::registry::{Registry, RegistrySettings};

const CONNECT_WAIT: Duration = Duration::from_secs(20);
/// For the head of an answer, and for every piece of its body.
pub(super) const IDLE_WAIT: Duration = Duration::from_secs(60);
const REDIRECTS_MAX: usize = 5;

pub(super) struct Client {
    tls: TlsConnector,
    connections: TaskTracker,
}

/// Why there was no usable answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The network or the other end; trying again may help.
    #[error("cannot reach {host}: {why}")]
    Unreachable { host: String, why: String },
    #[error("{url} answered {status}")]
    Status { url: Url, status: StatusCode },
    #[error("{0}")]
    Unusable(String),
}

impl FetchError {
    /// Registries without a route for one version answer so.
    pub(super) fn may_lack_the_route(&self) -> bool {
        matches!(self, Self::Status { status, .. }
            if matches!(status.as_u16(), 400 | 404 | 405 | 406 | 501))
    }

    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Status { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::Unusable(_) => false,
        }
    }

    pub(super) fn into_install_error(self, registry: &Registry) -> InstallError {
        let hint = match &self {
            Self::Unreachable { .. } => {
                "installing needs the npm registry: allow it in the policy, \
                 or put the agent's program on PATH"
            }
            Self::Status { status, .. } if matches!(status.as_u16(), 401 | 403) => {
                "the registry wants a login: an _authToken line in .npmrc"
            }
            Self::Status { .. } => "does this version exist?",
            Self::Unusable(_) => "is this an npm registry? see npm_config_registry",
        };
        match self {
            Self::Unreachable { .. } => InstallError::new(
                format!("the npm registry {registry} is out of reach: {self}"),
                hint,
            ),
            _ => InstallError::new(format!("from the npm registry {registry}: {self}"), hint),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Client {
    pub(super) fn new(settings: &RegistrySettings) -> Result<Self, InstallError> {
        let wrong = |why: String| InstallError::new(why, "install ca-certificates");
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(path) = settings.ca_file() {
            roots.add_parsable_certificates(certificates_of(&path));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(format!("cannot set up TLS: {error}")))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = TlsConnector::from(Arc::new(config));
        Ok(Self { tls, connections: TaskTracker::new() })
    }

    pub(super) async fn get_json(
        &self,
        url: &Url,
        accept: &str,
        authorization: Option<&str>,
        bytes_max: usize,
    ) -> Result<Value, FetchError> {
        let mut headers = vec![(header::ACCEPT, accept.to_owned())];
        headers.extend(authorization.map(|value| (header::AUTHORIZATION, value.to_owned())));
        let response = self.get(url, &headers).await?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status { url: url.clone(), status: response.status() });
        }
        let mut body = response.into_body();
        let mut bytes = Vec::new();
        while let Some(piece) = next_piece(&mut body, url).await? {
            if bytes.len() + piece.len() > bytes_max {
                return Err(FetchError::Unusable(format!("{url} answered too much")));
            }
            bytes.extend_from_slice(&piece);
        }
        serde_json::from_slice(&bytes)
            .map_err(|_| FetchError::Unusable(format!("{url} did not answer with JSON")))
    }

    /// Any answer but a redirect. Credentials do not follow to another host.
    pub(super) async fn get(
        &self,
        url: &Url,
        headers: &[(HeaderName, String)],
    ) -> Result<Response<Incoming>, FetchError> {
        let mut at = url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let home = at.origin() == url.origin();
            let sent = headers.iter().filter(|(name, _)| home || *name != header::AUTHORIZATION);
            let response = self.get_once(&at, sent).await?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let next = response
                .headers()
                .get(header::LOCATION)
                .and_then(|value| value.to_str().ok())
                .and_then(|value| at.join(value).ok())
                .filter(|next| next.scheme() == "https" || next.origin() == at.origin());
            at = next.ok_or_else(|| FetchError::Unusable(format!("{at} redirects to nowhere")))?;
        }
        Err(FetchError::Unusable(format!("{url} redirects without end")))
    }

    async fn get_once<'a>(
        &self,
        url: &Url,
        headers: impl Iterator<Item = &'a (HeaderName, String)>,
    ) -> Result<Response<Incoming>, FetchError> {
        let host = url.host_str().unwrap_or_default().to_owned();
        let unreachable =
            |why: String| FetchError::Unreachable { host: host.clone(), why: why.to_lowercase() };
        let stream = tokio::time::timeout(CONNECT_WAIT, self.connect(url))
            .await
            .map_err(|_| unreachable("timed out".into()))?
            .map_err(|error| unreachable(error.to_string()))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        // Ends by itself, when the answer has been read or dropped.
        self.connections.spawn(connection);
        let authority = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.clone(),
        };
        let path = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let mut request = Request::get(path)
            .header(header::HOST, authority)
            .header(header::USER_AGENT, "bastide");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Empty::<Bytes>::new())
            .map_err(|error| FetchError::Unusable(format!("{url}: {error}")))?;
        tokio::time::timeout(IDLE_WAIT, sender.send_request(request))
            .await
            .map_err(|_| unreachable("no answer".into()))?
            .map_err(|error| unreachable(error.to_string()))
    }

    async fn connect(&self, url: &Url) -> io::Result<Box<dyn Stream>> {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = url.port_or_known_default().unwrap_or(443);
        let tcp = TcpStream::connect((host.as_str(), port)).await?;
        tcp.set_nodelay(true)?;
        if url.scheme() != "https" {
            return Ok(Box::new(tcp));
        }
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        Ok(Box::new(self.tls.connect(name, tcp).await?))
    }
}

/// The next bytes of a body; none at its end.
pub(super) async fn next_piece(
    body: &mut Incoming,
    url: &Url,
) -> Result<Option<Bytes>, FetchError> {
    let cut = |why: String| FetchError::Unreachable {
        host: url.host_str().unwrap_or_default().to_owned(),
        why,
    };
    loop {
        let frame = tokio::time::timeout(IDLE_WAIT, body.frame())
            .await
            .map_err(|_| cut("the answer stopped".into()))?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(cut(error.to_string())),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(_trailers) => {}
            },
        }
    }
}

fn certificates_of(path: &Path) -> Vec<CertificateDer<'static>> {
    let pem = std::fs::read(path).unwrap_or_default();
    CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok).collect()
}
