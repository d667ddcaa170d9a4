//! TLS by rustls with ring: one certificate, from PEM files, read again when they change.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;

/// How often the files are looked at. SIGHUP makes it at once.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Clones are one. Connections that are open keep what they were opened with.
#[derive(Clone)]
pub(crate) struct Acceptor {
    now: Arc<RwLock<TlsAcceptor>>,
    cert: PathBuf,
    key: PathBuf,
}

impl Acceptor {
    pub(crate) fn open(cert: &Path, key: &Path) -> Result<Self> {
        let now = Arc::new(RwLock::new(read(cert, key)?));
        Ok(Self { now, cert: cert.to_owned(), key: key.to_owned() })
    }

    pub(crate) fn now(&self) -> TlsAcceptor {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again when one of them changes and at SIGHUP. What cannot be used is reported, and
    /// what was in use stays.
    pub(crate) async fn renew(self, until: CancellationToken) {
        let mut hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => Some(hangup),
            Err(error) => {
                tracing::warn!(error = error.to_string(), "cannot watch for SIGHUP");
                None
            }
        };
        let mut seen = self.state();
        loop {
            let hung_up = async {
                match &mut hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            let asked = tokio::select! {
                () = until.cancelled() => return,
                _ = hung_up => true,
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            let state = self.state();
            if !asked && state == seen {
                continue;
            }
            match read(&self.cert, &self.key) {
                Ok(fresh) => {
                    *self.now.write().unwrap_or_else(PoisonError::into_inner) = fresh;
                    tracing::info!("read the certificate again");
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(error, "could not read the new certificate: the old one stays");
                }
            }
            seen = state;
        }
    }

    /// What tells that a file is another one, or was written.
    fn state(&self) -> [Option<(u64, i64, i64, u64)>; 2] {
        [&self.cert, &self.key].map(|path| {
            let is = std::fs::metadata(path).ok()?;
            Some((is.ino(), is.mtime(), is.mtime_nsec(), is.size()))
        })
    }
}

fn read(cert: &Path, key: &Path) -> Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("tls_cert: read {}", cert.display()))?;
    anyhow::ensure!(!chain.is_empty(), "tls_cert: no certificate in {}", cert.display());
    let key = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("tls_key: read {}", key.display()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("choose TLS versions")?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("tls_cert and tls_key do not fit together")?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
