//! Files in and out, and the workspace as a tar stream.

use axum::body::Body;
use http_body_util::BodyExt;

use crate::client::pieces;
use crate::harness::{Setup, TestServer};

#[tokio::test]
async fn every_byte_survives_the_round_trip() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let path = format!("{}/files?path=/workspace/a%20b.bin", operator.sandbox().await);
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let written = operator.upload(&path, bytes.clone()).await;
    assert_eq!(written.json(200), serde_json::json!({ "status": "uploaded" }));
    let read = operator.get(&path).await;
    assert_eq!(read.status, 200);
    assert_eq!(read.header("content-type"), "application/octet-stream");
    assert_eq!(read.header("content-length"), "300000");
    assert_eq!(read.header("content-disposition"), "attachment");
    assert!(read.bytes == bytes, "the bytes differ");
    operator.upload(&path, "shorter").await.json(200);
    assert_eq!(&operator.get(&path).await.bytes[..], b"shorter");
    server.stop().await;
}

#[tokio::test]
async fn a_chunked_body_and_an_empty_one_are_files() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let path = format!("{}/files?path=/workspace/a", operator.sandbox().await);
    operator.upload(&path, pieces(1000, 100)).await.json(200);
    assert_eq!(operator.get(&path).await.bytes.len(), 100_000);
    let empty = operator.request("POST", &path).header("content-length", "0");
    operator.send(empty.body(Body::empty()).unwrap()).await.json(200);
    assert_eq!(operator.get(&path).await.bytes.len(), 0);
    server.stop().await;
}

#[tokio::test]
async fn a_missing_body_is_told_from_an_empty_one() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = TestServer::start().await;
    let operator = &server.operator;
    let path = format!("{}/files?path=/workspace/a", operator.sandbox().await);
    let key = operator.key.clone().unwrap();
    let mut stream = tokio::net::TcpStream::connect(operator.address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("\"field\":\"body\""), "{answer}");
    operator.get(&path).await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn bad_paths_are_refused() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let sandbox = operator.sandbox().await;
    for query in [
        "",
        "?path=",
        "?path=relative",
        "?path=./a",
        "?path=/workspace/../etc/passwd",
        "?path=/..",
        "?path=%2F%2E%2E%2Fetc",
        "?path=/workspace/%2e%2e/x",
        "?path=/a%00b",
        "?path=/a&path=/b",
    ] {
        operator.get(&format!("{sandbox}/files{query}")).await.refuses("path");
        operator.upload(&format!("{sandbox}/files{query}"), "x").await.refuses("path");
    }
    operator.get(&format!("{sandbox}/files?path=/a&mode=7")).await.refuses("mode");
    let deep = format!("{sandbox}/files?path=/workspace/no/such/dir/a");
    operator.upload(&deep, "x").await.problem(400, "invalid_request");
    operator.get(&format!("{sandbox}/files?path=/workspace/none")).await.problem(404, "not_found");
    operator.get(&format!("{sandbox}/files?path=/workspace")).await.problem(400, "invalid_request");
    operator.get("/v1/sandboxes/nobody/files?path=/a").await.problem(404, "not_found");
    operator.upload("/v1/sandboxes/nobody/files?path=/a", "x").await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn uploads_have_a_limit() {
    let server = Setup::with("[limits]\nfile_bytes = 1000\narchive_bytes = 1000\n").start().await;
    let operator = &server.operator;
    let sandbox = operator.sandbox().await;
    for what in ["files?path=/workspace/a", "files/import"] {
        let path = format!("{sandbox}/{what}");
        operator.upload(&path, vec![0; 1001]).await.problem(413, "body_too_large");
        operator.upload(&path, pieces(600, 2)).await.problem(413, "body_too_large");
    }
    operator.upload(&format!("{sandbox}/files?path=/workspace/a"), vec![0; 1000]).await.json(200);
    server.stop().await;
}

#[tokio::test]
async fn a_full_disk_is_507() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let sandbox = operator.sandbox().await;
    // A device on which every write fails for want of room.
    let link = serde_json::json!({ "command": "ln -s /dev/full full" });
    operator.post(&format!("{sandbox}/exec"), &link).await.json(200);
    let full = operator.upload(&format!("{sandbox}/files?path=/workspace/full"), "x").await;
    full.problem(507, "disk_full");
    server.stop().await;
}

#[tokio::test]
async fn a_workspace_travels_as_a_tar_stream() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let from = operator.sandbox().await;
    operator.upload(&format!("{from}/files?path=/workspace/a.txt"), "hello").await.json(200);
    for stopped in [false, true] {
        if stopped {
            operator.post_nothing(&format!("{from}/stop")).await.json(200);
        }
        let export = operator.get(&format!("{from}/files/export")).await;
        assert_eq!(export.status, 200);
        assert_eq!(export.header("content-type"), "application/x-tar");
        let to = operator.sandbox().await;
        if stopped {
            operator.post_nothing(&format!("{to}/stop")).await.json(200);
        }
        operator.upload(&format!("{to}/files/import"), export.bytes.clone()).await.json(200);
        if stopped {
            operator.post_nothing(&format!("{to}/start")).await.json(200);
        }
        let read = operator.get(&format!("{to}/files?path=/workspace/a.txt")).await;
        assert_eq!(&read.bytes[..], b"hello");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_bad_archive_is_refused() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let sandbox = operator.sandbox().await;
    let path = format!("{sandbox}/files/import");
    let junk = operator.upload(&path, vec![b'x'; 2048]).await;
    junk.problem(400, "invalid_request");
    operator.upload("/v1/sandboxes/nobody/files/import", "x").await.problem(404, "not_found");
    operator.get("/v1/sandboxes/nobody/files/export").await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn a_download_is_streamed() {
    let server = TestServer::start().await;
    let operator = &server.operator;
    let sandbox = operator.sandbox().await;
    let path = format!("{sandbox}/files?path=/workspace/big");
    operator.upload(&path, vec![7; 4 * 1024 * 1024]).await.json(200);
    let mut open = operator.open(operator.request("GET", &path).body(Body::empty()).unwrap()).await;
    let first = open.body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.len() < 4 * 1024 * 1024, "it came in one piece");
    assert_eq!(open.whole().await.bytes.len() + first.len(), 4 * 1024 * 1024);
    server.stop().await;
}
