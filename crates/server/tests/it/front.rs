//! What every request passes: unknown routes, wrong methods, limits, ids, metrics, the drain.

use std::time::Duration;

use axum::body::Body;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{PATIENCE, pieces};
use crate::harness::{Setup, TestServer, becomes};

#[tokio::test]
async fn unknown_routes_and_methods_are_problems() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    for path in ["/", "/v1", "/v1/sandboxes/", "/v1/nothing", "/v1/sandboxes/x/y", "/healthz/"] {
        operator.get(path).await.problem(404, "not_found");
    }
    for (method, path, allowed) in [
        ("PUT", "/v1/sandboxes", ["GET", "POST"].as_slice()),
        ("POST", "/v1/sandboxes/x", &["GET", "PATCH", "DELETE"]),
        ("GET", "/v1/sandboxes/x/exec", &["POST"]),
        ("DELETE", "/healthz", &["GET"]),
        ("BREW", "/v1/events", &["GET"]),
    ] {
        let request = operator.request(method, path).body(Body::empty()).unwrap();
        let answer = operator.send(request).await;
        answer.problem(405, "method_not_allowed");
        let allow = answer.header("allow");
        for method in allowed {
            assert!(allow.contains(method), "{path}: {allow:?}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn parameters_that_nobody_reads_are_refused() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    // What is below a port, or for the agent daemon, is for the server inside, parameters and all.
    let inside = |path: &str| path.ends_with("/ports/1/y") || path.ends_with("/agents/y");
    let ours = crate::auth::GUARDED.iter().filter(|(_, path)| !inside(path));
    for (method, path) in ours {
        let path = path.replace("exec/y", "exec/ex-0123456789abcdef0123456789abcdef");
        let path = path.replace("sessions/x", "sessions/ses_00000000000000000000000000");
        let request = operator.request(method, &format!("{path}?colour=red"));
        let answer = operator.send(request.body(Body::from("{}")).unwrap()).await;
        answer.refuses("colour");
    }
    server.stop().await;
}

#[tokio::test]
async fn health_needs_no_key() {
    let server = TestServer::start().await;
    let health = server.nobody().get("/healthz").await;
    assert_eq!(health.json(200)["status"], "ok");
    assert_eq!(health.header("x-content-type-options"), "nosniff");
    assert_eq!(health.header("cache-control"), "no-store");
    server.stop().await;
}

#[tokio::test]
async fn a_request_has_an_id_of_its_own_or_the_clients() {
    let server = TestServer::start().await;
    let nobody = server.nobody();
    let first = nobody.get("/healthz").await;
    let second = nobody.get("/healthz").await;
    assert!(first.header("x-request-id").starts_with("req-"));
    assert_ne!(first.header("x-request-id"), second.header("x-request-id"));
    for (sent, kept) in [("mine-1.a_B", true), ("a b", false), ("", false)] {
        let request = nobody.request("GET", "/nothing").header("x-request-id", sent);
        let answer = nobody.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.header("x-request-id") == sent, kept, "{sent:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn bodies_have_a_limit() {
    let server = Setup::with("[limits]\njson_bytes = 1024\n").start().await;
    let operator = &server.operator;
    let long = json!({ "template": "standard", "name": "x".repeat(2000) });
    operator.post("/v1/sandboxes", &long).await.problem(413, "body_too_large");
    operator.upload("/v1/sandboxes", pieces(900, 3)).await.problem(413, "body_too_large");
    server.stop().await;
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_sends_on() {
    let server = TestServer::start().await;
    let key = server.operator.key.clone().unwrap();
    for path in ["/v1/sandboxes", "/v1/nothing"] {
        let mut stream = TcpStream::connect(server.operator.address).await.unwrap();
        let body_bytes = 32 * 1024 * 1024;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\
             content-length: {body_bytes}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b'x'; body_bytes]).await.unwrap();
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
        assert!(answer.contains("application/problem+json"), "{answer}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_stops_coming_is_given_up() {
    let server = Setup::with("[limits]\nbody_timeout_seconds = 1\n").start().await;
    let key = server.operator.key.clone().unwrap();
    let mut stream = TcpStream::connect(server.operator.address).await.unwrap();
    let head = format!(
        "POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\
         content-length: 100\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("request_timeout"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_given_up() {
    let server = Setup::with("[limits]\nbody_timeout_seconds = 1\n").start().await;
    let operator = &server.operator;
    let path = format!("{}/files?path=/workspace/big", operator.sandbox().await);
    // More than the kernel keeps for a connection.
    let size = 48 * 1024 * 1024;
    operator.upload(&path, vec![7; size]).await.json(200);
    let open = operator.open(operator.request("GET", &path).body(Body::empty()).unwrap()).await;
    let in_time = operator.get(&path).await;
    assert_eq!(in_time.bytes.len(), size);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let rest = timeout(PATIENCE, http_body_util::BodyExt::collect(open.body)).await.unwrap();
    assert!(rest.is_err(), "the whole of it came after all");
    server.stop().await;
}

#[tokio::test]
async fn a_head_that_stops_coming_is_given_up() {
    let server = Setup::with("[limits]\nheader_timeout_seconds = 1\n").start().await;
    let mut stream = TcpStream::connect(server.operator.address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nho").await.unwrap();
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_connection_may_idle_for_a_while_only() {
    let server = Setup::with("[limits]\nheader_timeout_seconds = 1\n").start().await;
    let mut stream = TcpStream::connect(server.operator.address).await.unwrap();
    for _ in 0..2 {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut head = [0; 12];
        timeout(PATIENCE, stream.read_exact(&mut head)).await.unwrap().unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        let mut rest = vec![0; 4096];
        let _ = timeout(PATIENCE, stream.read(&mut rest)).await.unwrap().unwrap();
    }
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let server = Setup::with("[limits]\nconnections = 2\n").start().await;
    let address = server.operator.address;
    let first = TcpStream::connect(address).await.unwrap();
    let second = TcpStream::connect(address).await.unwrap();
    let mut third = TcpStream::connect(address).await.unwrap();
    third.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    let waited = timeout(Duration::from_millis(300), third.read_exact(&mut answer)).await;
    assert!(waited.is_err(), "the third connection was served");
    drop((first, second));
    timeout(PATIENCE, third.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop(third);
    server.stop().await;
}

#[tokio::test]
async fn metrics_count_by_route_and_state() {
    let server = TestServer::start().await;
    let sandbox = server.operator.sandbox().await;
    server.operator.post(&format!("{sandbox}/exec"), &json!({ "command": "true" })).await.json(200);
    server.operator.get("/v1/sandboxes/unknown").await.problem(404, "not_found");
    let answer = server.nobody().get("/metrics").await;
    assert_eq!(answer.status, 200);
    let text = String::from_utf8(answer.bytes.to_vec()).unwrap();
    for line in [
        "bastide_sandboxes{state=\"running\"} 1",
        "bastide_sandbox_creates_total 1",
        "bastide_execs_total 1",
        "bastide_http_requests_total{method=\"POST\",route=\"/v1/sandboxes\",status=\"201\"} 1",
        "bastide_http_requests_total{method=\"GET\",route=\"/v1/sandboxes/{id}\",status=\"404\"} 1",
        "# TYPE bastide_http_request_duration_seconds histogram",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("unknown\""), "an id became a label");
    server.stop().await;
}

#[tokio::test]
async fn metrics_can_be_for_the_operator_or_for_nobody() {
    let server = Setup::with("metrics = 'operator'").start().await;
    server.nobody().get("/metrics").await.problem(401, "unauthorized");
    server.tenant("ann").await.get("/metrics").await.problem(403, "forbidden");
    assert_eq!(server.operator.get("/metrics").await.status, 200);
    server.stop().await;
    let server = Setup::with("metrics = 'off'").start().await;
    server.operator.get("/metrics").await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn a_drain_lets_requests_finish_and_ends_streams() {
    let server = TestServer::start().await;
    let operator = server.operator.clone();
    let sandbox = operator.sandbox().await;
    let events = operator.open(operator.request("GET", "/v1/events").body(Body::empty()).unwrap());
    let events = events.await;
    let gate = server.dir.path().join("go");
    let command = format!("while [ ! -e {} ]; do sleep 0.02; done; echo done", gate.display());
    let slow = json!({ "command": command });
    let path = format!("{sandbox}/exec");
    let exec = operator.post(&path, &slow);
    let drained = async {
        becomes(true, &command).await;
        server.shutdown.cancel();
        while TcpStream::connect(operator.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        std::fs::write(&gate, "").unwrap();
    };
    let (answer, ()) = tokio::join!(exec, drained);
    assert_eq!(answer.json(200)["stdout"], "done\n");
    events.whole().await;
    server.stop().await;
}

#[tokio::test]
async fn a_drain_answers_who_had_connected_and_not_asked_yet() {
    let server = TestServer::start().await;
    let address = server.operator.address;
    let mut late = TcpStream::connect(address).await.unwrap();
    // Whoever comes later is accepted later.
    assert_eq!(server.operator.get("/healthz").await.status, 200);
    server.shutdown.cancel();
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    late.write_all(b"GET /openapi.json HTTP/1.1\r\nhost: town\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, late.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer:?}");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer:?}");
    server.stop().await;
}

#[tokio::test]
async fn the_drain_time_ends_what_does_not_end_itself() {
    let server = Setup::with("drain_seconds = 1").start().await;
    let operator = server.operator.clone();
    let sandbox = operator.sandbox().await;
    let path = format!("{sandbox}/exec");
    let request = operator.request("POST", &path);
    let request = request.body(Body::from(r#"{"command": "sleep 7001.5"}"#)).unwrap();
    let began = async {
        becomes(true, "7001.5").await;
        timeout(PATIENCE, server.stop()).await.unwrap();
    };
    let exec = TcpStream::connect(operator.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(exec)).await.unwrap();
    let (answer, _, ()) = tokio::join!(sender.send_request(request), connection, began);
    assert!(answer.is_err(), "a command of two hours ended in a second");
    becomes(false, "7001.5").await;
}
