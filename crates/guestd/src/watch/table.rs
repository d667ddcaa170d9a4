//! Watchers that clients ask now and then.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::{Event, Watcher};
use crate::refusal::{Code, Refusal, Result};

const WATCHERS_MAX: usize = 64;

/// Of one watcher that is not asked; the oldest go first.
const EVENTS_MAX: usize = 4096;

/// A watcher that nobody has asked for so long makes room for a new one.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

type Queue = Arc<Mutex<VecDeque<Event>>>;

#[derive(Debug, Default)]
pub(crate) struct Watchers {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    by_id: HashMap<String, Polled>,
}

#[derive(Debug)]
struct Polled {
    queue: Queue,
    include_entry: bool,
    asked_at: Instant,
    task: AbortHandle,
}

impl Watchers {
    pub(crate) fn add(
        &self,
        tasks: &TaskTracker,
        mut watcher: Watcher,
        include_entry: bool,
    ) -> Result<String> {
        let mut inner = self.lock();
        inner.make_room()?;
        let queue = Queue::default();
        let filled = Arc::clone(&queue);
        let task = tasks.spawn(async move {
            while let Ok(events) = watcher.next().await {
                let mut queue = filled.lock().unwrap_or_else(PoisonError::into_inner);
                queue.extend(events);
                let excess = queue.len().saturating_sub(EVENTS_MAX);
                queue.drain(..excess);
            }
        });
        inner.next += 1;
        let id = format!("w{}", inner.next);
        let task = task.abort_handle();
        let polled = Polled { queue, include_entry, asked_at: Instant::now(), task };
        inner.by_id.insert(id.clone(), polled);
        Ok(id)
    }

    /// What happened since the last time, and whether the client wants entries with it.
    pub(crate) fn take(&self, id: &str) -> Result<(Vec<Event>, bool)> {
        let mut inner = self.lock();
        let polled = inner.by_id.get_mut(id).ok_or_else(|| unknown(id))?;
        polled.asked_at = Instant::now();
        let mut queue = polled.queue.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((queue.drain(..).collect(), polled.include_entry))
    }

    pub(crate) fn remove(&self, id: &str) -> Result<()> {
        let polled = self.lock().by_id.remove(id).ok_or_else(|| unknown(id))?;
        polled.task.abort();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn make_room(&mut self) -> Result<()> {
        if self.by_id.len() < WATCHERS_MAX {
            return Ok(());
        }
        let forgotten = self.by_id.iter().min_by_key(|(_, polled)| polled.asked_at);
        let forgotten = forgotten
            .filter(|(_, polled)| polled.asked_at.elapsed() > FORGOTTEN_AFTER)
            .map(|(id, _)| id.clone());
        let Some(id) = forgotten else {
            let message = format!("more than {WATCHERS_MAX} watchers");
            return Err(Refusal::new(Code::ResourceExhausted, message));
        };
        if let Some(polled) = self.by_id.remove(&id) {
            polled.task.abort();
        }
        Ok(())
    }
}

fn unknown(id: &str) -> Refusal {
    Refusal::not_found(format!("watcher with id {id} not found"))
}
