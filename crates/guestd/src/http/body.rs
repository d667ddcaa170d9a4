//! Bodies, both ways. What comes in is read with a limit, or in pieces.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use super::Request;
use crate::refusal::{Code, Refusal, Result};

type Pieces = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// The body of an answer.
pub(crate) enum Body {
    Full(Option<Bytes>),
    /// With its length, when that is known.
    Stream(Pieces, Option<u64>),
}

impl Body {
    pub(crate) fn empty() -> Self {
        Self::Full(None)
    }

    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::Full((!bytes.is_empty()).then_some(bytes))
    }

    pub(crate) fn stream(stream: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        Self::Stream(Box::pin(stream), None)
    }

    pub(crate) fn sized(
        stream: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        size: u64,
    ) -> Self {
        Self::Stream(Box::pin(stream), Some(size))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(stream, _) => {
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
            Self::Stream(_, Some(size)) => SizeHint::with_exact(*size),
            Self::Stream(_, None) => SizeHint::default(),
        }
    }
}

/// The body of a request in pieces.
pub(crate) struct BodyReader(Incoming);

impl BodyReader {
    pub(crate) fn new(body: Incoming) -> Self {
        Self(body)
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            match self.0.frame().await {
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(Refusal::invalid(format!("the body could not be read: {error}")));
                }
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// All of a body, if it is at most `max` bytes.
pub(crate) async fn read_all(body: Incoming, max: usize) -> Result<Bytes> {
    let too_large = || Refusal::new(Code::TooLarge, format!("the body is longer than {max} bytes"));
    if body.size_hint().lower() > max as u64 {
        return Err(too_large());
    }
    let mut reader = BodyReader::new(body);
    // Most bodies come in one piece, which is then not copied.
    let Some(first) = reader.next().await? else { return Ok(Bytes::new()) };
    let mut all: Option<BytesMut> = None;
    while let Some(piece) = reader.next().await? {
        let all = all.get_or_insert_with(|| BytesMut::from(&first[..]));
        all.extend_from_slice(&piece);
        if all.len() > max {
            return Err(too_large());
        }
    }
    Ok(all.map_or(first, BytesMut::freeze))
}

/// A JSON body. Unknown fields are ignored: a newer host speaks to an older guest.
pub(crate) async fn json_body<T: DeserializeOwned>(request: Request) -> Result<T> {
    let body = read_all(request.into_body(), guest_proto::JSON_BYTES_MAX).await?;
    serde_json::from_slice(&body).map_err(|error| Refusal::invalid(format!("body: {error}")))
}
