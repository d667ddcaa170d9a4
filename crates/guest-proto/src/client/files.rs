//! Whole files. Small ones travel in the request; large ones are handed over open, where host and
//! guest are on one machine.

use std::io;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::{Method, header};

use super::handed::{Handed, drain};
use super::{
    Answer, ByteStream, Call, FileDownload, Guest, Tunnel, Upgraded, next, number_header, with_path,
};
use crate::pieces::FileStream;
use crate::{Address, GuestError, handover};

impl Guest {
    pub async fn read_file(&self, path: &str) -> Result<FileDownload, GuestError> {
        let route = with_path("file", path);
        if self.is_here() {
            match self.upgrade(Method::GET, &route, handover::UPGRADE).await? {
                Upgraded::Refused(answer) => return self.download(*answer),
                Upgraded::Tunnel(tunnel) => {
                    if let Some(handed) = take(tunnel).await? {
                        let stream = FileStream::new(handed.file, 0, handed.size);
                        let body = ByteStream::of_file(stream);
                        return Ok(FileDownload { size: handed.size, body });
                    }
                }
            }
        }
        let answer = self.call(Call::new(Method::GET, route)).await?;
        self.download(answer)
    }

    fn download(&self, answer: Answer) -> Result<FileDownload, GuestError> {
        let size = number_header(answer.headers(), header::CONTENT_LENGTH.as_str())?;
        Ok(FileDownload { size, body: self.body(answer) })
    }

    /// Writes a whole file; its directory must exist. What was there before stays until all of the
    /// new one has come.
    pub async fn write_file<S>(&self, path: &str, body: S) -> Result<(), GuestError>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        if !self.is_here() {
            return self.send_file(path, body).await;
        }
        // Its end may be met more than once.
        let mut body = Box::pin(body.fuse());
        let start = beginning(&mut body).await?;
        let large =
            start.iter().map(|piece| piece.len() as u64).sum::<u64>() >= handover::BYTES_MIN;
        if large && let Some(handed) = self.open_to_write(path, &mut body).await? {
            return handed.fill(start, body).await;
        }
        let start = futures_util::stream::iter(start.into_iter().map(Ok));
        self.send_file(path, start.chain(body)).await
    }

    /// `None` from a guest that does not know how, or for a file that we do not touch.
    async fn open_to_write<S>(&self, path: &str, body: &mut S) -> Result<Option<Handed>, GuestError>
    where
        S: Stream<Item = io::Result<Bytes>> + Unpin,
    {
        let route = with_path("open", path);
        match self.upgrade(Method::POST, &route, handover::UPGRADE).await {
            Ok(Upgraded::Tunnel(tunnel)) => take(tunnel).await,
            Ok(Upgraded::Refused(_)) | Err(GuestError::NotFound) => Ok(None),
            Err(error) => {
                drain(body).await;
                Err(error)
            }
        }
    }

    async fn send_file<S>(&self, path: &str, body: S) -> Result<(), GuestError>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        let call = Call::new(Method::PUT, with_path("file", path)).streaming(body);
        let answer = self.call(call).await?;
        self.finish(answer).await
    }

    /// Whether open files can be handed over.
    fn is_here(&self) -> bool {
        matches!(self.pool.address, Address::Unix(_))
    }
}

/// The first pieces of a body, up to what makes it large.
async fn beginning<S>(body: &mut S) -> Result<Vec<Bytes>, GuestError>
where
    S: Stream<Item = io::Result<Bytes>> + Unpin,
{
    let (mut start, mut len) = (Vec::new(), 0);
    while len < handover::BYTES_MIN
        && let Some(piece) = next(body).await
    {
        let piece = piece.map_err(GuestError::Body)?;
        len += piece.len() as u64;
        start.push(piece);
    }
    Ok(start)
}

async fn take(tunnel: Tunnel) -> Result<Option<Handed>, GuestError> {
    let socket = tunnel.into_unix();
    let socket = socket.ok_or_else(|| GuestError::protocol("spoke before it was asked"))?;
    Handed::receive(socket).await
}
