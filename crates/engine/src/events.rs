//! What owners are told: durable first, then live; resumable by id (ruling 21).

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use model::{Error, Result};
use store::{EventId, StoredEvent};

use crate::{Caller, Engine};

/// One item of the stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// Events between the asked id and the next one are no longer kept.
    Lost,
    Event(StoredEvent),
}

/// Ends only with an error or with the engine.
pub struct EventStream {
    inner: Pin<Box<dyn Stream<Item = Result<Told>> + Send>>,
}

impl Stream for EventStream {
    type Item = Result<Told>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.inner.as_mut().poll_next(cx)
    }
}

impl Engine {
    /// Every event of the caller's sandboxes after `after`; from now on when absent.
    pub async fn events(&self, _caller: &Caller, _after: Option<EventId>) -> Result<EventStream> {
        Err(Error::unavailable("not wired yet"))
    }
}
