//! Bytes between a program and what it dialled: the first ones are looked at, the rest is copied. Of
//! HTTP without TLS every request is looked at.

mod watched;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use model::Verdict;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf,
    copy_bidirectional_with_sizes,
};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until};

use super::head::{HEAD_MAX, Head};
use super::log::Record;
use super::requests::Requests;

/// Per direction and connection.
const BUFFER_BYTES: usize = 32 << 10;

/// How long a program may take from its first byte to the end of its head.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// How long a program may keep its end open, silently, when the other side has closed its own: it
/// holds one of the sandbox's connections for nothing. (The other way round is an upload that waits
/// for its answer.)
const LEFT_OPEN_MAX: Duration = Duration::from_secs(10);

/// Both ends of a connection. Dropped early, both see a reset; a program is never left to believe
/// that what it got was all.
pub(super) struct Relay {
    inside: Metered,
    outside: Metered,
}

impl Relay {
    pub(super) fn new(inside: TcpStream, outside: TcpStream, record: &Arc<Record>) -> Self {
        let activity = Arc::new(Activity {
            began: Instant::now(),
            last_ms: AtomicU64::new(0),
            outside_done: AtomicBool::new(false),
        });
        let meter = |stream, direction| Metered {
            stream,
            direction,
            record: Arc::clone(record),
            activity: Arc::clone(&activity),
        };
        Self { inside: meter(inside, Direction::Up), outside: meter(outside, Direction::Down) }
    }

    /// Copies until both ends are done, or nothing has moved for `idle`. With a name, the head must
    /// speak to it.
    pub(super) async fn run(mut self, name: Option<&str>, idle: Duration) -> Verdict {
        let activity = Arc::clone(&self.inside.activity);
        tokio::select! {
            verdict = self.copy(name) => verdict,
            () = activity.idle_for(idle) => Verdict::Idle,
            () = activity.left_open() => {
                self.end_softly();
                Verdict::Ended
            }
        }
    }

    async fn copy(&mut self, name: Option<&str>) -> Verdict {
        for stream in [&self.inside.stream, &self.outside.stream] {
            // They fail only on a socket that is gone, which copying then finds out.
            let _ = stream.set_nodelay(true);
            let _ = stream.set_zero_linger();
        }
        let requests = match name {
            Some(name) => match self.look_at_head(name).await {
                Ok(requests) => requests,
                Err(verdict) => return verdict,
            },
            None => None,
        };
        let (inside, outside) = (&mut self.inside, &mut self.outside);
        let verdict = match requests {
            Some(requests) => watched::copy(inside, outside, requests).await,
            None => copy_bidirectional_with_sizes(inside, outside, BUFFER_BYTES, BUFFER_BYTES)
                .await
                .map_or(Err(Verdict::Ended), |_| Ok(())),
        };
        match verdict {
            Ok(()) => {
                self.end_softly();
                Verdict::Ended
            }
            Err(verdict) => verdict,
        }
    }

    /// Both ends have said that they are done: what is still queued shall arrive.
    fn end_softly(&self) {
        for stream in [&self.inside.stream, &self.outside.stream] {
            let _ = rustix::net::sockopt::set_socket_linger(stream, None);
        }
    }

    /// Reads the program's first bytes until they show whom they are for, and passes them on then.
    /// What is HTTP has to be read further than that.
    /// What the other side says meanwhile is passed on at once: in many protocols it speaks first.
    async fn look_at_head(&mut self, name: &str) -> Result<Option<Requests>, Verdict> {
        let mut head = Vec::new();
        let mut back = vec![0; BUFFER_BYTES / 4];
        let mut deadline = None;
        let mut outside_open = true;
        loop {
            tokio::select! {
                read = self.inside.read_buf(&mut head) => match read {
                    Ok(0) if head.is_empty() => return Ok(None),
                    Ok(0) | Err(_) => return Err(Verdict::Unreadable),
                    Ok(_) => {}
                },
                read = self.outside.read(&mut back), if outside_open => {
                    outside_open = self.pass_back(&back, read).await?;
                    continue;
                }
                () = until(deadline) => return Err(Verdict::Unreadable),
            }
            deadline = deadline.or_else(|| Some(Instant::now() + HEAD_WITHIN));
            match Head::read(&head) {
                Head::More if head.len() < HEAD_MAX => {}
                complete => {
                    complete.differs_from(name).map_or(Ok(()), Err)?;
                    return self.pass_on(name, &complete, head).await;
                }
            }
        }
    }

    async fn pass_on(
        &mut self,
        name: &str,
        complete: &Head,
        head: Vec<u8>,
    ) -> Result<Option<Requests>, Verdict> {
        let (requests, first) = match complete {
            Head::Http(_) => {
                let (mut requests, mut first) = (Requests::new(name), Vec::new());
                requests.feed(&head, &mut first)?;
                (Some(requests), first)
            }
            Head::More
            | Head::Nameless
            | Head::Tls(_)
            | Head::Git(_)
            | Head::NoSni
            | Head::Unreadable => (None, head),
        };
        self.outside.write_all(&first).await.map_err(|_| Verdict::Ended)?;
        Ok(requests)
    }

    /// Whether the other side goes on talking.
    async fn pass_back(&mut self, back: &[u8], read: io::Result<usize>) -> Result<bool, Verdict> {
        let passed = match read {
            Ok(0) => self.inside.shutdown().await.map(|()| false),
            Ok(length) => self.inside.write_all(&back[..length]).await.map(|()| true),
            Err(error) => Err(error),
        };
        passed.map_err(|_| Verdict::Ended)
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// When a byte last moved on either side of a connection.
struct Activity {
    began: Instant,
    last_ms: AtomicU64,
    outside_done: AtomicBool,
}

impl Activity {
    fn touch(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(since, Ordering::Relaxed);
    }

    async fn left_open(&self) {
        loop {
            self.idle_for(LEFT_OPEN_MAX).await;
            if self.outside_done.load(Ordering::Relaxed) {
                return;
            }
            sleep(LEFT_OPEN_MAX).await;
        }
    }

    async fn idle_for(&self, limit: Duration) {
        loop {
            let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
            let ends = self.began + last + limit;
            if ends <= Instant::now() {
                return;
            }
            sleep_until(ends).await;
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    Up,
    Down,
}

/// One end, whose bytes are counted as they are read from it.
struct Metered {
    stream: TcpStream,
    direction: Direction,
    record: Arc<Record>,
    activity: Arc<Activity>,
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let bytes = u64::try_from(buffer.filled().len() - before).unwrap_or(u64::MAX);
        let count = match self.direction {
            Direction::Up => &self.record.bytes_up,
            Direction::Down => &self.record.bytes_down,
        };
        count.fetch_add(bytes, Ordering::Relaxed);
        if bytes == 0 && matches!(self.direction, Direction::Down) {
            self.activity.outside_done.store(true, Ordering::Relaxed);
        }
        self.activity.touch();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.activity.touch();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
