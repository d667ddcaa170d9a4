//! A session's WebSocket that the leader answers, on its way to a client: bytes as they come. When either
//! server ends, the client is told with a close frame to connect again, and does not just see a connection that
//! breaks. Nothing of what the frames say is looked at, only where each of them ends.

use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::limits::{LINGER_TIMEOUT, TUNNEL_BUFFER_BYTES};

/// A close frame: 1001, as `docs/wire.md` has it.
const SHUTTING_DOWN: &[u8] = b"\x88\x16\x03\xe9server shutting down";
const CLOSE: u8 = 8;

/// How far the leader's frames have come. They are not masked.
#[derive(Default)]
struct Frames {
    /// Of the next one's header, what is there already.
    header: Vec<u8>,
    /// Bytes of the current one that have not come yet.
    left: u64,
    closed: bool,
}

impl Frames {
    fn pass(&mut self, mut bytes: &[u8]) {
        while let [first, rest @ ..] = bytes {
            if self.left > 0 {
                let some = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                self.left -= some as u64;
                bytes = &bytes[some..];
                continue;
            }
            self.header.push(*first);
            bytes = rest;
            if let Some(length) = payload(&self.header) {
                self.closed |= self.header[0] & 0xf == CLOSE;
                self.left = length;
                self.header.clear();
            }
        }
    }

    fn is_between(&self) -> bool {
        self.header.is_empty() && self.left == 0
    }

    /// Bytes that can be read without reaching into the next frame.
    fn wanted(&self) -> usize {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        left.clamp(1, TUNNEL_BUFFER_BYTES)
    }
}

/// The length that a header says, once all of it is there.
fn payload(header: &[u8]) -> Option<u64> {
    let [_, length, extended @ ..] = header else { return None };
    match length & 0x7f {
        126 => extended.try_into().ok().map(|bytes| u64::from(u16::from_be_bytes(bytes))),
        127 => extended.try_into().ok().map(u64::from_be_bytes),
        short => Some(u64::from(short)),
    }
}

/// Until either end is gone, or this server ends. `patience` is for a client that reads nothing.
pub(super) async fn carry(
    (client, server): (OnUpgrade, OnUpgrade),
    draining: CancellationToken,
    patience: Duration,
) {
    let (Ok(client), Ok(server)) = (client.await, server.await) else { return };
    let (client_in, client_out) = split(TokioIo::new(client));
    let (server_in, server_out) = split(TokioIo::new(server));
    let mut told = Box::pin(tell(server_in, client_out, draining, patience));
    let mut heard = Box::pin(hear(client_in, server_out));
    tokio::select! {
        () = &mut told => {}
        // The leader sees it, and closes.
        () = &mut heard => return told.await,
    }
    // What still comes is read, or the client would not see why it was closed.
    let _ = timeout(LINGER_TIMEOUT, heard).await;
}

async fn tell(
    mut server: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
    draining: CancellationToken,
    patience: Duration,
) {
    let mut frames = Frames::default();
    let mut buffer = vec![0; TUNNEL_BUFFER_BYTES];
    loop {
        let ends = draining.is_cancelled();
        if ends && frames.is_between() {
            break;
        }
        // Only to the end of the frame, then.
        let room = if ends { frames.wanted() } else { buffer.len() };
        let read = tokio::select! {
            read = server.read(&mut buffer[..room]) => read.unwrap_or(0),
            () = draining.cancelled(), if !ends => continue,
        };
        if read == 0 {
            break;
        }
        frames.pass(&buffer[..read]);
        if !write(&mut client, &buffer[..read], patience).await {
            return;
        }
    }
    if frames.is_between() && !frames.closed {
        write(&mut client, SHUTTING_DOWN, patience).await;
    }
    let _ = client.shutdown().await;
}

/// Whether the client took it, however slowly.
async fn write(client: &mut (impl AsyncWrite + Unpin), bytes: &[u8], patience: Duration) -> bool {
    let mut left = bytes;
    while !left.is_empty() {
        match timeout(patience, client.write(left)).await {
            Ok(Ok(written @ 1..)) => left = &left[written..],
            Ok(Ok(0) | Err(_)) | Err(_) => return false,
        }
    }
    true
}

async fn hear(mut client: impl AsyncRead + Unpin, mut server: impl AsyncWrite + Unpin) {
    let mut buffer = vec![0; TUNNEL_BUFFER_BYTES];
    let mut takes = true;
    while let Ok(read @ 1..) = client.read(&mut buffer).await {
        takes = takes && server.write_all(&buffer[..read]).await.is_ok();
    }
    let _ = server.shutdown().await;
}

#[cfg(test)]
mod tests;
