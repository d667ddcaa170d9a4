//! One small HTTP exchange with a service that the operator configured: dial, TLS, ask, answer, all
//! within a limit of time and size. Follows no redirects. Not for URLs that tenants give.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::body::Body;
use axum::http::{Request, Response};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const EXCHANGE_MAX: Duration = Duration::from_secs(20);
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

pub(crate) struct Https(TlsConnector);

impl Https {
    /// Trusts what this machine trusts.
    pub(crate) fn new() -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .context("set up TLS")?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Sends a request whose URI is absolute, and reads the whole answer.
    pub(crate) async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>> {
        timeout(EXCHANGE_MAX, self.exchange(request)).await.context("it took too long")?
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>> {
        let uri = request.uri().clone();
        let host = uri.host().context("a URL without a host")?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let secure = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let tcp = TcpStream::connect((host.as_str(), port)).await;
        let tcp = tcp.with_context(|| format!("connect to {host}:{port}"))?;
        let mut request = request.map(Body::from);
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path.parse().context("a path")?;
        if secure {
            let name = ServerName::try_from(host).context("a host name for TLS")?;
            let stream = self.0.connect(name, tcp).await.context("begin TLS")?;
            ask(TokioIo::new(stream), request).await
        } else {
            ask(TokioIo::new(tcp), request).await
        }
    }
}

async fn ask<S>(stream: TokioIo<S>, request: Request<Body>) -> Result<Response<Bytes>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(stream).await.context("speak HTTP")?;
    let answered = async {
        let answer = sender.send_request(request).await.context("get an answer")?;
        let (head, body) = answer.into_parts();
        let mut chunks = Body::new(body).into_data_stream();
        let mut whole = BytesMut::new();
        while let Some(chunk) = chunks.next().await {
            whole.extend_from_slice(&chunk.context("read an answer")?);
            if whole.len() > ANSWER_BYTES_MAX {
                bail!("the answer is too long");
            }
        }
        Ok(Response::from_parts(head, whole.freeze()))
    };
    let mut answered = std::pin::pin!(answered);
    // The connection lives as long as the exchange; it ends by itself only when the answer has come.
    tokio::select! {
        answer = answered.as_mut() => answer,
        ended = connection => {
            ended.context("keep a connection")?;
            answered.await
        }
    }
}
