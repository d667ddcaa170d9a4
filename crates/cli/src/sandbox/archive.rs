//! `bastide sandbox export` and `import`: the workspace as a tar archive, also of a stopped sandbox.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;
use http::{Method, header};
use model::SandboxRef;
use serde_json::Value;
use tokio::io::AsyncRead;
use tokio_util::io::ReaderStream;

use super::{copy, path_of};
use crate::client::{Client, empty, streamed};
use crate::failure::Failure;
use crate::out;

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[arg(value_name = "SANDBOX")]
    id: SandboxRef,
    /// The archive to write; default: stdout
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    #[arg(value_name = "SANDBOX")]
    id: SandboxRef,
    /// The archive to read; default: stdin
    #[arg(value_name = "FILE")]
    archive: Option<PathBuf>,
}

pub(super) async fn export(client: &Client, args: ExportArgs) -> Result<(), Failure> {
    if args.output.is_none() && std::io::stdout().is_terminal() {
        return Err(Failure::new("an archive is not for a terminal")
            .hint("give --output FILE, or pipe it into tar"));
    }
    let request = client
        .request(Method::GET, &path_of(&args.id, "files/export", &[]))
        .body(empty())
        .map_err(|error| Failure::new(error.to_string()))?;
    let response = client.send(request).await?;
    copy::receive(response, args.output.as_deref(), "exporting").await
}

pub(super) async fn import(client: &Client, args: ImportArgs, json: bool) -> Result<(), Failure> {
    let (source, size) = open(args.archive.as_deref()).await?;
    let bar = out::bytes_bar(size, "importing");
    let mut request = client
        .request(Method::POST, &path_of(&args.id, "files/import", &[]))
        .header(header::CONTENT_TYPE, "application/x-tar");
    if let Some(size) = size {
        request = request.header(header::CONTENT_LENGTH, size);
    }
    let request = request
        .body(streamed(ReaderStream::with_capacity(source, copy::CHUNK_BYTES), bar.clone()))
        .map_err(|error| Failure::new(error.to_string()))?;
    let answer = client.upload(request).await;
    bar.finish_and_clear();
    let answer = crate::client::read_whole(answer?).await?;
    if json {
        let answer: Value = serde_json::from_slice(&answer).unwrap_or(Value::Null);
        return out::json(&answer);
    }
    Ok(())
}

async fn open(
    archive: Option<&Path>,
) -> Result<(Box<dyn AsyncRead + Send + Unpin>, Option<u64>), Failure> {
    let Some(path) = archive.filter(|path| *path != Path::new("-")) else {
        return Ok((Box::new(tokio::io::stdin()), None));
    };
    let (file, size) = copy::open(path).await?;
    Ok((Box::new(file), Some(size)))
}
