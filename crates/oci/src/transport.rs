//! One HTTP exchange with a registry: dial, TLS, ask, answer. Redirects are the caller's to follow.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, Uri};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::task::TaskTracker;

use crate::{Error, Result};

type Dialled = Pin<Box<dyn Future<Output = std::result::Result<TcpStream, String>> + Send>>;

/// Opens a connection to a host and port, or says why not. Whoever gives it decides which
/// addresses may be dialled at all.
pub type Dial = Arc<dyn Fn(String, u16) -> Dialled + Send + Sync>;

pub(crate) type Body = Empty<hyper::body::Bytes>;

/// From the first packet to the end of the handshake.
const CONNECT_MAX: Duration = Duration::from_secs(20);
/// From the request to the head of the answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);

pub(crate) struct Transport {
    dial: Dial,
    tls: TlsConnector,
    tasks: TaskTracker,
}

impl Transport {
    pub(crate) fn new(dial: Dial) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Internal(anyhow::anyhow!("set up TLS: {error}")))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = TlsConnector::from(Arc::new(config));
        Ok(Self { dial, tls, tasks: TaskTracker::new() })
    }

    /// Sends a request whose URI is absolute.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>> {
        let uri = request.uri().clone();
        let lost = |why: String| cannot_reach(&uri, &why);
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path.parse().map_err(|_| lost("a bad path".into()))?;
        let connect = self.connect(&uri, request);
        let mut sent = timeout(CONNECT_MAX, connect)
            .await
            .map_err(|_| lost("it took too long to connect".into()))??;
        let (sender, request) = (&mut sent.0, sent.1);
        timeout(ANSWER_MAX, sender.send_request(request))
            .await
            .map_err(|_| lost("it did not answer in time".into()))?
            .map_err(|error| lost(error.to_string()))
    }

    async fn connect(
        &self,
        uri: &Uri,
        request: Request<Body>,
    ) -> Result<(hyper::client::conn::http1::SendRequest<Body>, Request<Body>)> {
        let secure = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let lost = |why: String| cannot_reach(uri, &why);
        let bare =
            uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let tcp = (self.dial)(bare.clone(), port).await.map_err(lost)?;
        let _ = tcp.set_nodelay(true);
        let sender = if secure {
            let name = ServerName::try_from(bare).map_err(|error| lost(error.to_string()))?;
            let stream =
                self.tls.connect(name, tcp).await.map_err(|error| lost(error.to_string()))?;
            self.handshake(TokioIo::new(stream)).await
        } else {
            self.handshake(TokioIo::new(tcp)).await
        };
        Ok((sender.map_err(|error| lost(error.to_string()))?, request))
    }

    async fn handshake<S>(
        &self,
        stream: TokioIo<S>,
    ) -> hyper::Result<hyper::client::conn::http1::SendRequest<Body>>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
        // Ends with the answer's body, or when nobody reads it any more.
        self.tasks.spawn(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }
}

/// With the port, where one is named: on one machine there may be several registries.
fn cannot_reach(uri: &Uri, why: &str) -> Error {
    let whom = uri.authority().map_or_else(String::new, ToString::to_string);
    Error::Unavailable(format!("cannot reach {whom}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_be_reached_is_named_with_its_port() {
        let uri = "http://127.0.0.1:5000/v2/a?b".parse().unwrap();
        let error = cannot_reach(&uri, "connection refused").to_string();
        assert!(error.ends_with("cannot reach 127.0.0.1:5000: connection refused"), "{error}");
    }
}
