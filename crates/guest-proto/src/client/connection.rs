//! One HTTP/1.1 connection, driven by whoever holds it.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::body::RequestBody;
use super::stream::{Socket, Tunnel};
use crate::{Address, GuestError};

type Driver = http1::Connection<TokioIo<Socket>, RequestBody>;

pub(super) struct Connection {
    sender: http1::SendRequest<RequestBody>,
    /// `None` once it has ended: by an error, by the peer, or by an upgrade.
    driver: Option<Driver>,
    /// What is left of it after an upgrade, or its error.
    ended: Option<Result<Driver, hyper::Error>>,
}

/// Why there is no answer.
pub(super) enum SendError {
    /// The connection was closed before the request was taken: nothing has been carried out.
    Unsent,
    Failed(GuestError),
}

impl Connection {
    pub(super) async fn open(address: &Address) -> Result<Self, GuestError> {
        let socket = Socket::connect(address).await.map_err(GuestError::Unreachable)?;
        let (sender, driver) =
            http1::handshake(TokioIo::new(socket)).await.map_err(|error| broken(&error))?;
        Ok(Self { sender, driver: Some(driver), ended: None })
    }

    /// Moves bytes both ways. Everything else must be preceded by this in the same poll.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        let Some(driver) = &mut self.driver else { return };
        if let Poll::Ready(end) = Pin::new(driver).poll(cx) {
            let driver = self.driver.take();
            self.ended = driver.map(|driver| end.map(|()| driver));
        }
    }

    pub(super) fn is_closed(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx);
        self.driver.is_none() || self.sender.is_closed()
    }

    /// Sends and waits for the head of the answer.
    pub(super) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, SendError> {
        let ready = poll_fn(|cx| {
            self.drive(cx);
            self.sender.poll_ready(cx)
        });
        if ready.await.is_err() {
            return Err(SendError::Unsent);
        }
        let mut answer = std::pin::pin!(self.sender.try_send_request(request));
        let driver = &mut self.driver;
        let ended = &mut self.ended;
        let sent = poll_fn(|cx| {
            if let Some(running) = driver
                && let Poll::Ready(end) = Pin::new(running).poll(cx)
            {
                *ended = driver.take().map(|driver| end.map(|()| driver));
            }
            answer.as_mut().poll(cx)
        });
        sent.await.map_err(|mut error| match (error.take_message(), broken(error.error())) {
            (Some(_), _) => SendError::Unsent,
            // Nobody reads any more at the other end, so nobody has read the request.
            (None, GuestError::Unreachable(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                SendError::Unsent
            }
            (None, error) => SendError::Failed(error),
        })
    }

    /// After an answer of 101: the bare stream, with what was already read of it.
    pub(super) async fn into_tunnel(mut self) -> Result<Tunnel, GuestError> {
        poll_fn(|cx| {
            self.drive(cx);
            if self.driver.is_none() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let Some(Ok(driver)) = self.ended else {
            return Err(GuestError::Unreachable(io::ErrorKind::ConnectionReset.into()));
        };
        let parts = driver.into_parts();
        Ok(Tunnel::new(parts.io.into_inner(), parts.read_buf))
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("open", &self.driver.is_some()).finish()
    }
}

/// What an error of the transport means to the caller.
pub(super) fn broken(error: &hyper::Error) -> GuestError {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<io::Error>() {
            let copy = io::Error::new(io.kind(), io.to_string());
            // Our own body streams mark their errors as `Other`; sockets never do.
            return if error.is_user() {
                GuestError::Body(copy)
            } else {
                GuestError::Unreachable(copy)
            };
        }
        source = inner.source();
    }
    if error.is_parse() {
        return GuestError::protocol(error.to_string());
    }
    GuestError::Unreachable(io::Error::new(io::ErrorKind::ConnectionReset, error.to_string()))
}
