//! The one thread that writes: it takes what queued up, runs each piece in a savepoint of its
//! own, commits once, and only then answers. A piece that fails takes nothing else with it.

#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use anyhow::Context;
use model::{Error, Result};
use rusqlite::Connection;
use tokio::sync::{broadcast, mpsc, oneshot};
use tracing::error;

use crate::StoredEvent;

/// Writes that may wait; beyond it the store is overloaded and says so.
const QUEUE_MAX: usize = 16 * 1024;
/// Writes that share one flush.
const BATCH_MAX: usize = 512;

/// Runs inside the transaction; answers what to do once its fate is known.
type Job = Box<dyn FnOnce(&mut Batch<'_>) -> Finish + Send>;
type Finish = Box<dyn FnOnce(bool) + Send>;

pub(crate) struct Writer(mpsc::Sender<Job>);

/// What a piece of work writes to.
pub(crate) struct Batch<'a> {
    pub(crate) connection: &'a Connection,
    /// Told to listeners after the commit.
    pub(crate) told: Vec<StoredEvent>,
}

/// Resolves once the write is durable, or has failed. The write happens even if this is dropped.
#[must_use = "the write is queued, but only awaiting it tells whether it succeeded"]
pub struct Pending<T>(oneshot::Receiver<Result<T>>);

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|answer| answer.unwrap_or_else(|_| Err(Error::unavailable("the store is closed"))))
    }
}

impl Writer {
    pub(crate) fn spawn(
        connection: Connection,
        told: broadcast::Sender<StoredEvent>,
    ) -> Result<Self> {
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || run(&connection, queue, &told))
            .context("start the writer thread")?;
        Ok(Self(jobs))
    }

    /// Queues `work`; the order of calls is the order of effects.
    pub(crate) fn submit<T, W>(&self, work: W) -> Pending<T>
    where
        T: Send + 'static,
        W: FnOnce(&mut Batch<'_>) -> Result<T> + Send + 'static,
    {
        let (answer, pending) = oneshot::channel();
        let job: Job = Box::new(move |batch| {
            let outcome = in_savepoint(batch, work);
            Box::new(move |committed| {
                let lost = || Err(Error::unavailable("the store could not write"));
                // Whoever asked may have gone; the write is done all the same.
                let _ = answer.send(if committed { outcome } else { lost() });
            })
        });
        if let Err(refused) = self.0.try_send(job) {
            return Pending(refuse(&refused));
        }
        Pending(pending)
    }
}

fn refuse<T>(refused: &mpsc::error::TrySendError<Job>) -> oneshot::Receiver<Result<T>> {
    let (answer, pending) = oneshot::channel();
    let detail = match refused {
        mpsc::error::TrySendError::Full(_) => "the store is overloaded",
        mpsc::error::TrySendError::Closed(_) => "the store is closed",
    };
    let _ = answer.send(Err(Error::unavailable(detail)));
    pending
}

fn run(
    connection: &Connection,
    mut queue: mpsc::Receiver<Job>,
    told: &broadcast::Sender<StoredEvent>,
) {
    while let Some(first) = queue.blocking_recv() {
        let mut jobs = vec![first];
        while jobs.len() < BATCH_MAX
            && let Ok(job) = queue.try_recv()
        {
            jobs.push(job);
        }
        commit(connection, jobs, told);
    }
}

fn commit(connection: &Connection, jobs: Vec<Job>, told: &broadcast::Sender<StoredEvent>) {
    let mut batch = Batch { connection, told: Vec::new() };
    let begun = connection.execute_batch("BEGIN IMMEDIATE");
    let finishes: Vec<Finish> = jobs.into_iter().map(|job| job(&mut batch)).collect();
    let committed = begun.and_then(|()| connection.execute_batch("COMMIT"));
    if let Err(failure) = &committed {
        error!(error = %failure, "could not commit to the store");
        // Fails when the commit itself has rolled back already.
        let _ = connection.execute_batch("ROLLBACK");
    } else {
        for event in batch.told.drain(..) {
            // Fails when nobody listens.
            let _ = told.send(event);
        }
    }
    for finish in finishes {
        finish(committed.is_ok());
    }
}

fn in_savepoint<T>(
    batch: &mut Batch<'_>,
    work: impl FnOnce(&mut Batch<'_>) -> Result<T>,
) -> Result<T> {
    if batch.connection.is_autocommit() {
        // The batch could not begin, or SQLite has undone all of it. A write now would be one of its own,
        // made although its caller is told that it was not.
        return Err(Error::unavailable("the store could not write"));
    }
    let told_before = batch.told.len();
    batch.connection.execute_batch("SAVEPOINT piece").context("begin a write")?;
    let outcome = work(batch);
    if outcome.is_err() {
        batch.told.truncate(told_before);
        batch.connection.execute_batch("ROLLBACK TO piece").context("undo a write")?;
    }
    batch.connection.execute_batch("RELEASE piece").context("end a write")?;
    outcome
}
