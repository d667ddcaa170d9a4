//! `bastide sandbox cp`: one file in or out, streamed. Directories are in `tree`.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use http::{Method, Response, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use model::SandboxRef;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_util::io::ReaderStream;

use super::{path_of, tree};
use crate::client::{Client, empty, streamed};
use crate::failure::Failure;
use crate::out;

pub(super) const CHUNK_BYTES: usize = 256 << 10;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bastide sandbox cp data.csv my-box:/workspace/
  bastide sandbox cp my-box:/workspace/result.json .
  bastide sandbox cp -r project my-box:/workspace/
  bastide sandbox cp -r my-box:/workspace/project/out results")]
pub(crate) struct CopyArgs {
    /// Copy a directory with all that is in it; in the sandbox it is in /workspace
    #[arg(long, short)]
    recursive: bool,
    /// A local path, or one in a sandbox
    from: Place,
    /// A local path, or one in a sandbox
    to: Place,
}

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Local(PathBuf),
    Sandbox { id: SandboxRef, path: String },
}

impl FromStr for Place {
    type Err = String;

    /// `NAME:/PATH` is in a sandbox when `NAME` can be one; `./a:b` is always local.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((id, path)) = text.split_once(':')
            && let Ok(id) = id.parse()
        {
            if !path.starts_with('/') {
                return Err("a path in a sandbox begins with /".into());
            }
            return Ok(Self::Sandbox { id, path: path.to_owned() });
        }
        Ok(Self::Local(PathBuf::from(text)))
    }
}

pub(super) async fn copy(client: &Client, args: CopyArgs) -> Result<(), Failure> {
    let recursive = args.recursive;
    match (args.from, args.to) {
        (Place::Local(from), Place::Sandbox { id, path }) if recursive => {
            let name = named(&from)?;
            tree::send(client, &id, (from, into_directory(path, name.as_deref())?)).await
        }
        (Place::Sandbox { id, path }, Place::Local(mut to)) if recursive => {
            if to.is_dir() {
                let name = path.trim_end_matches('/').rsplit('/').next();
                to.push(name.unwrap_or_default());
            }
            tree::fetch(client, &id, (path, to)).await
        }
        (Place::Local(from), Place::Sandbox { id, path }) => {
            let path = into_directory(path, from.file_name().and_then(|name| name.to_str()))?;
            let (file, size) = open(&from).await?;
            send(client, Upload { id: &id, path: &path, source: file, size: Some(size) }).await
        }
        (Place::Sandbox { id, path }, Place::Local(mut to)) => {
            if to.is_dir() {
                let name = path.rsplit('/').next().filter(|name| !name.is_empty());
                to.push(name.ok_or_else(|| Failure::new(format!("not a file: {path}")))?);
            }
            fetch(client, &id, &path, Some(&to)).await
        }
        (Place::Local(_), Place::Local(_)) => {
            Err(Failure::new("one end must be in a sandbox").hint("write it as SANDBOX:/PATH"))
        }
        (Place::Sandbox { .. }, Place::Sandbox { .. }) => {
            Err(Failure::new("one end must be a local path")
                .hint("use `files cat` and `files put` with a pipe between"))
        }
    }
}

/// What is uploaded where. Without a size it is sent in chunks.
pub(super) struct Upload<'a, R> {
    pub id: &'a SandboxRef,
    pub path: &'a str,
    pub source: R,
    pub size: Option<u64>,
}

