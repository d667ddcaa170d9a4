//! The attacks, and what plays the hosts that they must or must not reach.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::Value;

use super::{entries, put, run, server};

/// Answers every request on a connection, and remembers all that came.
pub(super) struct Outside {
    pub(super) port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Vec<u8>>,
    open: AtomicUsize,
    most: AtomicUsize,
    ended: AtomicBool,
}

impl Outside {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let of_all = Arc::clone(&shared);
        let accepting = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if of_all.ended.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&of_all);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Self { port, shared, accepting: Some(accepting) }
    }

    fn seen(&self) -> String {
        String::from_utf8_lossy(&self.shared.seen.lock().unwrap()).into_owned()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) {
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(open, Ordering::SeqCst);
        let (mut buffer, mut kept) = ([0; 4096], Vec::new());
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            self.seen.lock().unwrap().extend_from_slice(&buffer[..length]);
            kept.extend_from_slice(&buffer[..length]);
            while let Some(end) = kept.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = kept.drain(..end + 4).collect();
                let body: &[u8] =
                    if head.windows(4).any(|word| word == b"evil") { b"evil" } else { b"ok" };
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(&[answer.as_bytes(), body].concat());
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An address by which others reach this machine; nothing is sent.
fn own_address() -> String {
    let own = std::net::UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        Ok(socket.local_addr()?.ip().to_string())
    });
    own.unwrap_or_else(|_| "127.0.0.1".into())
}

#[test]
fn every_attack_is_held() {
    let (allowed, closed) = (Outside::start(), Outside::start());
    let rules = [
        format!("allowed.test:{}", allowed.port),
        "*.rebind.test".into(),
        format!("127.0.0.1/32:{}", allowed.port),
    ];
    let own = own_address();
    let hosts = [
        ("allowed.test", "127.0.0.1"),
        ("evil.test", "127.0.0.1"),
        ("metadata.rebind.test", "169.254.169.254"),
        ("private.rebind.test", "10.0.0.1"),
        ("loop.rebind.test", "127.0.0.1"),
        ("host.rebind.test", own.as_str()),
        ("mapped.rebind.test", "::ffff:169.254.169.254"),
        ("ula.rebind.test", "fd00:ec2::254"),
        ("zero.rebind.test", "0.0.0.0"),
    ];
    let server = server(&rules, &hosts);
    put(&server, "attack.py", include_bytes!("attack.py"));
    for (user, attacks) in [("user", 18), ("root", 5)] {
        let line =
            format!("python3 /workspace/attack.py {} {} {own} {user}", allowed.port, closed.port);
        let said =
            server.ok(&["sandbox", "exec", "box", "--user", user, "--timeout", "240", "--", &line]);
        let told: std::collections::BTreeMap<String, String> = serde_json::from_str(&said).unwrap();
        assert!(told.len() >= attacks, "{told:#?}");
        assert!(told.values().all(|verdict| verdict == "held"), "as {user}: {told:#?}");
    }
    assert!(!allowed.seen().contains("evil"), "a request reached a host under a false name");
    assert_eq!(closed.seen(), "", "a port that is not allowed was reached");
    let log = entries(&server);
    for reason in [
        "not_allowed",
        "not_a_public_address",
        "unknown_address",
        "sni_differs",
        "no_sni",
        "host_differs",
        "unreadable_head",
    ] {
        let of_it = log.iter().find(|entry| entry["reason"] == reason);
        let hint = of_it.map(|entry: &Value| &entry["hint"]);
        assert!(hint.is_some_and(Value::is_string), "{reason}: {of_it:?}");
    }
    server.end();
}

#[test]
fn a_flood_of_connections_takes_its_own_share_only() {
    let outside = Outside::start();
    let port = outside.port.to_string();
    let rules = [format!("allowed.test:{port}"), "127.0.0.1/32".into()];
    let server = server(&rules, &[("allowed.test", "127.0.0.1")]);
    server.ok(&["sandbox", "create", "--template", "host", "--name", "other", "--policy", "test"]);
    put(&server, "flood.py", include_bytes!("flood.py"));
    let mut flood = server
        .instance()
        .command(&["sandbox", "exec", "box", "--", "python3", "/workspace/flood.py", &port])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(flood.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "256\n");
    assert_eq!(outside.shared.most.load(Ordering::SeqCst), 256);
    let curl = format!("curl -sS --max-time 5 http://allowed.test:{port}/");
    assert_eq!(server.ok(&["sandbox", "exec", "other", "--", &curl]), "ok");
    drop(flood.stdin.take());
    flood.wait().unwrap();
    assert_eq!(run(&server, &curl), "ok");
    server.ok(&["sandbox", "rm", "other"]);
    server.end();
}
