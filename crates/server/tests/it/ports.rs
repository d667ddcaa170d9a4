//! Ports inside, as HTTP: what gets in, what gets out, and who may.

mod inside;
mod links;

use axum::body::Body;
use futures_util::StreamExt;
use http_body_util::BodyExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use self::inside::{Inside, a_moment};
use crate::client::{Answer, Client, PATIENCE, pieces};
use crate::harness::{Setup, TestServer};

/// A request with these headers; the client's own `Host` goes when one is given.
async fn ask(client: &Client, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = with(client, method, path, headers);
    client.send(request.body(Body::empty()).unwrap()).await
}

fn with(
    client: &Client,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> hyper::http::request::Builder {
    let mut request = client.request(method, path);
    for (name, value) in headers {
        let all = request.headers_mut().unwrap();
        if *name == "host" {
            all.remove("host");
        }
        all.append(hyper::header::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
    }
    request
}

fn text(answer: &Answer) -> String {
    String::from_utf8(answer.bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn every_method_path_and_query_is_passed_on() {
    let (server, inside) = (TestServer::start().await, Inside::start().await);
    let operator = &server.operator;
    let base = format!("{}/ports/{}", operator.sandbox().await, inside.port);
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"] {
        for (path, seen) in [
            ("", "/"),
            ("/", "/"),
            ("/a/b%2Fc//d?x=1&y=%20", "/a/b%2Fc//d?x=1&y=%20"),
            ("/link/more", "/link/more"),
        ] {
            let answer = ask(operator, method, &format!("{base}{path}"), &[]).await;
            assert_eq!(answer.status, 200, "{method} {path}");
            let first = text(&answer).lines().next().unwrap().to_owned();
            assert_eq!(first, format!("{method} {seen}"));
            assert_eq!(answer.header("x-inside"), "yes");
        }
    }
    let head = ask(operator, "HEAD", &format!("{base}/"), &[]).await;
    assert_eq!((head.status.as_u16(), head.bytes.len()), (200, 0));
    assert!(
        text(&ask(operator, "GET", &format!("{base}/link"), &[]).await).starts_with("GET /link")
    );
    server.stop().await;
}

#[tokio::test]
async fn credentials_and_forged_headers_never_get_in() {
    let (server, inside) = (TestServer::start().await, Inside::start().await);
    let operator = &server.operator;
    let key = operator.key.clone().unwrap();
    let path = format!("{}/ports/{}/?token={key}&a=1", operator.sandbox().await, inside.port);
    let answer = ask(
        operator,
        "GET",
        &path,
        &[
            ("x-api-key", key.as_str()),
            ("cookie", "bastide-port=x; other=y"),
            ("proxy-authorization", "Basic x"),
            ("x-forwarded-for", "6.6.6.6"),
            ("x-forwarded-host", "forged.example"),
            ("x-forwarded-user", "root"),
            ("forwarded", "for=6.6.6.6"),
            ("x-real-ip", "6.6.6.6"),
            ("connection", "x-secret, x-forwarded-proto"),
            ("x-secret", "hop"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("referer", "http://x/?bastide_link=1.abc"),
            ("x-own", "stays"),
        ],
    )
    .await;
    let told = text(&answer);
    assert!(told.starts_with("GET /?a=1\n"), "{told}");
    for gone in [
        &key,
        "cookie",
        "authorization",
        "6.6.6.6",
        "forged",
        "root",
        "hop",
        "keep-alive",
        "trailers",
        "bastide_link",
        "te:",
    ] {
        assert!(!told.contains(gone), "{gone} got in:\n{told}");
    }
    for there in [
        "x-own: stays".to_owned(),
        "x-forwarded-for: 127.0.0.1".into(),
        "x-forwarded-proto: http".into(),
        "x-forwarded-host: test".into(),
        format!("x-forwarded-prefix: {}", path.split("/?").next().unwrap()),
        format!("host: localhost:{}", inside.port),
    ] {
        assert!(told.contains(&there), "{there} is missing:\n{told}");
    }
    server.stop().await;
}

#[tokio::test]
async fn under_the_apis_origin_an_answer_is_nobodys_page() {
    let (server, inside) = (TestServer::start().await, Inside::start().await);
    let operator = &server.operator;
    let base = format!("{}/ports/{}", operator.sandbox().await, inside.port);
    let answer = ask(operator, "GET", &format!("{base}/"), &[]).await;
    let policies: Vec<&str> = answer
        .headers
        .get_all("content-security-policy")
        .iter()
        .map(|v| v.to_str().unwrap())
        .collect();
    assert_eq!(policies.len(), 2, "{policies:?}");
    assert!(policies[1].starts_with("sandbox ") && !policies[1].contains("allow-same-origin"));
    for gone in [
        "set-cookie",
        "service-worker-allowed",
        "clear-site-data",
        "keep-alive",
        "strict-transport-security",
        "www-authenticate",
    ] {
        assert_eq!(answer.header(gone), "", "{gone}");
    }
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
    for path in ["/", "/link", "/more"] {
        let answer = ask(operator, "GET", &format!("{base}{path}"), &[]).await;
        assert!(!answer.headers.contains_key("allow"), "{path}: which methods there are it knows");
    }
    for (path, to) in [
        ("/moved", format!("{base}/there?a=1")),
        ("/moved-home", format!("{base}/home")),
        ("/moved-away", "//evil.example/x".into()),
    ] {
        let answer = ask(operator, "GET", &format!("{base}{path}"), &[]).await;
        assert_eq!((answer.status.as_u16(), answer.header("location")), (302, to.as_str()));
    }
    server.stop().await;
}

#[tokio::test]
async fn only_the_owner_may_and_others_see_nothing() {
    let (server, inside) = (TestServer::start().await, Inside::start().await);
    let operator = &server.operator;
    let sandbox = operator.sandbox().await;
    let path = format!("{sandbox}/ports/{}/", inside.port);
    server.nobody().get(&path).await.problem(401, "unauthorized");
    server.nobody().get("/v1/sandboxes/x/ports/0/").await.problem(401, "unauthorized");
    let ann = server.tenant("ann").await;
    ann.get(&path).await.problem(404, "not_found");
    ann.post_nothing(&format!("{path}link")).await.problem(404, "not_found");
    for bad in ["0", "65536", "x", "+80"] {
        operator.get(&format!("{sandbox}/ports/{bad}/")).await.refuses("port");
        operator.post_nothing(&format!("{sandbox}/ports/{bad}/link")).await.refuses("port");
    }
    operator.post_nothing(&format!("{sandbox}/stop")).await.json(200);
    operator.get(&path).await.problem(409, "wrong_state");
    operator.delete(&sandbox).await.json(200);
    operator.get(&path).await.problem(404, "not_found");
    operator.post_nothing(&format!("{path}link")).await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn what_does_not_answer_is_told_apart() {
    let server = Setup::with("[ports]\nsilence_seconds = 1\n").start().await;
    let operator = &server.operator;
    let sandbox = operator.sandbox().await;
    let inside = Inside::start().await;
    let garbage = Inside::raw(b"SSH-2.0-me\r\n", true).await;
    let broken = Inside::raw(b"", true).await;
    let mute = Inside::raw(b"", false).await;
    let half = Inside::raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", false).await;
    let closed = broken_port().await;
    let get =
        async |port: u16, path: &str| operator.get(&format!("{sandbox}/ports/{port}{path}")).await;
    let answer = get(closed, "/").await.problem(502, "port_closed");
    assert!(answer["detail"].as_str().unwrap().ends_with(&closed.to_string()));
    get(garbage.port, "/").await.problem(502, "bad_gateway");
    get(broken.port, "/").await.problem(502, "bad_gateway");
    get(mute.port, "/").await.problem(504, "gateway_timeout");
    get(inside.port, "/silent").await.problem(504, "gateway_timeout");
    let path = format!("{sandbox}/ports/{}/", half.port);
    let open = operator.open(operator.request("GET", &path).body(Body::empty()).unwrap()).await;
    assert_eq!(open.status, 200);
    assert!(
        timeout(PATIENCE, open.body.collect()).await.unwrap().is_err(),
        "half was taken for all"
    );
    server.stop().await;
}

/// A port on which nothing listens.
async fn broken_port() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn bodies_stream_both_ways() {
    let (server, inside) = (TestServer::start().await, Inside::start().await);
    let operator = &server.operator;
    let base = format!("{}/ports/{}", operator.sandbox().await, inside.port);
    let size = operator.upload(&format!("{base}/size"), pieces(64 << 10, 1024)).await;
    assert_eq!(text(&size), (64 << 20).to_string());
    let answer = operator.get(&format!("{base}/many")).await;
    assert_eq!(answer.bytes.len(), 64 << 20);
    // What has come is there at once, while nothing says that it is all.
    let request = operator.request("GET", &format!("{base}/events"));
    let mut events = operator.open(request.body(Body::empty()).unwrap()).await;
    let first = timeout(PATIENCE, events.body.frame()).await.unwrap().unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "data: one\n\n");
    server.shutdown.cancel();
    let rest = timeout(PATIENCE, events.body.into_data_stream().next()).await.unwrap();
    assert!(rest.is_none_or(|rest| rest.is_err()), "the stream outlived the server");
    server.stop().await;
}

#[tokio::test]
async fn an_upgrade_becomes_a_tunnel_without_the_callers_key() {
    let (server, inside) = (TestServer::start().await, Inside::start().await);
    let operator = &server.operator;
    let path = format!("{}/ports/{}/socket", operator.sandbox().await, inside.port);
    let mut stream = TcpStream::connect(operator.address).await.unwrap();
    let key = operator.key.as_deref().unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\
         connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: k\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap());
    }
    let answer = String::from_utf8(answer).unwrap().to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    assert!(answer.contains("sec-websocket-accept: accepted"), "{answer}");
    assert!(!answer.contains("set-cookie"), "{answer}");
    stream.write_all(b"ping").await.unwrap();
    let mut back = [0; 4];
    timeout(PATIENCE, stream.read_exact(&mut back)).await.unwrap().unwrap();
    assert_eq!(&back, b"ping");
    server.stop().await;
}

#[tokio::test]
async fn an_open_request_keeps_the_sandbox_in_use() {
    let (server, inside) = (TestServer::start().await, Inside::start().await);
    let operator = &server.operator;
    let body = json!({ "template": "standard", "idle_timeout_seconds": 1 });
    let id = operator.create(&body).await["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sandboxes/{id}/ports/{}/events", inside.port);
    let open = operator.open(operator.request("GET", &path).body(Body::empty()).unwrap()).await;
    assert_eq!(open.status, 200);
    for _ in 0..2 {
        a_moment().await;
        assert_eq!(
            operator.get(&format!("/v1/sandboxes/{id}")).await.json(200)["state"],
            "running"
        );
    }
    drop(open);
    for _ in 0..200 {
        if operator.get(&format!("/v1/sandboxes/{id}")).await.json(200)["state"] == "destroyed" {
            return server.stop().await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("it never idles");
}
