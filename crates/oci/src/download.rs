//! A blob from a registry to a file: verified while it comes, resumed where it broke off, also by
//! a later process.

use std::path::Path;
use std::time::Duration;

use http::{Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use sha2::{Digest, Sha256};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use crate::image::hex;
use crate::registry::{Ask, IDLE_MAX, TRIES_MAX, wrong_digest};
use crate::{Error, Layer, Reference, Registry, Result};

/// Told how much of a blob is here.
pub type Progress<'a> = &'a (dyn Fn(u64) + Send + Sync);

/// How a download went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Downloaded {
    /// Bytes that came over the network this time.
    pub received: u64,
}

/// What is in the file so far.
struct Partial {
    file: File,
    hash: Sha256,
    bytes: u64,
    received: u64,
}

impl Registry {
    /// Fetches a layer into `path`, going on with what an earlier try left there. On `Ok` the file
    /// is whole and has the digest.
    pub async fn download(
        &self,
        reference: &Reference,
        layer: &Layer,
        path: &Path,
        progress: Progress<'_>,
    ) -> Result<Downloaded> {
        let mut partial = Partial::open(path, layer.bytes).await?;
        let mut fruitless = 0;
        while partial.bytes < layer.bytes {
            let before = partial.bytes;
            match self.more(reference, layer, &mut partial, progress).await {
                Ok(()) => {}
                Err(Error::Unavailable(why)) => {
                    fruitless = if partial.bytes > before { 0 } else { fruitless + 1 };
                    if fruitless >= TRIES_MAX {
                        return Err(Error::Unavailable(why));
                    }
                    sleep(Duration::from_millis(200) * (fruitless + 1)).await;
                }
                Err(error) => return Err(error),
            }
        }
        let received = partial.received;
        partial.file.sync_data().await.map_err(|error| Error::file(error, "flush a layer"))?;
        let digest = format!("sha256:{}", hex(&partial.hash.finalize()));
        if digest != layer.digest {
            // Nothing of it can be trusted to go on from.
            let _ = tokio::fs::remove_file(path).await;
            return Err(wrong_digest("a layer"));
        }
        Ok(Downloaded { received })
    }

    /// One request, as far as it goes.
    async fn more(
        &self,
        reference: &Reference,
        layer: &Layer,
        partial: &mut Partial,
        progress: Progress<'_>,
    ) -> Result<()> {
        let ask = Ask { accept: None, from: partial.bytes };
        let path = format!("blobs/{}", layer.digest);
        let response = self.ask(reference, &path, &ask).await?;
        if partial.bytes > 0 && !continues(&response, partial.bytes) {
            partial.begin_anew().await?;
        }
        let mut body = response.into_body();
        loop {
            let frame = timeout(IDLE_MAX, body.frame())
                .await
                .map_err(|_| Error::Unavailable("the registry stopped in a layer".into()))?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|error| {
                Error::Unavailable(format!("the registry broke off in a layer: {error}"))
            })?;
            let Ok(bytes) = frame.into_data() else { continue };
            if partial.bytes + bytes.len() as u64 > layer.bytes {
                return Err(Error::Corrupt("a layer is longer than its manifest says".into()));
            }
            partial.append(&bytes).await?;
            progress(partial.bytes);
        }
        if partial.bytes < layer.bytes {
            return Err(Error::Unavailable("the registry broke off in a layer".into()));
        }
        Ok(())
    }
}

/// Whether the answer begins where we asked; a registry may send everything instead.
fn continues(response: &Response<Incoming>, from: u64) -> bool {
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let begins = range
        .and_then(|text| text.strip_prefix("bytes "))
        .and_then(|text| text.split('-').next())
        .and_then(|text| text.parse::<u64>().ok());
    response.status() == StatusCode::PARTIAL_CONTENT && begins == Some(from)
}

impl Partial {
    async fn open(path: &Path, bytes_max: u64) -> Result<Self> {
        let failed = |error| Error::file(error, "open a layer's file");
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path).await.map_err(failed)?;
        let mut partial = Self { file, hash: Sha256::new(), bytes: 0, received: 0 };
        let mut buffer = vec![0u8; 256 << 10];
        loop {
            let count = partial.file.read(&mut buffer).await.map_err(failed)?;
            if count == 0 {
                break;
            }
            partial.hash.update(&buffer[..count]);
            partial.bytes += count as u64;
        }
        if partial.bytes > bytes_max {
            partial.begin_anew().await?;
        }
        Ok(partial)
    }

    async fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).await.map_err(|error| Error::file(error, "write a layer"))?;
        // A write of tokio's may be on its way still; a failure would otherwise show at the next.
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.received += bytes.len() as u64;
        Ok(())
    }

    async fn begin_anew(&mut self) -> Result<()> {
        use tokio::io::AsyncSeekExt;
        let failed = |error| Error::file(error, "begin a layer anew");
        self.file.set_len(0).await.map_err(failed)?;
        self.file.rewind().await.map_err(failed)?;
        self.hash = Sha256::new();
        self.bytes = 0;
        Ok(())
    }
}
