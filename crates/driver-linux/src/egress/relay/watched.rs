//! Copies an HTTP/1 connection whose requests are read along with, both ways.

use std::sync::{Mutex, PoisonError};

use model::Verdict;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::sync::Notify;

use super::BUFFER_BYTES;
use crate::egress::requests::Requests;

/// What both directions know.
struct Shared {
    requests: Mutex<Requests>,
    answered: Notify,
}

/// Until both ends are done. An error is why it was cut, or that one end broke.
pub(super) async fn copy(
    inside: &mut (impl AsyncRead + AsyncWrite + Unpin),
    outside: &mut (impl AsyncRead + AsyncWrite + Unpin),
    requests: Requests,
) -> Result<(), Verdict> {
    let shared = Shared { requests: Mutex::new(requests), answered: Notify::new() };
    let (from_inside, to_inside) = split(inside);
    let (from_outside, to_outside) = split(outside);
    let up = up(&shared, from_inside, to_outside);
    let down = down(&shared, from_outside, to_inside);
    tokio::try_join!(up, down).map(|((), ())| ())
}

async fn up(
    shared: &Shared,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) -> Result<(), Verdict> {
    let (mut buffer, mut out) = (vec![0; BUFFER_BYTES], Vec::new());
    loop {
        while shared.waits() {
            shared.answered.notified().await;
            // What came too early may go on now, or not.
            shared.feed(&[], &mut out)?;
            to.write_all(&out).await.map_err(|_| Verdict::Ended)?;
            out.clear();
        }
        match from.read(&mut buffer).await {
            Ok(0) => return to.shutdown().await.map_err(|_| Verdict::Ended),
            Ok(length) => shared.feed(&buffer[..length], &mut out)?,
            Err(_) => return Err(Verdict::Ended),
        }
        to.write_all(&out).await.map_err(|_| Verdict::Ended)?;
        out.clear();
    }
}

async fn down(
    shared: &Shared,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) -> Result<(), Verdict> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = match from.read(&mut buffer).await {
            Ok(0) => {
                shared.heard(&[]);
                return to.shutdown().await.map_err(|_| Verdict::Ended);
            }
            Ok(length) => length,
            Err(_) => return Err(Verdict::Ended),
        };
        shared.heard(&buffer[..length]);
        to.write_all(&buffer[..length]).await.map_err(|_| Verdict::Ended)?;
    }
}

impl Shared {
    fn waits(&self) -> bool {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).waits()
    }

    fn feed(&self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Verdict> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).feed(input, out)
    }

    /// What the other side said; nothing when it has ended.
    fn heard(&self, bytes: &[u8]) {
        let answered = self.requests.lock().unwrap_or_else(PoisonError::into_inner).heard(bytes);
        if answered {
            self.answered.notify_one();
        }
    }
}
