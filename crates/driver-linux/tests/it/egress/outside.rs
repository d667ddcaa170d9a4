//! The hosts of these tests: servers on this machine's loopback that count what reaches them.
#![expect(clippy::unwrap_used, reason = "test support: a failure fails the test")]

use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub(super) struct Outside {
    pub(super) port: u16,
    counters: Arc<Counters>,
    _end: DropGuard,
    _openssl: Option<Openssl>,
}

#[derive(Default)]
struct Counters {
    requests: AtomicUsize,
    open: AtomicUsize,
}

#[derive(Clone, Copy)]
enum Kind {
    Http,
    Greeter,
}

impl Outside {
    /// Answers `hello` and the `Host` that it was asked for, once a connection.
    pub(super) async fn http() -> Self {
        Self::tcp(Kind::Http).await
    }

    /// Speaks first, then echoes.
    pub(super) async fn greeter() -> Self {
        Self::tcp(Kind::Greeter).await
    }

    /// `openssl s_server`, with a certificate that nobody trusts.
    pub(super) async fn tls() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let openssl = tokio::task::spawn_blocking(move || Openssl::new(port)).await.unwrap();
        let end = CancellationToken::new().drop_guard();
        let outside = Self { port, counters: Arc::default(), _end: end, _openssl: Some(openssl) };
        for _ in 0..100 {
            if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return outside;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("openssl s_server does not listen");
    }

    /// Answers every datagram.
    pub(super) async fn udp() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        Self::spawn(port, async move |counters| {
            let mut buffer = [0; 1024];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                counters.requests.fetch_add(1, Ordering::Relaxed);
                let _ = socket.send_to(&buffer[..length], from).await;
            }
        })
    }

    pub(super) fn requests(&self) -> usize {
        self.counters.requests.load(Ordering::Relaxed)
    }

    pub(super) async fn all_gone_within(&self, limit: Duration) -> bool {
        let gone = async {
            while self.counters.open.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(limit, gone).await.is_ok()
    }

    async fn tcp(kind: Kind) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        Self::spawn(port, async move |counters| {
            let connections = TaskTracker::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(kind, stream, Arc::clone(&counters)));
            }
        })
    }

    fn spawn<F>(port: u16, serve: impl FnOnce(Arc<Counters>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (counters, end) = (Arc::new(Counters::default()), CancellationToken::new());
        let (serve, ended) = (serve(Arc::clone(&counters)), end.clone());
        TaskTracker::new().spawn(async move {
            tokio::select! { () = serve => {}, () = ended.cancelled() => {} }
        });
        Self { port, counters, _end: end.drop_guard(), _openssl: None }
    }
}

async fn serve(kind: Kind, stream: TcpStream, counters: Arc<Counters>) {
    counters.open.fetch_add(1, Ordering::Relaxed);
    match kind {
        Kind::Http => hello(stream, &counters).await,
        Kind::Greeter => greet(stream).await,
    }
    counters.open.fetch_sub(1, Ordering::Relaxed);
}

async fn hello(stream: TcpStream, counters: &Counters) {
    let mut stream = BufReader::new(stream);
    let (mut line, mut host) = (String::new(), String::new());
    while stream.read_line(&mut line).await.is_ok_and(|length| length > 2) {
        if let Some(value) = line.strip_prefix("Host: ") {
            value.trim().clone_into(&mut host);
        }
        line.clear();
    }
    if host.is_empty() {
        return;
    }
    counters.requests.fetch_add(1, Ordering::Relaxed);
    let body = format!("hello {host}");
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n";
    let head = format!("{head}Content-Length: {}\r\n\r\n", body.len());
    let _ = stream.write_all((head + &body).as_bytes()).await;
}

async fn greet(mut stream: TcpStream) {
    let _ = stream.write_all(b"SSH-2.0-double\r\n").await;
    let mut buffer = [0; 1024];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        let _ = stream.write_all(&buffer[..length]).await;
    }
}

struct Openssl {
    server: Child,
    _files: tempfile::TempDir,
}

impl Openssl {
    fn new(port: u16) -> Self {
        let files = tempfile::tempdir().unwrap();
        let (key, cert) = (files.path().join("key.pem"), files.path().join("cert.pem"));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
            .args(["-nodes", "-days", "2", "-subj", "/CN=allowed.test", "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&cert)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let server = Command::new("openssl")
            .args(["s_server", "-www", "-quiet", "-accept", &format!("127.0.0.1:{port}"), "-key"])
            .arg(&key)
            .arg("-cert")
            .arg(&cert)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { server, _files: files }
    }
}

impl Drop for Openssl {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// An address of this machine that others reach it by; nothing is sent.
pub(super) fn own_address() -> String {
    let own = std::net::UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        Ok(socket.local_addr()?.ip())
    });
    own.unwrap_or(IpAddr::from([127, 0, 0, 1])).to_string()
}

pub(super) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
