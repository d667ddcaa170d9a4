use std::convert::Infallible;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::args::{DataDir, Shown};

/// A server for one test: it answers with what `answer` makes of each request.
async fn serve<F>(answer: F) -> Client
where
    F: Fn(Request<Incoming>) -> Response<Body> + Clone + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    TaskTracker::new().spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let response = answer(request);
                async move { Ok::<_, Infallible>(response) }
            });
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades()
                .await;
        }
    });
    client(&url)
}

fn client(url: &str) -> Client {
    let connection = Connection {
        server: url.to_owned(),
        key: Some(" e2a_test\n".into()),
        key_file: None,
        ca_cert: None,
        data: DataDir::at("/nonexistent"),
        shown: Shown { json: false },
    };
    Client::new(&connection).unwrap()
}

fn answer(status: u16, body: &Value) -> Response<Body> {
    Response::builder().status(status).body(full(body.to_string().into_bytes())).unwrap()
}

#[tokio::test]
async fn the_key_goes_along_and_json_comes_back() {
    let client = serve(|request| {
        let key = request.headers()[header::AUTHORIZATION].to_str().unwrap().to_owned();
        answer(200, &json!({ "key": key, "path": request.uri().path() }))
    })
    .await;
    let value: Value = client.json(Method::GET, "/v1/x", None).await.unwrap();
    assert_eq!(value, json!({ "key": "Bearer e2a_test", "path": "/v1/x" }));
}

#[tokio::test]
async fn a_problem_becomes_its_sentence() {
    let client = serve(|_| {
        let problem = json!({
            "type": "about:blank", "title": "Bad Request", "status": 400,
            "detail": "disk_gb: at most 20 here", "code": "invalid_request", "field": "disk_gb",
        });
        answer(400, &problem)
    })
    .await;
    let failure = client.json::<Value>(Method::GET, "/v1/x", None).await.unwrap_err();
    assert_eq!(failure, Failure::new("disk_gb: at most 20 here"));
}

#[tokio::test]
async fn a_used_up_quota_says_when_to_come_back() {
    let client = serve(|_| {
        let mut response = answer(429, &json!({}));
        response.headers_mut().insert(header::RETRY_AFTER, "60".parse().unwrap());
        response
    })
    .await;
    let failure = client.json::<Value>(Method::GET, "/v1/x", None).await.unwrap_err();
    assert_eq!(failure.hint.as_deref(), Some("try again in 60 s, or remove a sandbox"));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let failure =
        client("http://127.0.0.1:1").json::<Value>(Method::GET, "/v1/x", None).await.unwrap_err();
    assert!(failure.message.starts_with("cannot reach the server at http://127.0.0.1:1:"));
    assert!(failure.hint.unwrap().contains("bastide serve"));
}

#[tokio::test]
async fn a_tunnel_carries_bytes_both_ways() {
    let client = serve(|mut request| {
        assert_eq!(request.headers()[header::UPGRADE], guest_proto::TUNNEL_UPGRADE);
        assert_eq!(request.uri().query(), Some("port=7"));
        let upgrade = hyper::upgrade::on(&mut request);
        TaskTracker::new().spawn(async move {
            let mut io = TokioIo::new(upgrade.await.unwrap());
            let mut word = [0; 4];
            io.read_exact(&mut word).await.unwrap();
            word.reverse();
            io.write_all(&word).await.unwrap();
        });
        Response::builder()
            .status(101)
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, guest_proto::TUNNEL_UPGRADE)
            .body(empty())
            .unwrap()
    })
    .await;
    let mut tunnel = client.tunnel(&"my-box".parse().unwrap(), 7).await.unwrap();
    tunnel.write_all(b"ping").await.unwrap();
    let mut word = [0; 4];
    tunnel.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"gnip");
}

#[test]
fn a_server_url_is_checked() {
    let good = |text: &str| text.parse::<ServerUrl>().unwrap().to_string();
    assert_eq!(good("http://127.0.0.1:8080"), "http://127.0.0.1:8080");
    assert_eq!(good("https://example.com/"), "https://example.com");
    assert_eq!(good("https://example.com/bastide/"), "https://example.com/bastide");
    assert_eq!(good("http://[::1]:9"), "http://[::1]:9");
    for bad in ["127.0.0.1:8080", "ftp://x", "http://", "http://u:p@x", "http://x/?a=b", ""] {
        assert!(bad.parse::<ServerUrl>().is_err(), "{bad}");
    }
}
