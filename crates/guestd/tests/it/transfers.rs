//! `/files` of envd.

use std::fs;
use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::guest::TestGuest;
use crate::wire::{Answer, call, send};

const OCTETS: &str = "Content-Type: application/octet-stream";

async fn put(guest: &TestGuest, query: &str, headers: &[&str], body: &[u8]) -> Answer {
    let mut headers = headers.to_vec();
    headers.push(OCTETS);
    send(guest, &format!("POST /files?{query}"), &headers, body).await
}

async fn get(guest: &TestGuest, query: &str, headers: &[&str]) -> Answer {
    send(guest, &format!("GET /files?{query}"), headers, b"").await
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn octets_are_written_with_their_parents_and_read() {
    let guest = TestGuest::start();
    let written = put(&guest, "path=a/b/file%20x", &[], b"data").await;
    let path = guest.path("a/b/file x");
    assert_eq!(written.json(), json!([{ "name": "file x", "path": path, "type": "file" }]));
    let read = get(&guest, "path=a/b/file%20x", &[]).await;
    assert_eq!((read.status, read.text().as_str()), (200, "data"));
    assert_eq!(read.header("content-length"), Some("4"));
    assert_eq!(read.header("content-disposition"), Some("inline; filename=\"file x\""));
    assert_eq!(read.header("vary"), Some("Accept-Encoding"));
    assert_eq!(put(&guest, "path=a/b/file%20x", &[], b"").await.status, 200);
    let empty = get(&guest, "path=a/b/file%20x", &["Accept-Encoding: gzip"]).await;
    assert_eq!((empty.header("content-length"), empty.text().as_str()), (Some("0"), ""));
}

#[tokio::test]
async fn forms_carry_files_whose_filename_is_a_path() {
    let guest = TestGuest::start();
    let kind = ["Content-Type: multipart/form-data; boundary=xx"];
    let part = |path: &str, data: &str| {
        format!(
            "--xx\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{path}\"\r\n\r\n{data}\r\n"
        )
    };
    let absolute = guest.path("one");
    let body = part(&absolute, "1") + &part("deep/two", "22") + "--xx--\r\n";
    let written = send(&guest, "POST /files", &kind, body.as_bytes()).await;
    assert_eq!(written.status, 200, "{}", written.text());
    assert_eq!(written.json()[1]["path"], guest.path("deep/two"));
    assert_eq!(fs::read(absolute).unwrap(), b"1");
    assert_eq!(fs::read(guest.path("deep/two")).unwrap(), b"22");

    let body = part("ignored", "333") + "--xx--\r\n";
    send(&guest, "POST /files?path=named", &kind, body.as_bytes()).await;
    assert_eq!(fs::read(guest.path("named")).unwrap(), b"333");

    let twice = part("same", "1") + &part("./same", "2") + "--xx--\r\n";
    assert_eq!(send(&guest, "POST /files", &kind, twice.as_bytes()).await.status, 400);
    let cut = part("cut", "1");
    assert_eq!(send(&guest, "POST /files", &kind, cut.as_bytes()).await.status, 400);
}

#[tokio::test]
async fn gzip_is_understood_both_ways() {
    let guest = TestGuest::start();
    let data = b"compress me ".repeat(100_000);
    // Two members, and nothing is left over after the last trailer.
    let body = [gzip(&data[..500_000]), gzip(&data[500_000..])].concat();
    let written = put(&guest, "path=z", &["Content-Encoding: gzip"], &body).await;
    assert_eq!(written.status, 200, "{}", written.text());
    assert_eq!(fs::read(guest.path("z")).unwrap(), data);
    let read = get(&guest, "path=z", &["Accept-Encoding: gzip"]).await;
    assert_eq!(read.header("content-encoding"), Some("gzip"));
    assert!(read.body.len() < data.len() / 10);
    let mut plain = Vec::new();
    MultiGzDecoder::new(&read.body[..]).read_to_end(&mut plain).unwrap();
    assert_eq!(plain, data);
    let broken = put(&guest, "path=z", &["Content-Encoding: gzip"], b"not gzip at all").await;
    assert_eq!(broken.status, 400);
    assert_eq!(put(&guest, "path=z", &["Content-Encoding: br"], b"x").await.status, 415);
    assert_eq!(get(&guest, "path=z", &["Accept-Encoding: br, identity;q=0"]).await.status, 406);
}

#[tokio::test]
async fn ranges_and_conditions_are_honoured() {
    let guest = TestGuest::start();
    fs::write(guest.path("digits"), "0123456789").unwrap();
    let check = async |range: &str, status: u16, body: &str, content_range: Option<&str>| {
        let answer = get(&guest, "path=digits", &[&format!("Range: {range}")]).await;
        assert_eq!(
            (answer.status, answer.header("content-range")),
            (status, content_range),
            "{range}"
        );
        if status < 400 {
            assert_eq!(answer.text(), body, "{range}");
        }
    };
    check("bytes=2-4", 206, "234", Some("bytes 2-4/10")).await;
    check("bytes=7-", 206, "789", Some("bytes 7-9/10")).await;
    check("bytes=-2", 206, "89", Some("bytes 8-9/10")).await;
    check("bytes=0-1,4-5", 200, "0123456789", None).await;
    check("bytes=10-", 416, "", None).await;
    let modified =
        get(&guest, "path=digits", &[]).await.header("last-modified").unwrap().to_owned();
    let unchanged = get(&guest, "path=digits", &[&format!("If-Modified-Since: {modified}")]).await;
    assert_eq!((unchanged.status, unchanged.body.len()), (304, 0));
}

#[tokio::test]
async fn what_cannot_be_read_or_written_says_why() {
    let guest = TestGuest::start();
    let home = guest.path("").trim_end_matches('/').to_owned();
    let check = async |answer: Answer, status: u16, text: &str| {
        assert_eq!(answer.status, status, "{}", answer.text());
        assert_eq!(answer.json()["message"], text);
    };
    check(
        get(&guest, "path=missing", &[]).await,
        404,
        &format!("path '{home}/missing' does not exist"),
    )
    .await;
    check(
        get(&guest, &format!("path={home}"), &[]).await,
        400,
        &format!("path '{home}' is a directory"),
    )
    .await;
    let unknown = "error looking up user 'who': user: unknown user who";
    check(get(&guest, "path=x&username=who", &[]).await, 401, unknown).await;
    let octets = put(&guest, "", &[], b"x").await;
    assert_eq!(octets.status, 400, "octets need a path");
    assert_eq!(
        send(&guest, "POST /files?path=x", &["Content-Type: text/html"], b"x").await.status,
        415
    );
    check(put(&guest, "path=/dev/full", &[], b"x").await, 507, "not enough disk space available")
        .await;
}

#[tokio::test]
async fn metadata_is_kept_and_replaced() {
    let guest = TestGuest::start();
    let both = ["X-Metadata-One: 1", "X-Metadata-Two: 2"];
    let written = put(&guest, "path=tagged", &both, b"x").await.json();
    assert_eq!(written[0]["metadata"], json!({ "one": "1", "two": "2" }));
    let stat = async || {
        let stat = call(&guest, "filesystem.Filesystem/Stat", json!({ "path": "tagged" })).await;
        stat.json()["entry"]["metadata"].clone()
    };
    assert_eq!(stat().await, json!({ "one": "1", "two": "2" }));
    put(&guest, "path=tagged", &["X-Metadata-Two: new"], b"x").await;
    assert_eq!(stat().await, json!({ "two": "new" }));
    let long = format!("X-Metadata-Long: {}", "x".repeat(5000));
    assert_eq!(put(&guest, "path=tagged", &[&long], b"x").await.status, 400);
}

#[tokio::test]
async fn files_are_composed() {
    let guest = TestGuest::start();
    fs::write(guest.path("p1"), "one ").unwrap();
    fs::write(guest.path("p2"), "two").unwrap();
    let compose = async |sources: &[&str]| {
        let body = json!({ "source_paths": sources, "destination": "out/whole" }).to_string();
        send(&guest, "POST /files/compose", &["Content-Type: application/json"], body.as_bytes())
            .await
    };
    assert_eq!(compose(&["p1", "missing"]).await.status, 404);
    assert!(guest.home().join("p1").exists());
    let composed = compose(&["p1", "p2"]).await;
    assert_eq!(composed.json()["path"], guest.path("out/whole"), "{}", composed.text());
    assert_eq!(fs::read(guest.path("out/whole")).unwrap(), b"one two");
    assert!(!guest.home().join("p1").exists(), "the parts are used up");
    assert_eq!(compose(&[]).await.status, 400);
}
