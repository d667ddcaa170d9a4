//! `bastide workspace`: files that outlive every sandbox, over HTTP.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::secrets::Deleted;
use api::workspace::{FileLink, WorkspaceFiles, WorkspaceUsage, Workspaces};
use blobs::Key;
use clap::{Args, Subcommand};
use futures_util::StreamExt;
use http::{Method, header};
use http_body_util::BodyExt;
use tokio::io::AsyncWriteExt;
use tokio_util::io::ReaderStream;

use crate::client::{Client, streamed};
use crate::failure::Failure;
use crate::out;

/// Asked for at once.
const PAGE: usize = 1000;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List your workspaces
    #[command(visible_alias = "ls")]
    List,
    /// List the files of a workspace
    Files {
        #[command(flatten)]
        of: Of,
        /// Only paths that begin with this
        #[arg(long, default_value = "")]
        prefix: String,
    },
    /// Download a file
    Get {
        #[command(flatten)]
        of: Of,
        path: Key,
        /// Default: stdout
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Upload a file
    Put {
        #[command(flatten)]
        of: Of,
        path: Key,
        /// What to send
        file: PathBuf,
    },
    /// Delete a file, or with `--all` the whole workspace
    #[command(visible_alias = "rm")]
    Delete {
        #[command(flatten)]
        of: Of,
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        path: Option<Key>,
        #[arg(long)]
        all: bool,
    },
    /// What a workspace takes
    Usage {
        #[command(flatten)]
        of: Of,
    },
}

/// Which workspace.
#[derive(Debug, Args)]
pub(crate) struct Of {
    #[arg(value_name = "APP_ID", value_parser = name)]
    app_id: String,
    #[arg(value_name = "CAPSET_ID", value_parser = name)]
    capset_id: String,
}

fn name(text: &str) -> Result<String, String> {
    let checked = model::WorkspaceId::new(text, text);
    checked.map(|_| text.to_owned()).map_err(|_| "must be of a-z, A-Z, 0-9, . _ -".into())
}

impl Of {
    fn path(&self) -> String {
        format!("/v1/workspaces/{}/{}", self.app_id, self.capset_id)
    }

    fn file(&self, key: &Key) -> String {
        let segments = key.as_str().split('/').map(|segment| {
            form_urlencoded::byte_serialize(segment.as_bytes())
                .collect::<String>()
                .replace('+', "%20")
        });
        format!("{}/files/{}", self.path(), segments.collect::<Vec<_>>().join("/"))
    }
}

pub(crate) async fn execute(
    client: &Client,
    command: Command,
    json: bool,
) -> Result<ExitCode, Failure> {
    match command {
        Command::List => list(client, json).await?,
        Command::Files { of, prefix } => files(client, &of, &prefix, json).await?,
        Command::Get { of, path, output } => {
            get(client, &of.file(&path), output.as_deref()).await?
        }
        Command::Put { of, path, file } => put(client, &of.file(&path), &file).await?,
        Command::Delete { of, path, all: _ } => {
            let path = path.map_or_else(|| of.path(), |path| of.file(&path));
            let deleted: Deleted = client.json(Method::DELETE, &path, None).await?;
            if json {
                out::json(&deleted)?;
            }
        }
        Command::Usage { of } => {
            let path = format!("{}/usage", of.path());
            let usage: WorkspaceUsage = client.json(Method::GET, &path, None).await?;
            if json {
                out::json(&usage)?;
            } else {
                out::line(format!("{:.1} MiB in {} files", usage.total_size_mib, usage.file_count));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, json: bool) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut token: Option<String> = None;
    loop {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("limit", &PAGE.to_string());
        if let Some(token) = &token {
            query.append_pair("token", token);
        }
        let path = format!("/v1/workspaces?{}", query.finish());
        let page: Workspaces = client.json(Method::GET, &path, None).await?;
        rows.extend(page.workspaces);
        token = page.next_token;
        if token.is_none() {
            break;
        }
    }
    if json {
        return out::json(&Workspaces { workspaces: rows, next_token: None });
    }
    let rows =
        rows.into_iter().map(|one| vec![one.app_id, one.capset_id, one.size_bytes.to_string()]);
    out::table(&["APP", "CAPSET", "BYTES"], rows.collect());
    Ok(())
}

async fn files(client: &Client, of: &Of, prefix: &str, json: bool) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut token: Option<String> = None;
    loop {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("limit", &PAGE.to_string());
        if !prefix.is_empty() {
            query.append_pair("prefix", prefix);
        }
        if let Some(token) = &token {
            query.append_pair("token", token);
        }
        let path = format!("{}?{}", of.path(), query.finish());
        let page: WorkspaceFiles = client.json(Method::GET, &path, None).await?;
        rows.extend(page.files);
        token = page.next_token;
        if token.is_none() {
            break;
        }
    }
    if json {
        return out::json(&WorkspaceFiles { files: rows, next_token: None });
    }
    let rows = rows.into_iter().map(|file| {
        vec![file.size.to_string(), file.modified.to_string(), file.path.escape_debug().to_string()]
    });
    out::table(&["BYTES", "MODIFIED", "PATH"], rows.collect());
    Ok(())
}

async fn get(client: &Client, path: &str, output: Option<&Path>) -> Result<(), Failure> {
    let request = client.request(Method::GET, path);
    let request = request.header(header::ACCEPT, "application/octet-stream");
    let request = request.body(crate::client::empty());
    let answer = client.send(request.map_err(|error| Failure::new(error.to_string()))?).await?;
    let mut pieces = answer.into_body().into_data_stream();
    let mut file = match output {
        Some(path) => Some(tokio::fs::File::create(path).await?),
        None => None,
    };
    while let Some(piece) = pieces.next().await {
        let piece =
            piece.map_err(|error| Failure::new(format!("the answer broke off: {error}")))?;
        match &mut file {
            Some(file) => file.write_all(&piece).await?,
            None => out::stdout(&piece)?,
        }
    }
    if let Some(file) = &mut file {
        file.flush().await?;
    }
    Ok(())
}

/// Where to is asked first; that may be another server, which gets no key.
async fn put(client: &Client, path: &str, file: &Path) -> Result<(), Failure> {
    let open = tokio::fs::File::open(file).await;
    let open =
        open.map_err(|error| Failure::new(format!("cannot read {}: {error}", file.display())))?;
    let size = open.metadata().await?.len();
    let link: FileLink = client.json(Method::PUT, path, None).await?;
    let wrong = || Failure::new("the server's link is not understood");
    let url: http::Uri = link.url.parse().map_err(|_| wrong())?;
    let (scheme, authority) =
        (url.scheme_str().ok_or_else(wrong)?, url.authority().ok_or_else(wrong)?);
    let to = client.elsewhere(&format!("{scheme}://{authority}"))?;
    let bar = out::bytes_bar(Some(size), "uploading");
    let target = url.path_and_query().ok_or_else(wrong)?.as_str();
    let request = to
        .request(Method::PUT, target)
        .header(header::CONTENT_LENGTH, size)
        .body(streamed(ReaderStream::new(open), bar.clone()));
    to.upload(request.map_err(|error| Failure::new(error.to_string()))?).await?;
    bar.finish_and_clear();
    Ok(())
}
