//! One thing at a time with a sandbox. What has begun is done to its end: who asked may go away before that, and what
//! comes next must not find a launch or an end half-way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use anyhow::Context;
use model::{Result, SandboxId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

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
        let work = Box::pin(work(self.clone()));
        let turn = self.inner.turns.take(id).await;
        let (tell, told) = oneshot::channel();
        self.inner.tasks.spawn(async move {
            // What nobody takes ends here, before the next turn.
            let _ = tell.send(work.await);
            drop(turn);
        });
        let done = told.await.context("what was being done has ended")?;
        done.map_err(|error| self.inner.explain(error))
    }
}
