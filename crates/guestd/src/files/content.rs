//! The bytes of files to and from the network. The disk is only touched on threads for blocking
//! work, one piece at a time, and no thread waits for a client: while one piece is on the network the
//! next one is on the disk.

use std::fs::File;
use std::future::Future as _;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::http::BodyReader;
use crate::refusal::{Refusal, Result};

/// Read or written at once.
const PIECE_BYTES: usize = 256 << 10;

/// A body that nobody wants is read for this long, so that its client sees the answer.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// A part of a file as a stream of exactly the announced length; a file that became shorter fails.
pub(crate) struct FileStream {
    tasks: TaskTracker,
    file: Arc<File>,
    offset: u64,
    end: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

impl FileStream {
    pub(crate) fn new(tasks: TaskTracker, file: File, offset: u64, end: u64) -> Self {
        let file = Arc::new(file);
        let mut stream = Self { tasks, file, offset, end, reading: None };
        stream.read_ahead();
        stream
    }

    fn read_ahead(&mut self) {
        let left = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX).min(PIECE_BYTES);
        if left == 0 {
            return;
        }
        let file = Arc::clone(&self.file);
        let offset = self.offset;
        self.offset += left as u64;
        let read = move || {
            let mut piece = BytesMut::zeroed(left);
            file.read_exact_at(&mut piece, offset)?;
            Ok(piece.freeze())
        };
        self.reading = Some(self.tasks.spawn_blocking(read));
    }
}

impl Stream for FileStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(reading) = &mut self.reading else { return Poll::Ready(None) };
        let Poll::Ready(read) = Pin::new(reading).poll(cx) else { return Poll::Pending };
        self.reading = None;
        let read = read.unwrap_or_else(|error| Err(io::Error::other(error)));
        if read.is_ok() {
            self.read_ahead();
        }
        Poll::Ready(Some(read))
    }
}

/// Writes pieces to a file in the order in which they are given.
pub(crate) struct FileWriter {
    tasks: TaskTracker,
    file: Arc<File>,
    waiting: Vec<Bytes>,
    waiting_bytes: usize,
    writing: Option<JoinHandle<io::Result<()>>>,
    total: u64,
}

impl FileWriter {
    pub(crate) fn new(tasks: TaskTracker, file: File) -> Self {
        let file = Arc::new(file);
        Self { tasks, file, waiting: Vec::new(), waiting_bytes: 0, writing: None, total: 0 }
    }

    /// An error may belong to an earlier piece.
    pub(crate) async fn write(&mut self, piece: Bytes) -> Result<()> {
        self.total += piece.len() as u64;
        self.waiting_bytes += piece.len();
        self.waiting.push(piece);
        if self.waiting_bytes >= PIECE_BYTES {
            self.start_writing().await?;
        }
        Ok(())
    }

    /// Everything has been given to the kernel.
    pub(crate) async fn finish(mut self) -> Result<u64> {
        self.start_writing().await?;
        self.wait().await?;
        Ok(self.total)
    }

    async fn start_writing(&mut self) -> Result<()> {
        self.wait().await?;
        let pieces = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        if pieces.is_empty() {
            return Ok(());
        }
        let file = Arc::clone(&self.file);
        let write = move || pieces.iter().try_for_each(|piece| (&*file).write_all(piece));
        self.writing = Some(self.tasks.spawn_blocking(write));
        Ok(())
    }

    async fn wait(&mut self) -> Result<()> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let written = writing.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        written.map_err(|error| Refusal::io("write", &error))
    }
}

/// Reads what is left of a body, for a while: an answer that overtakes its request is not seen by
/// clients that are still sending.
pub(crate) async fn drain(body: &mut BodyReader) {
    let rest = async { while let Ok(Some(_)) = body.next().await {} };
    let _ = timeout(DRAIN_MAX, rest).await;
}
