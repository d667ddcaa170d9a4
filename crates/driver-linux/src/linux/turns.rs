//! One thing at a time with a sandbox. What has begun is done to its end: who asked may go away before that, and what
//! comes next must not find a launch or an end half-way.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use model::{Result, SandboxId};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::LinuxDriver;

/// Of the sandboxes that something is being done with.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<SandboxId, Weak<Semaphore>>>);

impl Turns {
    /// In the order in which they are asked for.
    pub(super) async fn take(&self, id: SandboxId) -> OwnedSemaphorePermit {
        self.of(id).acquire_owned().await.expect("nobody closes it")
    }

    fn of(&self, id: SandboxId) -> Arc<Semaphore> {
        let mut turns = self.0.lock().expect("no holder of this lock panics");
        if let Some(turn) = turns.get(&id).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Semaphore::new(1));
        turns.insert(id, Arc::downgrade(&turn));
        turn
    }
}

/// Work that has its turn. Dropped before it is done, it goes on in a task: in one from the beginning it would cost every
/// caller a fifth of a millisecond.
struct Begun<T: Send + 'static> {
    work: Option<BoxFuture<'static, Result<T>>>,
    turn: Option<OwnedSemaphorePermit>,
    tasks: TaskTracker,
    runtime: Handle,
}

impl<T: Send + 'static> Future for Begun<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let work = self.work.as_mut().expect("nobody asks again who was answered");
        let done = ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(done)
    }
}

impl<T: Send + 'static> Drop for Begun<T> {
    fn drop(&mut self) {
        let (Some(work), turn) = (self.work.take(), self.turn.take()) else { return };
        let rest = async move {
            // What nobody takes ends here, before the next turn.
            drop(work.await);
            drop(turn);
        };
        self.tasks.spawn_on(rest, &self.runtime);
    }
}

impl LinuxDriver {
    /// Does `work` when what came before it is done. Whoever goes away earlier has asked for nothing.
    pub(super) async fn in_turn<T, F>(
        &self,
        id: SandboxId,
        work: impl FnOnce(Self) -> F + Send,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let work: BoxFuture<'static, _> = Box::pin(work(self.clone()));
        let turn = self.inner.turns.take(id).await;
        let tasks = self.inner.tasks.clone();
        let begun = Begun { work: Some(work), turn: Some(turn), tasks, runtime: Handle::current() };
        begun.await.map_err(|error| self.inner.explain(error))
    }
}
