//! What is sent, and what comes back in pieces.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::connection::{Connection, broken};
use super::{Pool, next};
use crate::frame::Decoder;
use crate::pieces::FileStream;
use crate::{ExecFrame, GuestError};

type Pieces = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// The body of a request: nothing, one piece, or many.
pub(super) enum RequestBody {
    Full(Option<Bytes>),
    Stream(Pieces),
}

impl RequestBody {
    pub(super) fn empty() -> Self {
        Self::Full(None)
    }

    pub(super) fn full(bytes: Bytes) -> Self {
        Self::Full(Some(bytes))
    }

    /// The same again, unless it comes once only.
    pub(super) fn copy(&self) -> Option<Self> {
        match self {
            Self::Full(bytes) => Some(Self::Full(bytes.clone())),
            Self::Stream(_) => None,
        }
    }

    pub(super) fn stream(stream: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        Self::Stream(Box::pin(stream))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(stream) => {
                stream.as_mut().poll_next(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// The body of an answer. Its connection goes back to the pool at its end, and is closed when this
/// is dropped before.
#[derive(Debug)]
pub(super) struct ResponseBody {
    incoming: Incoming,
    connection: Option<Connection>,
    pool: Arc<Pool>,
}

impl ResponseBody {
    pub(super) fn new(incoming: Incoming, connection: Connection, pool: Arc<Pool>) -> Self {
        Self { incoming, connection: Some(connection), pool }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, GuestError>>> {
        loop {
            let Some(connection) = &mut self.connection else { return Poll::Ready(None) };
            connection.drive(cx);
            let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) else {
                return Poll::Pending;
            };
            match frame {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    return Poll::Ready(Some(Ok(data)));
                }
                Some(Err(error)) => {
                    self.connection = None;
                    return Poll::Ready(Some(Err(broken(&error))));
                }
                None => {
                    self.recycle(cx);
                    return Poll::Ready(None);
                }
            }
        }
    }

    fn recycle(&mut self, cx: &mut Context<'_>) {
        let Some(mut connection) = self.connection.take() else { return };
        if !connection.is_closed(cx) {
            self.pool.give_back(connection);
        }
    }
}

/// Bytes as they come.
#[derive(Debug)]
pub struct ByteStream {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Guest(Box<ResponseBody>),
    Disk(FileStream),
}

impl ByteStream {
    pub(super) fn new(body: ResponseBody) -> Self {
        Self { source: Source::Guest(Box::new(body)) }
    }

    pub(super) fn of_file(file: FileStream) -> Self {
        Self { source: Source::Disk(file) }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, GuestError>>> {
        match &mut self.source {
            Source::Guest(body) => body.poll_piece(cx),
            Source::Disk(file) => {
                Pin::new(file).poll_next(cx).map_err(|error| GuestError::Failed(error.to_string()))
            }
        }
    }

    /// All of it, if it is at most `max` bytes.
    pub async fn collect(mut self, max: usize) -> Result<Bytes, GuestError> {
        let mut all = BytesMut::new();
        while let Some(piece) = next(&mut self).await {
            let piece = piece?;
            if all.len() + piece.len() > max {
                return Err(GuestError::TooLarge);
            }
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }
}

impl Stream for ByteStream {
    type Item = Result<Bytes, GuestError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_piece(cx)
    }
}

/// A file on its way out. `size` is what the guest announced; the stream fails when it lied.
#[derive(Debug)]
pub struct FileDownload {
    pub size: u64,
    pub body: ByteStream,
}

/// What a command does, until and with its end.
#[derive(Debug)]
pub struct ExecFrames {
    body: ByteStream,
    decoder: Decoder,
    ended: bool,
}

impl ExecFrames {
    pub(super) fn new(body: ByteStream) -> Self {
        Self { body, decoder: Decoder::default(), ended: false }
    }

    /// The next frame; `None` after the end.
    pub async fn next(&mut self) -> Option<Result<ExecFrame, GuestError>> {
        next(self).await
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<ExecFrame, GuestError>> {
        loop {
            if let Some(frame) = self.decoder.next_frame()? {
                return Poll::Ready(Ok(frame));
            }
            match self.body.poll_piece(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(piece)) => self.decoder.feed(&piece?),
                Poll::Ready(None) => {
                    let gone = io::ErrorKind::UnexpectedEof.into();
                    return Poll::Ready(Err(GuestError::Unreachable(gone)));
                }
            }
        }
    }
}

impl Stream for ExecFrames {
    type Item = Result<ExecFrame, GuestError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(frame) = self.poll_frame(cx) else { return Poll::Pending };
        if !matches!(
            frame,
            Ok(ExecFrame::Output { .. } | ExecFrame::Gap { .. } | ExecFrame::Keepalive)
        ) {
            self.ended = true;
            // Most often the end of the body came with the end of the command: the connection can
            // be used again at once. If it did not, it is closed with this value.
            let _ = self.body.poll_piece(cx);
        }
        Poll::Ready(Some(frame))
    }
}
