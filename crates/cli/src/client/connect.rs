//! Opens connections to the server, with TLS (rustls, ring) for `https`.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fs, io};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::server_url::ServerUrl;
use crate::failure::Failure;

const CONNECT_WAIT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Connector {
    /// Only for `https`.
    tls: Option<TlsConnector>,
}

/// A connection, encrypted or not.
pub(super) enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connector {
    pub(super) fn new(url: &ServerUrl, ca_cert: Option<&Path>) -> Result<Self, Failure> {
        let tls = if url.tls { Some(tls_connector(ca_cert)?) } else { None };
        Ok(Self { tls })
    }

    pub(super) async fn connect(&self, url: &ServerUrl) -> Result<Connection, Failure> {
        tokio::time::timeout(CONNECT_WAIT, self.open(url))
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "timed out")))
            .map_err(|error| {
                let text = format!("cannot reach the server at {url}: {error}").to_lowercase();
                Failure::new(text).hint("start one with `bastide serve`, or give --server URL")
            })
    }

    async fn open(&self, url: &ServerUrl) -> io::Result<Connection> {
        let tcp = TcpStream::connect((url.host.as_str(), url.port)).await?;
        tcp.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Connection::Plain(tcp)) };
        let name = ServerName::try_from(url.host.clone()).map_err(io::Error::other)?;
        Ok(Connection::Tls(Box::new(tls.connect(name, tcp).await?)))
    }
}

fn tls_connector(ca_cert: Option<&Path>) -> Result<TlsConnector, Failure> {
    let roots = match ca_cert {
        Some(path) => roots_of_file(path)?,
        None => roots_of_system()?,
    };
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::new(format!("cannot set up TLS: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn roots_of_file(path: &Path) -> Result<RootCertStore, Failure> {
    let wrong = |why: String| {
        Failure::new(format!("cannot use the certificates in {}: {why}", path.display()))
    };
    let pem = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("there are none".into()));
    }
    Ok(roots)
}

fn roots_of_system() -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Failure::new("this machine trusts no certificates")
            .hint("install ca-certificates, or give --ca-cert FILE"));
    }
    Ok(roots)
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
