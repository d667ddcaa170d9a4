//! The bytes of files to and from the network. The disk is only touched on threads for blocking
//! work, one piece at a time, and no thread waits for a client: while one piece is on the network the
//! next one is on the disk.

use std::fs::File;
use std::future::Future as _;
use std::io::{self, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use tokio::task::{JoinHandle, spawn_blocking};

/// Read or written at once.
const PIECE_BYTES: usize = 256 << 10;

/// A part of a file as a stream of exactly the announced length; a file that became shorter fails.
#[derive(Debug)]
pub struct FileStream {
    file: Arc<File>,
    offset: u64,
    end: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

impl FileStream {
    /// The bytes from `offset` up to, and without, `end`.
    pub fn new(file: File, offset: u64, end: u64) -> Self {
        let mut stream = Self { file: Arc::new(file), offset, end, reading: None };
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
        let read = move || read_exactly(&file, offset, left);
        self.reading = Some(spawn_blocking(read));
    }
}

/// Into memory that nobody cleared first: it is filled or it is an error.
fn read_exactly(file: &File, offset: u64, len: usize) -> io::Result<Bytes> {
    let mut piece = Vec::with_capacity(len);
    while piece.len() < len {
        let at = offset + piece.len() as u64;
        match rustix::io::pread(file, rustix::buffer::spare_capacity(&mut piece), at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // The allocator may have given more room than was asked for, and the file may have grown.
    piece.truncate(len);
    Ok(piece.into())
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
#[derive(Debug)]
pub struct FileWriter {
    file: Arc<File>,
    waiting: Vec<Bytes>,
    waiting_bytes: usize,
    writing: Option<JoinHandle<io::Result<()>>>,
    total: u64,
}

impl FileWriter {
    /// Writes from where the file's own position is.
    pub fn new(file: File) -> Self {
        let file = Arc::new(file);
        Self { file, waiting: Vec::new(), waiting_bytes: 0, writing: None, total: 0 }
    }

    /// An error may belong to an earlier piece.
    pub async fn write(&mut self, piece: Bytes) -> io::Result<()> {
        self.total += piece.len() as u64;
        self.waiting_bytes += piece.len();
        self.waiting.push(piece);
        if self.waiting_bytes >= PIECE_BYTES {
            self.start_writing().await?;
        }
        Ok(())
    }

    /// Everything has been given to the kernel; how much it was.
    pub async fn finish(mut self) -> io::Result<u64> {
        self.start_writing().await?;
        self.wait().await?;
        Ok(self.total)
    }

    async fn start_writing(&mut self) -> io::Result<()> {
        self.wait().await?;
        let pieces = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        if pieces.is_empty() {
            return Ok(());
        }
        let file = Arc::clone(&self.file);
        let write = move || pieces.iter().try_for_each(|piece| (&*file).write_all(piece));
        self.writing = Some(spawn_blocking(write));
        Ok(())
    }

    async fn wait(&mut self) -> io::Result<()> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        writing.await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}
