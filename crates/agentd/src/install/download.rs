//! A tarball, from the registry to a file: hashed while it streams, continued where it was cut.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{StatusCode, header};
use hyper::body::Incoming;
use sha2::{Digest as _, Sha512};
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncWriteExt as _, BufWriter};
use tokio::time::Instant;
use tracing::{info, warn};
use url::Url;

use super::InstallError;
use super::http::{Client, FetchError, next_piece};

const BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
const ATTEMPTS: u32 = 5;
const TELL_EVERY: Duration = Duration::from_secs(5);
const BUFFER_BYTES: usize = 1024 * 1024;

/// What to fetch, and the checksum without which it is not used.
#[derive(Debug)]
pub(super) struct Tarball {
    pub(super) url: Url,
    pub(super) sha512: [u8; 64],
    pub(super) authorization: Option<String>,
}

/// What of it is on the disk.
struct Partial {
    file: BufWriter<File>,
    hash: Sha512,
    bytes: u64,
}

enum Failed {
    /// Nothing wrong here: what came so far stays, and is continued.
    Fetch(FetchError),
    Disk(io::Error),
}

/// The whole, checked file. After a failure the next call goes on where this one stopped.
pub(super) async fn fetch(
    client: &Client,
    agent: &str,
    tarball: &Tarball,
    dir: &Path,
) -> Result<PathBuf, InstallError> {
    let name: String = tarball.sha512.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let path = dir.join(format!("{name}.tgz"));
    let mut attempt = 0;
    loop {
        attempt += 1;
        match fetch_once(client, agent, tarball, &path).await {
            Ok(digest) if digest == tarball.sha512 => return Ok(path),
            Ok(_) => {
                let _ = std::fs::remove_file(&path);
                return Err(InstallError::new(
                    format!("the checksum of {} is wrong; it was thrown away", tarball.url),
                    "try again; if it stays so, do not trust this registry",
                ));
            }
            Err(Failed::Disk(error)) => return Err(InstallError::disk("write", &path, &error)),
            Err(Failed::Fetch(error)) if attempt < ATTEMPTS && error.may_pass() => {
                warn!(agent, attempt, "the download of {agent} was cut, going on: {error}");
                tokio::time::sleep(Duration::from_secs(u64::from(attempt))).await;
            }
            Err(Failed::Fetch(error)) => {
                let hint = "asking again continues where this stopped";
                return Err(InstallError::new(format!("cannot download {agent}: {error}"), hint));
            }
        }
    }
}

async fn fetch_once(
    client: &Client,
    agent: &str,
    tarball: &Tarball,
    path: &Path,
) -> Result<[u8; 64], Failed> {
    let (hash, bytes) = hash_of_file(path).await.map_err(Failed::Disk)?;
    let mut headers = vec![(header::ACCEPT, "*/*".to_owned())];
    headers.extend(tarball.authorization.clone().map(|value| (header::AUTHORIZATION, value)));
    if bytes > 0 {
        headers.push((header::RANGE, format!("bytes={bytes}-")));
    }
    let response = client.get(&tarball.url, &headers).await.map_err(Failed::Fetch)?;
    let status = response.status();
    let begins_at = match status {
        StatusCode::OK => 0,
        StatusCode::PARTIAL_CONTENT if begins_at(&response) == Some(bytes) => bytes,
        // It was complete already, or it never will be: the checksum tells.
        StatusCode::RANGE_NOT_SATISFIABLE if bytes > 0 => return Ok(hash.finalize().into()),
        _ => return Err(Failed::Fetch(FetchError::Status { url: tarball.url.clone(), status })),
    };
    let hash = if begins_at == 0 { Sha512::new() } else { hash };
    let mut partial = Partial::open(path, hash, begins_at).await.map_err(Failed::Disk)?;
    let whole = content_length(&response).map(|length| length + begins_at);
    partial.take_all(response.into_body(), agent, &tarball.url, whole).await?;
    Ok(partial.hash.finalize().into())
}

impl Partial {
    async fn open(path: &Path, hash: Sha512, bytes: u64) -> io::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(bytes == 0)
            .append(false)
            .open(path)
            .await?;
        file.set_len(bytes).await?;
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
        tokio::io::AsyncSeekExt::seek(&mut file, io::SeekFrom::Start(bytes)).await?;
        Ok(Self { file, hash, bytes })
    }

    /// Writes what comes. What was written is on the disk also when the rest does not come.
    async fn take_all(
        &mut self,
        mut body: Incoming,
        agent: &str,
        url: &Url,
        whole: Option<u64>,
    ) -> Result<(), Failed> {
        let mut told = Instant::now();
        loop {
            let piece = match next_piece(&mut body, url).await {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(error) => {
                    self.file.flush().await.map_err(Failed::Disk)?;
                    return Err(Failed::Fetch(error));
                }
            };
            self.bytes += piece.len() as u64;
            if self.bytes > BYTES_MAX {
                let text = format!("{url} is larger than {BYTES_MAX} bytes");
                return Err(Failed::Fetch(FetchError::Unusable(text)));
            }
            self.hash.update(&piece);
            self.file.write_all(&piece).await.map_err(Failed::Disk)?;
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                tell(agent, self.bytes, whole);
            }
        }
        self.file.flush().await.map_err(Failed::Disk)?;
        tell(agent, self.bytes, whole);
        Ok(())
    }
}

fn tell(agent: &str, bytes: u64, whole: Option<u64>) {
    let mib = |bytes: u64| bytes / (1024 * 1024);
    match whole {
        Some(whole) => info!(agent, "downloading {agent}: {} of {} MiB", mib(bytes), mib(whole)),
        None => info!(agent, "downloading {agent}: {} MiB", mib(bytes)),
    }
}

/// The hash of what is there, so that only the rest has to come.
async fn hash_of_file(path: &Path) -> io::Result<(Sha512, u64)> {
    let path = path.to_owned();
    let hashing = move || {
        let mut file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Sha512::new(), 0)),
            Err(error) => return Err(error),
        };
        let (mut hash, mut bytes) = (Sha512::new(), 0);
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                return Ok((hash, bytes));
            }
            hash.update(&buffer[..count]);
            bytes += count as u64;
        }
    };
    tokio::task::spawn_blocking(hashing).await.map_err(io::Error::other)?
}

fn begins_at(response: &http::Response<Incoming>) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

fn content_length(response: &http::Response<Incoming>) -> Option<u64> {
    response.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
