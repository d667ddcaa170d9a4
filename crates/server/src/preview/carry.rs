//! One request over one connection into the sandbox: bytes are passed on as they come, both ways, and
//! a connection on which nothing moves for too long is over.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use axum::response::Response;
use engine::Tunnel;
use futures_util::StreamExt as _;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};

use super::answer::outward;
use super::place::Place;
use super::request::{inward, wants_upgrade};
use super::trouble::Trouble;
use crate::app::App;
use crate::listen::{MayStall, PeerAddress};
use crate::refusal::Refusal;
use crate::routes::tunnel;

pub(super) async fn carry(
    app: &App,
    tunnel: Tunnel,
    place: Place,
    mut request: Request,
) -> Result<Response, Refusal> {
    let client = Client {
        wants_upgrade: wants_upgrade(request.headers()),
        upgrade: request.extensions_mut().remove::<OnUpgrade>(),
        may_stall: request.extensions().get::<MayStall>().cloned().unwrap_or_default(),
    };
    let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0.ip());
    let request = inward(request, &place, &app.address, peer)?;
    let silence = Arc::new(Silence::new(app.preview_silence));
    let io = TokioIo::new(Watched { tunnel, silence: Arc::clone(&silence) });
    let port = place.port;
    let broken = |error: &hyper::Error| match silence.is_over() {
        true => Trouble::Silent { port, limit: silence.limit },
        false => Trouble::NoHttp { port, detail: error.to_string() },
    };
    let (mut sender, connection) = http1::Builder::new()
        .title_case_headers(true)
        .handshake(io)
        .await
        .map_err(|error| broken(&error))?;
    let watch = Arc::clone(&silence);
    // Ends with the answer's body, with whoever reads that, or by silence.
    app.tasks.spawn(async move {
        tokio::select! {
            // Whoever waits for the answer hears how it broke.
            _ = connection.with_upgrades() => {}
            () = watch.exceeded() => {}
        }
    });
    let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return client.switch(app, response, port);
    }
    let mut response = response_body(app, response.map(Body::new));
    outward(&mut response, &place);
    Ok(response)
}

/// What the client's own connection can do.
struct Client {
    wants_upgrade: bool,
    upgrade: Option<OnUpgrade>,
    may_stall: MayStall,
}

impl Client {
    fn switch(
        self,
        app: &App,
        mut response: axum::http::Response<hyper::body::Incoming>,
        port: u16,
    ) -> Result<Response, Refusal> {
        let Some(ours) = self.upgrade.filter(|_| self.wants_upgrade) else {
            let detail = "it switches protocols without being asked to".to_owned();
            return Err(Trouble::NoHttp { port, detail }.into());
        };
        self.may_stall.allow();
        let theirs = hyper::upgrade::on(&mut response);
        let draining = app.draining.clone();
        app.tasks.spawn(async move {
            let Ok(theirs) = theirs.await else { return };
            tunnel::carry(ours, TokioIo::new(theirs), draining).await;
        });
        let (head, _) = response.into_parts();
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        for (name, value) in &head.headers {
            // `Connection` and `Upgrade` belong to the switch; nothing here sets a cookie.
            if name.as_str().starts_with("sec-websocket-") || [CONNECTION, UPGRADE].contains(name) {
                answer.headers_mut().append(name, value.clone());
            }
        }
        Ok(answer)
    }
}

/// A stream of events never ends by itself; when the server does, its readers come back elsewhere.
fn response_body(app: &App, response: Response) -> Response {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        return response;
    }
    let draining = app.draining.clone().cancelled_owned();
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(draining)))
}

/// When a byte last moved, and for how long none may.
struct Silence {
    began: Instant,
    last_ms: AtomicU64,
    over: AtomicBool,
    limit: Duration,
}

impl Silence {
    fn new(limit: Duration) -> Self {
        let (last_ms, over) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { began: Instant::now(), last_ms, over, limit }
    }

    fn touch(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(since, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    async fn exceeded(&self) {
        loop {
            let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
            let ends = self.began + last + self.limit;
            if ends <= Instant::now() {
                return self.over.store(true, Ordering::Relaxed);
            }
            sleep_until(ends).await;
        }
    }
}

struct Watched {
    tunnel: Tunnel,
    silence: Arc<Silence>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.tunnel).poll_read(cx, buffer))?;
        self.silence.touch();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.tunnel).poll_write(cx, bytes))?;
        self.silence.touch();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tunnel).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tunnel).poll_shutdown(cx)
    }
}
