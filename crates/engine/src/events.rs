//! What owners are told: durable first, then live; resumable by id (ruling 21).

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::{Stream, stream};
use model::{OwnerId, Result};
use store::{EventId, Store, StoredEvent};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::{Caller, Engine};

/// Events read from the store at once.
const PAGE: u32 = 256;

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

struct Listener {
    store: Store,
    owner: OwnerId,
    live: broadcast::Receiver<StoredEvent>,
    closing: CancellationToken,
    /// Everything up to this one was told.
    last: EventId,
    waiting: VecDeque<Told>,
    /// The store may have more than `waiting` holds.
    behind: bool,
}

impl Engine {
    /// Every event of the caller's sandboxes after `after`; from now on when absent.
    pub async fn events(&self, caller: &Caller, after: Option<EventId>) -> Result<EventStream> {
        self.core.require_open()?;
        let store = self.core.store.clone();
        // Listening before reading, so that nothing falls between the two.
        let live = store.listen();
        let owner = caller.owner.clone();
        let backlog = store.backlog(&owner, after, PAGE).await?;
        let mut listener = Listener {
            store,
            owner,
            live,
            closing: self.core.closing.clone(),
            last: after.filter(|after| *after <= backlog.newest).unwrap_or(backlog.newest),
            waiting: VecDeque::new(),
            behind: false,
        };
        if backlog.lost {
            listener.waiting.push_back(Told::Lost);
        }
        listener.queue(backlog.events);
        let told = stream::unfold(listener, |mut listener| async move {
            let told = listener.next().await.transpose()?;
            Some((told, listener))
        });
        Ok(EventStream { inner: Box::pin(told) })
    }
}

impl Listener {
    async fn next(&mut self) -> Result<Option<Told>> {
        loop {
            if let Some(told) = self.waiting.pop_front() {
                return Ok(Some(told));
            }
            if self.behind {
                let backlog = self.store.backlog(&self.owner, Some(self.last), PAGE).await?;
                if backlog.lost {
                    self.waiting.push_back(Told::Lost);
                }
                self.queue(backlog.events);
                continue;
            }
            let Some(live) = self.closing.run_until_cancelled(self.live.recv()).await else {
                return Ok(None);
            };
            match live {
                Ok(stored) if stored.id <= self.last || stored.event.owner != self.owner => {}
                Ok(stored) => {
                    self.last = stored.id;
                    return Ok(Some(Told::Event(stored)));
                }
                Err(RecvError::Lagged(_)) => self.behind = true,
                Err(RecvError::Closed) => return Ok(None),
            }
        }
    }

    fn queue(&mut self, events: Vec<StoredEvent>) {
        self.behind = events.len() >= PAGE as usize;
        if let Some(newest) = events.last() {
            self.last = newest.id;
        }
        self.waiting.extend(events.into_iter().map(Told::Event));
    }
}
