//! Request bodies: nothing, bytes, or a stream with a bar that follows it.

use std::io;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::Frame;
use indicatif::ProgressBar;

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// What was sent is counted on `bar`.
pub(crate) fn streamed<S>(stream: S, bar: ProgressBar) -> Body
where
    S: Stream<Item = io::Result<Bytes>> + Send + 'static,
{
    let frames = stream.map(move |chunk| {
        chunk.map(|bytes| {
            bar.inc(bytes.len() as u64);
            Frame::data(bytes)
        })
    });
    StreamBody::new(frames).boxed_unsync()
}
