//! A registry behind TLS, with a certificate that this machine trusts, and with one that it does not.
//!
//! Which ones are trusted is read from the environment when a registry is opened, so the test runs itself
//! once more in a process with another environment.

#![expect(clippy::unwrap_used, reason = "support of tests: a panic is how it tells")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use oci::{Credentials, Error, Registry, RegistryOptions};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::task::TaskTracker;

use crate::double::Double;
use crate::pulls::publish;

const NAME: &str = "registry.test";
const CERTIFICATES: &str = "BASTIDE_TEST_CERTIFICATES";

fn certificate(dir: &Path, file: &str) {
    let made = rcgen::generate_simple_self_signed(vec![NAME.into()]).unwrap();
    std::fs::write(dir.join(format!("{file}.pem")), made.cert.pem()).unwrap();
    std::fs::write(dir.join(format!("{file}.key")), made.signing_key.serialize_pem()).unwrap();
}

/// What the inner run prints, with this certificate trusted.
fn with_trusted(dir: &Path, file: &str) -> String {
    let test = "tls::a_registry_is_believed_by_its_certificate_only";
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("SSL_CERT_FILE", dir.join(format!("{file}.pem")))
        .env_remove("SSL_CERT_DIR")
        .env(CERTIFICATES, dir)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[tokio::test]
async fn a_registry_is_believed_by_its_certificate_only() {
    if let Some(dir) = std::env::var_os(CERTIFICATES) {
        return told(Path::new(&dir)).await;
    }
    let dir = tempfile::tempdir().unwrap();
    certificate(dir.path(), "its");
    certificate(dir.path(), "other");
    let text = with_trusted(dir.path(), "its");
    assert!(text.contains("an image of 1 layer"), "{text}");
    let text = with_trusted(dir.path(), "other");
    assert!(text.contains("refused") && text.contains("nothing was asked"), "{text}");
}

#[expect(clippy::print_stdout, reason = "what the outer run reads")]
async fn told(dir: &Path) {
    let double = Double::start();
    publish(&double);
    let tasks = TaskTracker::new();
    let port = front(dir, &double, &tasks).await;
    let dial: oci::Dial = Arc::new(|host, port| {
        Box::pin(async move {
            assert_eq!(host, NAME);
            let connected = TcpStream::connect(("127.0.0.1", port)).await;
            connected.map_err(|error| error.to_string())
        })
    });
    let credentials = Credentials::default();
    let options = RegistryOptions { dial, credentials, plain_http: Vec::new() };
    let registry = Registry::new(options).unwrap();
    let reference = format!("{NAME}:{port}/team/app:main").parse().unwrap();
    match registry.image(&reference).await {
        Ok(image) => println!("an image of {} layer", image.layers.len()),
        Err(Error::Unavailable(why)) => println!("refused: {why}"),
        Err(error) => panic!("{error}"),
    }
    if double.seen("/").is_empty() {
        println!("nothing was asked");
    }
}

/// Speaks TLS before the double, which does not.
async fn front(dir: &Path, double: &Double, tasks: &TaskTracker) -> u16 {
    let chain = CertificateDer::from_pem_file(dir.join("its.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(dir.join("its.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let behind = double.address;
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut secured) = acceptor.accept(stream).await else { continue };
            let mut plain = TcpStream::connect(behind).await.unwrap();
            // A client may have seen enough.
            let _ = tokio::io::copy_bidirectional(&mut secured, &mut plain).await;
        }
    });
    port
}
