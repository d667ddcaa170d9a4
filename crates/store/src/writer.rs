//! The one thread that writes: it takes what queued up, runs each piece in a savepoint of its
//! own, commits once, and only then answers. A piece that fails takes nothing else with it.

#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use anyhow::Context;
use model::{Error, Result};
use rusqlite::ErrorCode;
use tokio::sync::{broadcast, mpsc, oneshot};
use tracing::error;

use crate::StoredEvent;
use crate::db::Db;
use crate::db::postgres::{Order, Postgres, Session};

/// Writes that may wait; beyond it the store is overloaded and says so.
const QUEUE_MAX: usize = 16 * 1024;
/// Writes that share one flush.
const BATCH_MAX: usize = 512;

/// Runs inside the transaction; answers what to do once its fate is known.
type Job = Box<dyn FnOnce(&mut Batch<'_>) -> Finish + Send>;
type Finish = Box<dyn FnOnce(Fate) + Send>;

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Committed,
    Lost(Lost),
}

/// Why nothing of it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    Full,
    ReadOnly,
    Otherwise,
}

pub(crate) struct Writer(mpsc::Sender<Job>);

/// What the thread writes to.
pub(crate) enum Target {
    Sqlite(rusqlite::Connection),
    /// The connection is made anew when it was lost.
    Postgres(Arc<Postgres>, Option<Session>, Order),
}

/// What a piece of work writes to.
pub(crate) struct Batch<'a> {
    pub(crate) db: Db<'a>,
    /// Told to listeners after the commit.
    pub(crate) told: Vec<StoredEvent>,
    /// A piece of it that the disk refused.
    spoiled: Option<Lost>,
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
    pub(crate) fn spawn(target: Target, told: broadcast::Sender<StoredEvent>) -> Result<Self> {
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || run(target, queue, &told))
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
            Box::new(move |fate| {
                // Whoever asked may have gone; the write is done all the same.
                let _ = answer.send(match fate {
                    Fate::Committed => outcome,
                    Fate::Lost(why) => Err(why.into()),
                });
            })
        });
        if let Err(refused) = self.0.try_send(job) {
            return Pending(refuse(&refused));
        }
        Pending(pending)
    }
}

impl Target {
    fn begin(&mut self) -> Result<()> {
        match self {
            Self::Sqlite(db) => {
                Ok(db.execute_batch("BEGIN IMMEDIATE").context("begin to write")?)
            }
            Self::Postgres(postgres, session, order) => {
                if !session.as_ref().is_some_and(Session::is_alive) {
                    *session = None;
                }
                let session = match session {
                    Some(session) => session,
                    None => session.insert(postgres.connect()?),
                };
                session.begin(*order)
            }
        }
    }

    fn db(&self) -> Db<'_> {
        match self {
            Self::Sqlite(db) => Db::Sqlite(db),
            Self::Postgres(_, Some(session), _) => Db::Postgres(session),
            Self::Postgres(_, None, _) => Db::Gone,
        }
    }

    fn commit(&self) -> Result<()> {
        match self {
            Self::Sqlite(db) => Ok(db.execute_batch("COMMIT").context("commit")?),
            Self::Postgres(_, Some(session), _) => session.commit(),
            Self::Postgres(_, None, _) => Err(Error::unavailable("the database does not answer")),
        }
    }

    /// After a failure, which may have undone everything already.
    fn roll_back(&self) {
        let undone = match self {
            Self::Sqlite(db) if db.is_autocommit() => return,
            Self::Sqlite(db) => db.execute_batch("ROLLBACK").map_err(anyhow::Error::from),
            Self::Postgres(_, Some(session), _) if session.is_alive() => {
                session.roll_back().map_err(anyhow::Error::from)
            }
            Self::Postgres(_, _, _) => return,
        };
        if let Err(error) = undone {
            error!(error = format!("{error:#}"), "could not undo a batch");
        }
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

fn run(mut target: Target, mut queue: mpsc::Receiver<Job>, told: &broadcast::Sender<StoredEvent>) {
    while let Some(first) = queue.blocking_recv() {
        let mut jobs = vec![first];
        while jobs.len() < BATCH_MAX
            && let Ok(job) = queue.try_recv()
        {
            jobs.push(job);
        }
        commit(&mut target, jobs, told);
    }
}

fn commit(target: &mut Target, jobs: Vec<Job>, told: &broadcast::Sender<StoredEvent>) {
    let begun = target.begin();
    let mut batch = Batch { db: target.db(), told: Vec::new(), spoiled: None };
    let finishes: Vec<Finish> = jobs.into_iter().map(|job| job(&mut batch)).collect();
    let Batch { told: written, spoiled, .. } = batch;
    let committed = begun.and_then(|()| target.commit());
    let fate = match &committed {
        Ok(()) => Fate::Committed,
        Err(failure) => Fate::Lost(spoiled.unwrap_or_else(|| Lost::of(failure, &target.db()))),
    };
    if let Err(failure) = &committed {
        error!(error = cause(failure), "could not commit to the store");
        target.roll_back();
    } else {
        for event in written {
            // Fails when nobody listens.
            let _ = told.send(event);
        }
    }
    for finish in finishes {
        finish(fate);
    }
}

impl Lost {
    /// What the disk refused; a database elsewhere has its own words.
    fn of(failure: &Error, db: &Db<'_>) -> Self {
        let Error::Internal(cause) = failure else { return Self::Otherwise };
        let Some(failure) = cause.chain().find_map(|cause| cause.downcast_ref::<rusqlite::Error>())
        else {
            return Self::Otherwise;
        };
        match failure.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full,
            Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen) => Self::ReadOnly,
            // A file system that gave up after an error is told apart from one that has one now.
            Some(ErrorCode::SystemIoFailure) if is_read_only(db) => Self::ReadOnly,
            _ => Self::Otherwise,
        }
    }
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Full => Self::machine_full(),
            Lost::ReadOnly => Self::machine_read_only(),
            Lost::Otherwise => Self::unavailable("the store could not write"),
        }
    }
}

fn is_read_only(db: &Db<'_>) -> bool {
    let Db::Sqlite(connection) = db else { return false };
    let opened = connection.path().map(|path| std::fs::File::options().append(true).open(path));
    let read_only = std::io::ErrorKind::ReadOnlyFilesystem;
    opened.is_some_and(|opened| opened.is_err_and(|error| error.kind() == read_only))
}

fn cause(error: &Error) -> String {
    match error {
        Error::Internal(cause) => format!("{cause:#}"),
        other => other.to_string(),
    }
}

fn in_savepoint<T>(
    batch: &mut Batch<'_>,
    work: impl FnOnce(&mut Batch<'_>) -> Result<T>,
) -> Result<T> {
    if !batch.db.in_transaction() {
        // The batch could not begin, or the database has undone all of it. A write now would be one of
        // its own, made although its caller is told that it was not.
        return Err(Error::unavailable("the store could not write"));
    }
    let told_before = batch.told.len();
    batch.db.run("SAVEPOINT piece")?;
    let outcome = work(batch).map_err(|failure| match Lost::of(&failure, &batch.db) {
        Lost::Otherwise => failure,
        lost => {
            batch.spoiled = Some(lost);
            lost.into()
        }
    });
    if outcome.is_err() {
        batch.told.truncate(told_before);
        if !batch.db.in_transaction() {
            // All of the batch is undone already; what follows in it is refused above.
            return outcome;
        }
        batch.db.run("ROLLBACK TO SAVEPOINT piece")?;
    }
    batch.db.run("RELEASE SAVEPOINT piece")?;
    outcome
}
