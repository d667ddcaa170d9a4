//! HTTPS with a certificate from files.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::Request;
use hyper_util::rt::TokioIo;
use rustix::process::{Signal, getpid, kill_process};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::task::TaskTracker;

use crate::harness::Setup;

/// Writes a fresh certificate for `localhost`, and trusts that one alone.
fn renew(dir: &Path) -> TlsConnector {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(dir.join("cert.pem"), made.cert.pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

async fn connects(trusting: &TlsConnector, address: SocketAddr) -> bool {
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    trusting.connect(name, stream).await.is_ok()
}

#[tokio::test]
async fn a_new_certificate_is_read_at_sighup_and_a_broken_one_is_not() {
    // From here on SIGHUP does not end this process.
    let _watched = signal(SignalKind::hangup()).unwrap();
    let mut setup = Setup::new();
    let dir = Arc::clone(&setup.dir);
    let first = renew(dir.path());
    setup.config.tls_cert = Some(dir.path().join("cert.pem"));
    setup.config.tls_key = Some(dir.path().join("key.pem"));
    let server = setup.start().await;
    let address = server.operator.address;
    assert!(connects(&first, address).await);

    let second = renew(dir.path());
    let hang_up = || kill_process(getpid(), Signal::HUP).unwrap();
    for _ in 0..500 {
        // Before the server watches for it, nothing would come of it.
        hang_up();
        if connects(&second, address).await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(connects(&second, address).await && !connects(&first, address).await);

    std::fs::write(dir.path().join("cert.pem"), "not a certificate").unwrap();
    hang_up();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(connects(&second, address).await);
    server.stop().await;
}

#[tokio::test]
async fn the_server_speaks_https() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let mut setup = Setup::new();
    let (cert, key) = (setup.dir.path().join("cert.pem"), setup.dir.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    setup.config.tls_cert = Some(cert);
    setup.config.tls_key = Some(key);
    let server = setup.start().await;
    let address = server.operator.address;

    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let secured = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(secured)).await.unwrap();
    let tasks = TaskTracker::new();
    tasks.spawn(connection);
    let request = Request::get("/openapi.json").header("host", "x").body(Body::empty()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(document["servers"][0]["url"], format!("https://{address}"));
    drop(sender);

    // Plain HTTP on that port gets no answer, and harms nobody.
    let mut plain = TcpStream::connect(address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut plain, b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut plain, &mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    server.stop().await;
}
