//! A server "inside": the fake's guest connects to ports of this machine. It tells what it was sent.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, LOCATION, SET_COOKIE, UPGRADE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub(super) struct Inside {
    pub(super) port: u16,
    _end: DropGuard,
}

impl Inside {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let end = CancellationToken::new();
        let (tasks, ended) = (TaskTracker::new(), end.clone());
        let connections = tasks.clone();
        tasks.spawn(async move {
            while let Some(Ok((stream, _))) = ended.run_until_cancelled(listener.accept()).await {
                let service = service_fn(answer);
                let connection =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                connections.spawn(async move {
                    // Broken off by either side: the test looks at what it got.
                    let _ = connection.with_upgrades().await;
                });
            }
        });
        Self { port, _end: end.drop_guard() }
    }

    /// Says these bytes to whoever connects, whatever they say.
    pub(super) async fn raw(bytes: &'static [u8], then_close: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let end = CancellationToken::new();
        let (tasks, ended) = (TaskTracker::new(), end.clone());
        tasks.spawn(async move {
            let mut kept = Vec::new();
            while let Some(Ok((mut stream, _))) = ended.run_until_cancelled(listener.accept()).await
            {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(bytes).await;
                if !then_close {
                    kept.push(stream);
                }
            }
        });
        Self { port, _end: end.drop_guard() }
    }
}

async fn answer(mut request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let mut response = match path.as_str() {
        "/socket" => return Ok(upgrade(&mut request)),
        "/size" => {
            let mut size = 0;
            let mut body = request.into_body();
            while let Some(Ok(frame)) = body.frame().await {
                size += frame.data_ref().map_or(0, Bytes::len);
            }
            Response::new(Body::from(size.to_string()))
        }
        "/many" => {
            let piece = Bytes::from(vec![b'x'; 64 << 10]);
            let pieces = stream::iter(std::iter::repeat_n(piece, 1024)).map(Ok::<_, Infallible>);
            Response::new(Body::from_stream(pieces))
        }
        "/silent" => std::future::pending().await,
        "/events" => {
            let first = stream::iter([Ok::<_, Infallible>("data: one\n\n")]);
            Response::new(Body::from_stream(first.chain(stream::pending())))
        }
        "/moved" => moved("/there?a=1"),
        "/moved-home" => moved(&format!("http://{}/home", header(request.headers(), "host"))),
        "/moved-away" => moved("//evil.example/x"),
        _ => Response::new(Body::from(told(&request))),
    };
    let headers = response.headers_mut();
    if path == "/events" {
        headers.insert(CONTENT_TYPE, "text/event-stream".parse().unwrap());
    }
    for (name, value) in [
        ("set-cookie", "sid=1; Domain=example.com; Path=/"),
        ("set-cookie", "bastide-port=forged; Path=/"),
        ("service-worker-allowed", "/"),
        ("clear-site-data", "\"*\""),
        ("strict-transport-security", "max-age=1"),
        ("www-authenticate", "Basic realm=\"phish\""),
        ("content-security-policy", "default-src 'self'"),
        ("keep-alive", "timeout=5"),
        ("x-inside", "yes"),
    ] {
        headers.append(name, value.parse().unwrap());
    }
    Ok(response)
}

/// Method, path with query, and every header, a line each.
fn told(request: &Request<Incoming>) -> String {
    let mut text = format!("{} {}\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        text += &format!("{name}: {}\n", value.to_str().unwrap_or("?"));
    }
    text
}

fn moved(to: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::FOUND;
    response.headers_mut().insert(LOCATION, to.parse().unwrap());
    response
}

/// Echoes what comes.
fn upgrade(request: &mut Request<Incoming>) -> Response<Body> {
    let upgrade = hyper::upgrade::on(request);
    TaskTracker::new().spawn(async move {
        let mut stream = TokioIo::new(upgrade.await.unwrap());
        let mut buffer = [0; 1024];
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            let _ = stream.write_all(&buffer[..length]).await;
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, "Upgrade".parse().unwrap());
    headers.insert(UPGRADE, "websocket".parse().unwrap());
    headers.insert("sec-websocket-accept", "accepted".parse().unwrap());
    headers.insert(SET_COOKIE, "sid=2".parse().unwrap());
    response
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

/// A moment in which nothing happens.
pub(super) async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(1500)).await;
}