pub(super) async fn send<R>(client: &Client, upload: Upload<'_, R>) -> Result<(), Failure>
where
    R: AsyncRead + Send + 'static,
{
    let bar = out::bytes_bar(upload.size, "uploading");
    let mut request = client
        .request(Method::POST, &path_of(upload.id, "files", &[("path", upload.path)]))
        .header(header::CONTENT_TYPE, "application/octet-stream");
    if let Some(size) = upload.size {
        request = request.header(header::CONTENT_LENGTH, size);
    }
    let stream = ReaderStream::with_capacity(upload.source, CHUNK_BYTES);
    let request = request
        .body(streamed(stream, bar.clone()))
        .map_err(|error| Failure::new(error.to_string()))?;
    let answer = client.upload(request).await;
    bar.finish_and_clear();
    answer.map(drop)
}

/// Downloads to a file, or to stdout.
pub(super) async fn fetch(
    client: &Client,
    id: &SandboxRef,
    path: &str,
    to: Option<&Path>,
) -> Result<(), Failure> {
    let request = client
        .request(Method::GET, &path_of(id, "files", &[("path", path)]))
        .body(empty())
        .map_err(|error| Failure::new(error.to_string()))?;
    receive(client.send(request).await?, to, "downloading").await
}

/// Writes a body. A file appears under its name only when all of it has come.
pub(super) async fn receive(
    response: Response<Incoming>,
    to: Option<&Path>,
    what: &str,
) -> Result<(), Failure> {
    let total = response
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    let bar =
        if to.is_some() { out::bytes_bar(total, what) } else { indicatif::ProgressBar::hidden() };
    let body = response.into_body();
    let result = match to.filter(|path| *path != Path::new("-")) {
        Some(path) => receive_file(body, path, &bar).await,
        None => drain(body, &mut tokio::io::stdout(), &bar).await,
    };
    bar.finish_and_clear();
    result
}

async fn receive_file(
    body: Incoming,
    path: &Path,
    bar: &indicatif::ProgressBar,
) -> Result<(), Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = path.with_file_name(format!(".{name}.{}.part", std::process::id()));
    let cannot = |error: io::Error| {
        Failure::new(format!("cannot write {}: {error}", path.display()).to_lowercase())
    };
    let mut file = File::create_new(&part).await.map_err(cannot)?;
    let mut done = drain(body, &mut file, bar).await;
    if done.is_ok() {
        done = tokio::fs::rename(&part, path).await.map_err(cannot);
    }
    if done.is_err() {
        // The failure is what matters; a part that cannot be removed says what it is by its name.
        let _ = tokio::fs::remove_file(&part).await;
    }
    done
}

async fn drain<W>(
    mut body: Incoming,
    to: &mut W,
    bar: &indicatif::ProgressBar,
) -> Result<(), Failure>
where
    W: AsyncWrite + Unpin,
{
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Failure::new(format!("the download broke off: {error}")))?;
        let Ok(bytes) = frame.into_data() else { continue };
        to.write_all(&bytes).await?;
        bar.inc(bytes.len() as u64);
    }
    Ok(to.flush().await?)
}

pub(super) async fn open(path: &Path) -> Result<(File, u64), Failure> {
    let cannot = |error: io::Error| {
        Failure::new(format!("cannot read {}: {error}", path.display()).to_lowercase())
    };
    let file = File::open(path).await.map_err(cannot)?;
    let meta = file.metadata().await.map_err(cannot)?;
    if meta.is_dir() {
        return Err(Failure::new(format!("is a directory: {}", path.display()))
            .hint("give -r to copy it, or pipe an archive into `sandbox import`"));
    }
    Ok((file, meta.len()))
}

/// The last part of a path, also of `.`.
fn named(path: &Path) -> Result<Option<String>, Failure> {
    let whole = path.canonicalize().map_err(|error| {
        Failure::new(format!("cannot read {}: {error}", path.display()).to_lowercase())
    })?;
    Ok(whole.file_name().and_then(|name| name.to_str()).map(str::to_owned))
}

/// `/workspace/` means a file of the same name in there.
fn into_directory(path: String, name: Option<&str>) -> Result<String, Failure> {
    if !path.ends_with('/') {
        return Ok(path);
    }
    match name {
        Some(name) => Ok(format!("{path}{name}")),
        None => Err(Failure::new(format!("needs a file name: {path}"))),
    }
}

#[cfg(test)]
mod tests;
