//! What a process wrote, kept for as long as a reader may need it: the last bytes of all streams in
//! the order in which they came, each with its offset.
//!
//! Readers have a cursor of their own. A reader that is attached slows the process down instead of
//! losing output, like a pipe does; but one that has not moved for [`STALL_MAX`] is left behind, and
//! gets a gap when it comes back. Output without readers is kept until newer output takes its place.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

/// How long the process waits for a reader that does not move.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(2);

/// What a change of stream costs of the capacity, so that single bytes cannot cost much more.
const MARK_BYTES: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    Stdout,
    Stderr,
    Pty,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) status: Status,
    pub(crate) timed_out: bool,
    pub(crate) duration: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Exited(i32),
    Signaled(i32),
}

/// What a reader finds at its cursor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Bytes of one channel, in at most two pieces that are given to the callback.
    Bytes {
        channel: Channel,
        offset: u64,
        len: usize,
    },
    /// The bytes before this offset are lost to this reader.
    Gap {
        offset: u64,
    },
    End(Ended),
}

#[derive(Debug)]
pub(crate) struct Output {
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    bytes: VecDeque<u8>,
    marks: VecDeque<Mark>,
    /// Offset of the first byte that is not there yet.
    end: u64,
    capacity: usize,
    ended: Option<Ended>,
    /// Somebody has seen the end.
    end_read: bool,
    readers: Vec<Cursor>,
    next_reader: u64,
    writer: Option<Waker>,
}

/// From here on the bytes belong to this channel.
#[derive(Debug)]
struct Mark {
    offset: u64,
    channel: Channel,
}

#[derive(Debug)]
struct Cursor {
    id: u64,
    offset: u64,
    moved_at: Instant,
    waker: Option<Waker>,
}

/// One reader. Dropping it takes its cursor away.
#[derive(Debug)]
pub(crate) struct Reader {
    output: Arc<Output>,
    id: u64,
}

impl Output {
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        let ring = Ring {
            bytes: VecDeque::new(),
            marks: VecDeque::new(),
            end: 0,
            capacity,
            ended: None,
            end_read: false,
            readers: Vec::new(),
            next_reader: 0,
            writer: None,
        };
        Arc::new(Self { ring: Mutex::new(ring) })
    }

    /// A reader from `offset` on, or from now on.
    pub(crate) fn reader(self: &Arc<Self>, offset: Option<u64>) -> Reader {
        let mut ring = self.lock();
        let id = ring.next_reader;
        ring.next_reader += 1;
        let offset = offset.unwrap_or(ring.end).min(ring.end);
        ring.readers.push(Cursor { id, offset, moved_at: Instant::now(), waker: None });
        Reader { output: Arc::clone(self), id }
    }

    /// Whether so much may be written without a loss to any attached reader that still moves; else
    /// until when to wait for it at most.
    pub(crate) fn room(&self, len: usize) -> Result<(), Instant> {
        self.lock().room(len)
    }

    /// Ready when one of the readers has moved far enough.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>, len: usize) -> Poll<()> {
        let mut ring = self.lock();
        if ring.room(len).is_ok() {
            return Poll::Ready(());
        }
        ring.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(crate) fn write(&self, channel: Channel, bytes: &[u8]) {
        let mut ring = self.lock();
        if ring.marks.back().is_none_or(|mark| mark.channel != channel) {
            let offset = ring.end;
            ring.marks.push_back(Mark { offset, channel });
        }
        ring.bytes.extend(bytes);
        ring.end += bytes.len() as u64;
        ring.evict();
        ring.wake_readers();
    }

    /// Nothing more comes.
    pub(crate) fn finish(&self, ended: Ended) {
        let mut ring = self.lock();
        ring.ended = Some(ended);
        ring.wake_readers();
    }

    pub(crate) fn ended(&self) -> Option<Ended> {
        self.lock().ended
    }

    pub(crate) fn end_read(&self) -> bool {
        self.lock().end_read
    }

    /// Bytes of both streams so far, kept or not.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.lock().end
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// What is at the cursor. Bytes, at most `max` of them, are given to `take` and the cursor moves
    /// behind them; an end stays where it is.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
        take: impl FnMut(&[u8]),
    ) -> Poll<Found> {
        let mut ring = self.output.lock();
        let start = ring.start();
        let Some(index) = ring.readers.iter().position(|reader| reader.id == self.id) else {
            return Poll::Pending;
        };
        let offset = ring.readers[index].offset;
        if offset < start {
            ring.advance(index, start);
            return Poll::Ready(Found::Gap { offset: start });
        }
        if offset < ring.end {
            let (channel, len) = ring.copy(offset, max, take);
            ring.advance(index, offset + len as u64);
            return Poll::Ready(Found::Bytes { channel, offset, len });
        }
        if let Some(ended) = ring.ended {
            ring.end_read = true;
            return Poll::Ready(Found::End(ended));
        }
        ring.readers[index].waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ready when [`Reader::poll`] would be.
    pub(crate) fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut ring = self.output.lock();
        let (end, ended) = (ring.end, ring.ended.is_some());
        let cursor = ring.readers.iter_mut().find(|reader| reader.id == self.id);
        match cursor {
            Some(cursor) if cursor.offset >= end && !ended => {
                cursor.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    pub(crate) fn output(&self) -> &Arc<Output> {
        &self.output
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut ring = self.output.lock();
        ring.readers.retain(|reader| reader.id != self.id);
        ring.wake_writer();
    }
}

impl Ring {
    fn start(&self) -> u64 {
        self.end - self.bytes.len() as u64
    }

    fn room(&self, len: usize) -> Result<(), Instant> {
        let first_kept = (self.end + len as u64).saturating_sub(self.capacity as u64);
        let now = Instant::now();
        let late = self.readers.iter().filter(|reader| reader.offset < first_kept);
        let until = late.map(|reader| reader.moved_at + STALL_MAX).filter(|until| *until > now);
        until.max().map_or(Ok(()), Err)
    }

    fn evict(&mut self) {
        let marks = self.marks.len().saturating_sub(2) * MARK_BYTES;
        let excess = (self.bytes.len() + marks).saturating_sub(self.capacity);
        self.bytes.drain(..excess.min(self.bytes.len()));
        let start = self.start();
        while self.marks.get(1).is_some_and(|next| next.offset <= start) {
            self.marks.pop_front();
        }
    }

    /// The bytes of one channel at `offset`.
    fn copy(&self, offset: u64, max: usize, mut take: impl FnMut(&[u8])) -> (Channel, usize) {
        let after = self.marks.partition_point(|mark| mark.offset <= offset);
        let channel = self.marks[after - 1].channel;
        let until = self.marks.get(after).map_or(self.end, |mark| mark.offset);
        let from = usize::try_from(offset - self.start()).expect("it is in memory");
        let len = usize::try_from(until - offset).expect("it is in memory").min(max);
        let (front, back) = self.bytes.as_slices();
        if from < front.len() {
            let first = &front[from..front.len().min(from + len)];
            take(first);
            if first.len() < len {
                take(&back[..len - first.len()]);
            }
        } else {
            take(&back[from - front.len()..][..len]);
        }
        (channel, len)
    }

    fn advance(&mut self, index: usize, offset: u64) {
        self.readers[index].offset = offset;
        self.readers[index].moved_at = Instant::now();
        self.wake_writer();
    }

    fn wake_writer(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }

    fn wake_readers(&mut self) {
        for reader in &mut self.readers {
            if let Some(waker) = reader.waker.take() {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests;
