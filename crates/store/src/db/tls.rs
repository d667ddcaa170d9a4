//! TLS to `PostgreSQL`, as the URL asks for it with `sslmode` and `sslrootcert`, in the words that its own programs
//! understand:
//!
//! | `sslmode` | what holds |
//! |---|---|
//! | `disable` | no TLS |
//! | `prefer`, or none | TLS if the server has it; whoever it is |
//! | `require` | TLS; with `sslrootcert`, from a server that one of these vouches for |
//! | `verify-full` | TLS, from the server that the URL names; by `sslrootcert`, or what this machine trusts |

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

/// Whom to connect to, and how to speak to them. What is wrong is told without the URL, which has a password.
pub(super) fn of_url(url: &str) -> Result<(Config, MakeRustlsConnect)> {
    let mut rest = url.to_owned();
    let mode = take(&mut rest, "sslmode");
    let root = take(&mut rest, "sslrootcert");
    let mut config: Config = rest.parse().map_err(|_| anyhow!("database_url: not understood"))?;
    let root = root.as_deref().map(Path::new);
    let (mode, trust) = match (mode.as_deref(), root) {
        (Some("disable"), _) => (SslMode::Disable, Trust::Anybody),
        (None | Some("prefer"), _) => (SslMode::Prefer, Trust::Anybody),
        (Some("require"), None) => (SslMode::Require, Trust::Anybody),
        (Some("require"), Some(file)) => (SslMode::Require, Trust::Issued(read(file)?)),
        (Some("verify-full"), Some(file)) => (SslMode::Require, Trust::Named(read(file)?)),
        (Some("verify-full"), None) => (SslMode::Require, Trust::Named(of_machine()?)),
        (Some(_), _) => {
            bail!("database_url: sslmode: must be disable, prefer, require or verify-full")
        }
    };
    config.ssl_mode(mode);
    Ok((config, MakeRustlsConnect::new(client(trust)?)))
}

/// Who is believed to be the server.
enum Trust {
    Anybody,
    /// Whoever one of these vouches for, whatever it is called.
    Issued(RootCertStore),
    /// The same, if it is called as in the URL.
    Named(RootCertStore),
}

fn client(trust: Trust) -> Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let verifier = |roots: RootCertStore| {
        let builder =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        builder.build().context("database_url: sslrootcert")
    };
    let issued = match trust {
        Trust::Named(roots) => {
            let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
            let builder = builder.with_safe_default_protocol_versions().context("set up TLS")?;
            return Ok(builder.with_root_certificates(roots).with_no_client_auth());
        }
        Trust::Issued(roots) => Some(verifier(roots)?),
        Trust::Anybody => None,
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().context("set up TLS")?;
    let lenient = Arc::new(Lenient { issued, provider });
    Ok(builder.dangerous().with_custom_certificate_verifier(lenient).with_no_client_auth())
}

fn read(file: &Path) -> Result<RootCertStore> {
    let named = || format!("database_url: sslrootcert: read {}", file.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).with_context(named)? {
        roots.add(certificate.with_context(named)?).with_context(named)?;
    }
    if roots.is_empty() {
        bail!("database_url: sslrootcert: no certificate in {}", file.display());
    }
    Ok(roots)
}

fn of_machine() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        bail!("database_url: sslmode=verify-full: this machine trusts nobody; name sslrootcert");
    }
    Ok(roots)
}

/// Takes a parameter out of a URL's query, or out of words.
fn take(url: &mut String, name: &str) -> Option<String> {
    let begins = format!("{name}=");
    let mut found = url.match_indices(&begins).map(|(at, _)| at);
    let start = found.find(|at| *at == 0 || url[..*at].ends_with(['?', '&', ' ']))?;
    let value_at = start + begins.len();
    let length = url[value_at..].find(['&', ' ']).unwrap_or(url.len() - value_at);
    let value = url[value_at..value_at + length].to_owned();
    let end = (value_at + length + 1).min(url.len());
    url.replace_range(start..end, "");
    Some(value)
}

/// Encryption without a name: who listens cannot read, who is in between can.
#[derive(Debug)]
struct Lenient {
    issued: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use rustls::Error::InvalidCertificate;
        let Some(issued) = &self.issued else { return Ok(ServerCertVerified::assertion()) };
        match issued.verify_server_cert(end_entity, intermediates, server_name, ocsp, now) {
            // The name is looked at last.
            Err(InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, mode: SslMode) {
        let (config, _) = of_url(url).unwrap();
        assert_eq!(config.get_ssl_mode(), mode, "{url}");
        assert_eq!(config.get_dbname(), Some("x"), "{url}");
        assert_eq!(config.get_application_name(), Some("a"), "{url}");
    }

    #[test]
    fn the_mode_is_taken_out_of_urls_and_words() {
        let after = |words: &str| format!("postgresql://u@h/x?{words}");
        check(&after("application_name=a"), SslMode::Prefer);
        check(&after("application_name=a&sslmode=prefer"), SslMode::Prefer);
        check(&after("sslmode=require&application_name=a"), SslMode::Require);
        check(&after("application_name=a&sslmode=disable"), SslMode::Disable);
        check("host=h dbname=x sslmode=require application_name=a", SslMode::Require);
        check("sslmode=require dbname=x host=h application_name=a", SslMode::Require);
    }

    #[test]
    fn what_cannot_be_is_refused_without_the_url() {
        let at = |words: &str| format!("postgresql://u:hunter2@h/x?{words}");
        for (words, part) in [
            ("sslmode=verify-ca", "sslmode: must be"),
            ("sslmode=yes", "sslmode: must be"),
            ("sslmode=require&sslrootcert=/none", "sslrootcert: read /none"),
            ("sslmode=verify-full&sslrootcert=/dev/null", "no certificate in /dev/null"),
            ("nonsense=1", "not understood"),
        ] {
            let refused = format!("{:?}", of_url(&at(words)).map(drop).unwrap_err());
            assert!(refused.contains(part) && !refused.contains("hunter2"), "{words}: {refused}");
        }
    }
}
