//! Files in and out, and the workspace as a tar stream. Nothing is held in memory.

use std::time::Duration;

use api::Uploaded;
use api::files::{Binary, check_path};
use api::query::Query;
use axum::Json as Answer;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::Response;
use model::Error;

use crate::app::App;
use crate::auth::Who;
use crate::body::upload;
use crate::refusal::Refusal;
use crate::target::{NoQuery, RawQuery, Target};

/// Download a file
///
/// The answer is the file as it is: text stays text. Commands run in `/workspace` unless they say otherwise.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files", tag = "Files", operation_id = "read_file",
    params(
        ("id" = String, Path, description = "Its id or its name"),
        ("path" = String, Query, description = "Absolute, such as `/workspace/data.csv`; `..` is refused"),
    ),
    responses(
        (status = 200, description = "Its bytes", body = Binary,
            content_type = "application/octet-stream"),
        (status = 400, description = "No path, a relative one, one with `..`, or a directory"),
        (status = 404, description = "No such sandbox, or no such file"),
        (status = 409, description = "`wrong_state`: the sandbox does not run"),
    )
)]
pub(crate) async fn download(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let path = path(query.as_deref())?;
    let file = app.engine.read_file(&caller, &sandbox, &path).await?;
    Ok(attachment(file.size, "application/octet-stream", Body::from_stream(file.body)))
}

/// Upload a file
///
/// The body is the file as it is: no JSON, no form. The parent directory must exist; a file that
/// exists is replaced. `Content-Length: 0` makes an empty file.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/files", tag = "Files", operation_id = "write_file",
    params(
        ("id" = String, Path, description = "Its id or its name"),
        ("path" = String, Query, description = "Absolute, such as `/workspace/data.csv`; `..` is refused"),
    ),
    request_body(content = Binary, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "Written", body = Uploaded),
        (status = 400, description = "A bad path, no parent directory, or no body"),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 408, description = "The rest of the body did not come in time"),
        (status = 409, description = "`wrong_state`: the sandbox does not run"),
        (status = 413, description = "The file is larger than this server takes"),
        (status = 507, description = "`disk_full`: the sandbox's disk is full"),
    )
)]
pub(crate) async fn store(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Answer<Uploaded>, Refusal> {
    let path = path(query.as_deref())?;
    let (body, verdict) = upload(request, app.limits.file_bytes, patience(&app))?;
    let written = app.engine.write_file(&caller, &sandbox, &path, body).await;
    written.map_err(|error| verdict.or(error))?;
    Ok(Answer(Uploaded::done()))
}

/// Export the workspace
///
/// `/workspace` as a tar stream; of a stopped sandbox too.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files/export", tag = "Files", operation_id = "export_workspace",
    params(
        ("id" = String, Path, description = "Its id or its name"),
        ("path" = Option<String>, Query, description = "One directory in `/workspace`; default all"),
    ),
    responses(
        (status = 200, description = "A tar stream", body = Binary,
            content_type = "application/x-tar"),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 409, description = "`wrong_state`: neither running nor stopped"),
    )
)]
pub(crate) async fn export(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let below = match Query::parse(query.as_deref(), &["path"])?.take("path") {
        Some(path) => below_workspace(&path)?,
        None => String::new(),
    };
    let body = app.engine.export_below(&caller, &sandbox, &below).await?;
    Ok(attachment(None, "application/x-tar", Body::from_stream(body)))
}

fn below_workspace(path: &str) -> Result<String, Error> {
    check_path("path", path)?;
    let wrong = || Error::invalid("path", format!("must be in /workspace: {path:?}"));
    let below = path.strip_prefix("/workspace").ok_or_else(wrong)?;
    if !below.is_empty() && !below.starts_with('/') {
        return Err(wrong());
    }
    Ok(below.trim_matches('/').to_owned())
}

/// Import into the workspace
///
/// Unpacks a tar stream into `/workspace`, over what is there; of a stopped sandbox too. Names and
/// links that would lead out of it are refused.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/files/import", tag = "Files", operation_id = "import_workspace",
    params(("id" = String, Path, description = "Its id or its name")),
    request_body(content = Binary, content_type = "application/x-tar"),
    responses(
        (status = 200, description = "Unpacked", body = Uploaded),
        (status = 400, description = "Not a tar stream, one that leads out, or no body"),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 408, description = "The rest of the body did not come in time"),
        (status = 409, description = "`wrong_state`: neither running nor stopped"),
        (status = 413, description = "The stream is larger than this server takes"),
        (status = 507, description = "`disk_full`: the sandbox's disk is full"),
    )
)]
pub(crate) async fn import(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    _none: NoQuery,
    request: Request,
) -> Result<Answer<Uploaded>, Refusal> {
    let (body, verdict) = upload(request, app.limits.archive_bytes, patience(&app))?;
    // Large, so on the heap; an import is not a hot path.
    let unpacked = Box::pin(app.engine.import(&caller, &sandbox, body)).await;
    unpacked.map_err(|error| verdict.or(error))?;
    Ok(Answer(Uploaded::done()))
}

fn path(query: Option<&str>) -> Result<String, Refusal> {
    let path = Query::parse(query, &["path"])?.required("path")?;
    check_path("path", &path)?;
    Ok(path)
}

fn patience(app: &App) -> Duration {
    Duration::from_secs(app.limits.body_timeout_seconds)
}

/// Never shown by a browser as a page of ours.
fn attachment(size: Option<u64>, kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    if let Some(size) = size {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
    }
    response
}
