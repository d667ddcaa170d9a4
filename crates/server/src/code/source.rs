//! Where the description of the API comes from: this server, a file, or a URL; prepared once for each of
//! its versions.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use axum::http::StatusCode;
use axum::http::header::{ETAG, IF_NONE_MATCH};
use serde_json::Value;
use tokio::time::Instant;
use url::Url;

use super::spec;
use super::target::Target;
use crate::app::App;

/// A URL is asked again after this long, with the `ETag` of what it gave last.
const FRESH_FOR: Duration = Duration::from_secs(60);
const FETCH_MAX: Duration = Duration::from_secs(20);
const CONNECT_MAX: Duration = Duration::from_secs(10);
const DOCUMENT_BYTES_MAX: usize = 16 << 20;

pub(super) struct Source {
    place: Place,
    kept: Mutex<Option<Kept>>,
}

enum Place {
    Own,
    File(PathBuf),
    Url { url: Url, client: reqwest::Client },
}

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
    pub(super) fn new(place: Option<&str>) -> Result<Self> {
        let place = match place {
            None => Place::Own,
            Some(text) if text.starts_with("http://") || text.starts_with("https://") => {
                Place::Url { url: Url::parse(text)?, client: client()? }
            }
            Some(path) => Place::File(PathBuf::from(path)),
        };
        Ok(Self { place, kept: Mutex::default() })
    }

    pub(super) async fn get(&self, app: &App, target: &Target) -> Result<Found, String> {
        let kept = self.kept();
        let read = match &self.place {
            Place::Own => own(app, target, kept),
            Place::File(path) => file(path, target, kept).await,
            Place::Url { url, client } => fetched(client, url, target, kept).await,
        };
        match read {
            Ok(kept) => {
                let found = kept.found.clone();
                *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
                Ok(found)
            }
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "no description of the API");
                // What was good a minute ago is better than nothing.
                let old = self.kept().map(|kept| kept.found);
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

fn own(app: &App, target: &Target, kept: Option<Kept>) -> Result<Kept> {
    match kept {
        Some(kept) => Ok(kept),
        None => prepare(app.pages.openapi_json.as_bytes(), target, Version::Own),
    }
}

async fn file(path: &PathBuf, target: &Target, kept: Option<Kept>) -> Result<Kept> {
    let about = tokio::fs::metadata(path).await;
    let about = about.with_context(|| format!("look at {}", path.display()))?;
    let version = Version::Modified(about.modified().context("when it changed")?, about.len());
    if let Some(kept) = kept.filter(|kept| kept.version == version) {
        return Ok(kept);
    }
    let text = tokio::fs::read(path).await.with_context(|| format!("read {}", path.display()))?;
    prepare(&text, target, version)
}

async fn fetched(
    client: &reqwest::Client,
    url: &Url,
    target: &Target,
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
        let fits = text.len() + piece.len() <= DOCUMENT_BYTES_MAX;
        anyhow::ensure!(fits, "the OpenAPI document is larger than {DOCUMENT_BYTES_MAX} bytes");
        text.extend_from_slice(&piece);
    }
    prepare(&text, target, Version::Etag(etag))
}

fn prepare(text: &[u8], target: &Target, version: Version) -> Result<Kept> {
    let text = std::str::from_utf8(text).context("read the OpenAPI document")?;
    // Every JSON document is YAML too, but not as fast.
    let document: Value = match serde_json::from_str(text) {
        Ok(document) => document,
        Err(_) => serde_saphyr::from_str(text).context("read the OpenAPI document")?,
    };
    anyhow::ensure!(document["paths"].is_object(), "the OpenAPI document has no paths");
    let found = Found {
        text: spec::slim(&document, target.blocked()).into(),
        key_header: spec::key_header(&document).map(Arc::from),
    };
    Ok(Kept { found, version, looked_at: Instant::now() })
}
