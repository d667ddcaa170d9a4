//! Raw connections to ports inside.

use axum::body::Body;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use crate::client::Client;
use crate::harness::TestServer;

/// Sends an upgrade by hand; the head of the answer and the connection.
async fn upgrade(client: &Client, method: &str, path: &str) -> (String, TcpStream) {
    let mut stream = TcpStream::connect(client.address).await.unwrap();
    let key = client.key.as_deref().unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\
         connection: keep-alive, Upgrade\r\nupgrade: Bastide-Tunnel\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    (String::from_utf8(answer).unwrap(), stream)
}

#[tokio::test]
async fn bytes_go_both_ways_until_one_side_closes() {
    let server = TestServer::start().await;
    let path = server.operator.sandbox().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let tasks = TaskTracker::new();
    let echo = tasks.spawn(async move {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut from, mut to) = stream.split();
            tokio::io::copy(&mut from, &mut to).await.unwrap();
        }
    });
    for method in ["POST", "GET"] {
        let tunnel = format!("{path}/tunnel?port={port}");
        let (head, mut stream) = upgrade(&server.operator, method, &tunnel).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.to_ascii_lowercase().contains("upgrade: bastide-tunnel"), "{head}");
        stream.write_all(b"ping\0\xff").await.unwrap();
        let mut back = [0; 6];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"ping\0\xff");
        stream.shutdown().await.unwrap();
        assert_eq!(stream.read(&mut back).await.unwrap(), 0);
    }
    echo.await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn bad_tunnels_are_refused() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let path = operator.sandbox().await;
    for query in ["", "?port=", "?port=0", "?port=65536", "?port=http", "?port=-1"] {
        operator.get(&format!("{path}/tunnel{query}")).await.refuses("port");
    }
    let plain = operator.get(&format!("{path}/tunnel?port=80")).await;
    plain.problem(426, "upgrade_required");
    assert_eq!(plain.header("upgrade"), "bastide-tunnel");
    let request = operator.request("GET", &format!("{path}/tunnel?port=80"));
    let other = request.header("connection", "upgrade").header("upgrade", "websocket");
    let other = operator.send(other.body(Body::empty()).unwrap()).await;
    other.problem(426, "upgrade_required");

    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let (head, _) = upgrade(operator, "GET", &format!("{path}/tunnel?port={free}")).await;
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    operator.post_nothing(&format!("{path}/stop")).await.json(200);
    let (head, _) = upgrade(operator, "GET", &format!("{path}/tunnel?port=80")).await;
    assert!(head.starts_with("HTTP/1.1 409 "), "{head}");
    server.stop().await;
}

#[tokio::test]
async fn a_drain_ends_tunnels() {
    let server = TestServer::start().await;
    let path = server.operator.sandbox().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let tunnel = format!("{path}/tunnel?port={port}");
    let (head, mut stream) = upgrade(&server.operator, "GET", &tunnel).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let (_inside, _) = listener.accept().await.unwrap();
    server.stop().await;
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}
