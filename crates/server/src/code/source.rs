//! Where the description of the API comes from: this server, a file, or a URL; prepared once for each of
//! its versions.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use axum::http::StatusCode;
use axum::http::header::{ETAG, IF_NONE_MATCH};
use serde_json::Value;
use tokio::time::Instant;
use url::Url;

use super::spec;

/// A URL is asked again after this long, with the `ETag` of what it gave last.
const FRESH_FOR: Duration = Duration::from_secs(60);
const FETCH_MAX: Duration = Duration::from_secs(20);
const CONNECT_MAX: Duration = Duration::from_secs(10);
const DOCUMENT_BYTES_MAX: u64 = 16 << 20;

pub(super) struct Source {
    place: Place,
    /// Paths that code may not call are not shown to it.
    blocked: Blocked,
    kept: Mutex<Option<Kept>>,
}

enum Place {
    Own,
    File(PathBuf),
    Url { url: Url, client: reqwest::Client },
}

type Blocked = &'static [&'static str];

/// The description as code gets it.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) text: Arc<str>,
    /// Where the API wants its key.
    pub(super) key_header: Option<Arc<str>>,
}

#[derive(Clone)]
struct Kept {
    found: Found,
    /// Of the version that it is.
    version: Version,
    looked_at: Instant,
}

#[derive(Clone, PartialEq, Eq)]
enum Version {
    Own,
    Modified(SystemTime, u64),
    Etag(Option<String>),
}

impl Source {
    /// A file is read at once: one that is none is told to who starts the server. A URL is asked when
    /// somebody calls; its server may start later than this one.
    pub(super) fn new(place: Option<&str>, blocked: Blocked) -> Result<Self> {
        let (place, kept) = match place {
            None => (Place::Own, None),
            Some(text) if text.starts_with("http://") || text.starts_with("https://") => {
                (Place::Url { url: Url::parse(text)?, client: client()? }, None)
            }
            Some(path) => {
                let path = PathBuf::from(path);
                let kept = read(&path, blocked).map_err(|error| at_start(&error))?;
                (Place::File(path), Some(kept))
            }
        };
        Ok(Self { place, blocked, kept: Mutex::new(kept) })
    }

    /// `own` is this server's own description.
    pub(super) async fn get(&self, own: &[u8]) -> Result<Found, String> {
        let (kept, blocked) = (self.kept(), self.blocked);
        let read = match &self.place {
            Place::Own => kept.map_or_else(|| prepare(own, blocked, Version::Own), Ok),
            Place::File(path) => file(path, blocked, kept).await,
            Place::Url { url, client } => fetched(client, url, blocked, kept).await,
        };
        match read {
            Ok(kept) => {
                let found = kept.found.clone();
                *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
                Ok(found)
            }
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "no description of the API");
                // What was good a minute ago is better than nothing, and than to wait at every call.
                let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                let old = kept.as_mut().map(|kept| {
                    kept.looked_at = Instant::now();
                    kept.found.clone()
                });
                old.ok_or_else(|| "the API's OpenAPI document cannot be read".to_owned())
            }
        }
    }

    fn kept(&self) -> Option<Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What reaches other APIs. Redirects are not followed: a key goes where it was meant to go.
pub(super) fn client() -> Result<reqwest::Client> {
    // The process's own, unless it has one.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_MAX)
        .build()
        .context("make a client for the API")
}

/// The file again, if it has changed.
async fn file(path: &Path, blocked: Blocked, kept: Option<Kept>) -> Result<Kept> {
    let about = tokio::fs::metadata(path).await.with_context(|| path.display().to_string())?;
    let version = version_of(&about)?;
    if let Some(kept) = kept.filter(|kept| kept.version == version) {
        return Ok(kept);
    }
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || read(&path, blocked)).await.context("read a file")?
}

fn read(path: &Path, blocked: Blocked) -> Result<Kept> {
    let read = || {
        let about = std::fs::metadata(path)?;
        anyhow::ensure!(about.is_file(), "not a file");
        ensure_fits(about.len())?;
        prepare(&std::fs::read(path)?, blocked, version_of(&about)?)
    };
    read().with_context(|| path.display().to_string())
}

fn version_of(about: &Metadata) -> Result<Version> {
    Ok(Version::Modified(about.modified().context("when it changed")?, about.len()))
}

fn ensure_fits(bytes: u64) -> Result<()> {
    let fits = bytes <= DOCUMENT_BYTES_MAX;
    anyhow::ensure!(fits, "the OpenAPI document is larger than {DOCUMENT_BYTES_MAX} bytes");
    Ok(())
}

fn at_start(error: &anyhow::Error) -> anyhow::Error {
    let hint = "it is an OpenAPI document in JSON or YAML, as a file or the URL of one";
    anyhow::anyhow!("code.spec: {error:#}\nhint: {hint}")
}

async fn fetched(
    client: &reqwest::Client,
    url: &Url,
    blocked: Blocked,
    kept: Option<Kept>,
) -> Result<Kept> {
    if let Some(kept) = kept.clone().filter(|kept| kept.looked_at.elapsed() < FRESH_FOR) {
        return Ok(kept);
    }
    let mut request = client.get(url.clone()).timeout(FETCH_MAX);
    if let Some(Kept { version: Version::Etag(Some(etag)), .. }) = &kept {
        request = request.header(IF_NONE_MATCH, etag);
    }
    let mut response = request.send().await.context("fetch the OpenAPI document")?;
    if response.status() == StatusCode::NOT_MODIFIED
        && let Some(kept) = kept
    {
        return Ok(Kept { looked_at: Instant::now(), ..kept });
    }
    let status = response.status();
    anyhow::ensure!(status.is_success(), "fetch the OpenAPI document: {status}");
    let etag = response.headers().get(ETAG).and_then(|etag| etag.to_str().ok()).map(str::to_owned);
    let mut text = Vec::new();
    while let Some(piece) = response.chunk().await.context("fetch the OpenAPI document")? {
        ensure_fits((text.len() + piece.len()) as u64)?;
        text.extend_from_slice(&piece);
    }
    prepare(&text, blocked, Version::Etag(etag))
}

fn prepare(text: &[u8], blocked: Blocked, version: Version) -> Result<Kept> {
    let text = std::str::from_utf8(text).context("read the OpenAPI document")?;
    // Every JSON document is YAML too, but not as fast.
    let document: Value = match serde_json::from_str(text) {
        Ok(document) => document,
        Err(_) => serde_saphyr::from_str(text).context("read the OpenAPI document")?,
    };
    anyhow::ensure!(document["paths"].is_object(), "the OpenAPI document has no paths");
    let found = Found {
        text: spec::slim(&document, blocked).into(),
        key_header: spec::key_header(&document).map(Arc::from),
    };
    Ok(Kept { found, version, looked_at: Instant::now() })
}

#[cfg(test)]
mod tests;
