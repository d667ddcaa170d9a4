//! Stored workspaces (000 *Workspaces*): their files in storage, whatever sandboxes do.

use std::time::Duration;

use api::secrets::Deleted;
use api::workspace::{
    FileLink, FilesQuery, Workspace, WorkspaceFile, WorkspaceFiles, WorkspaceUsage, Workspaces,
};
use axum::Json as Answer;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONTENT_LENGTH, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use blobs::Key;
use model::{Error, OwnerId, WorkspaceId};

use crate::app::App;
use crate::auth::Holder;
use crate::refusal::Refusal;
use crate::routes::workspace_files;
use crate::target::{FileTarget, NoQuery, RawQuery, WorkspaceTarget};

const BYTES: &str = "application/octet-stream";

/// List your workspaces
#[utoipa::path(
    get, path = "/v1/workspaces", tag = "Workspaces", operation_id = "list_workspaces",
    responses((status = 200, description = "All of them", body = Workspaces))
)]
pub(crate) async fn list(
    State(app): State<App>,
    who: Holder,
    _none: NoQuery,
) -> Result<Answer<Workspaces>, Refusal> {
    let all = app.blobs.workspaces(&who.0.owner).await?;
    let shown = all.into_iter().map(|(workspace, used)| Workspace {
        app_id: workspace.app_id().into(),
        capset_id: workspace.capset_id().into(),
        size_bytes: used.bytes,
    });
    Ok(Answer(Workspaces { workspaces: shown.collect() }))
}

/// List the files of a workspace
///
/// A page at a time, those whose paths begin with `prefix`.
#[utoipa::path(
    get, path = "/v1/workspaces/{app_id}/{capset_id}", tag = "Workspaces",
    operation_id = "list_workspace_files",
    params(
        ("app_id" = String, Path, description = "Of the workspace"),
        ("capset_id" = String, Path, description = "Of the workspace"),
        ("prefix" = Option<String>, Query, description = "What paths begin with; default all"),
        ("limit" = Option<u64>, Query, description = "At most 1000; default 20"),
        ("token" = Option<String>, Query, description = "`next_token` of the page before"),
    ),
    responses(
        (status = 200, description = "A page; empty when there is no such workspace", body = WorkspaceFiles),
        (status = 400, description = "A wrong limit or token"),
    )
)]
pub(crate) async fn files(
    State(app): State<App>,
    who: Holder,
    WorkspaceTarget(workspace): WorkspaceTarget,
    RawQuery(query): RawQuery,
) -> Result<Answer<WorkspaceFiles>, Refusal> {
    let asked = FilesQuery::parse(query.as_deref())?;
    let after = asked.token.as_deref().map(key_of_token).transpose()?;
    let which = (asked.prefix.as_str(), after.as_ref());
    let page = app.blobs.page(&who.0.owner, &workspace, which, asked.limit).await?;
    let next_token = match page.objects.last() {
        Some(last) if page.more => Some(URL_SAFE_NO_PAD.encode(last.key.as_str())),
        Some(_) | None => None,
    };
    let shown = page.objects.into_iter().map(|object| WorkspaceFile {
        path: object.key.to_string(),
        size: object.size,
        modified: object.modified,
    });
    Ok(Answer(WorkspaceFiles { files: shown.collect(), next_token }))
}

/// Download a file of a workspace
///
/// A link to it, which works without a key until it expires; or the bytes themselves for
/// `Accept: application/octet-stream`.
#[utoipa::path(
    get, path = "/v1/workspaces/{app_id}/{capset_id}/files/{path}", tag = "Workspaces",
    operation_id = "get_workspace_file",
    params(
        ("app_id" = String, Path, description = "Of the workspace"),
        ("capset_id" = String, Path, description = "Of the workspace"),
        ("path" = String, Path, description = "Of the file; may contain `/`"),
    ),
    responses(
        (status = 200, description = "The link, or the bytes", body = FileLink),
        (status = 400, description = "A path that can be none"),
        (status = 404, description = "No such file"),
    )
)]
pub(crate) async fn download(
    State(app): State<App>,
    who: Holder,
    FileTarget(workspace, key): FileTarget,
    _none: NoQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let owner = &who.0.owner;
    if headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes() == BYTES.as_bytes()) {
        let got = app.blobs.get(owner, &workspace, &key).await?;
        let (object, bytes) = got.ok_or_else(|| no_file(&key))?;
        return Ok(workspace_files::attachment(object.size, bytes));
    }
    app.blobs.head(owner, &workspace, &key).await?.ok_or_else(|| no_file(&key))?;
    Ok(Answer(link(&app, Method::GET, (owner, &workspace, &key)).await?).into_response())
}

/// Upload a file into a workspace
///
/// Answers with a link; `PUT` the bytes there. A sandbox that has the workspace now does not see the file.
#[utoipa::path(
    put, path = "/v1/workspaces/{app_id}/{capset_id}/files/{path}", tag = "Workspaces",
    operation_id = "put_workspace_file",
    params(
        ("app_id" = String, Path, description = "Of the workspace"),
        ("capset_id" = String, Path, description = "Of the workspace"),
        ("path" = String, Path, description = "Of the file; may contain `/`"),
    ),
    responses(
        (status = 200, description = "The link", body = FileLink),
        (status = 400, description = "A path that can be none, or bytes sent here"),
    )
)]
pub(crate) async fn upload(
    State(app): State<App>,
    who: Holder,
    FileTarget(workspace, key): FileTarget,
    _none: NoQuery,
    request: Request,
) -> Result<Answer<FileLink>, Refusal> {
    let headers = request.headers();
    let sends = headers.get(CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0");
    if sends || headers.contains_key(TRANSFER_ENCODING) {
        let detail = "this answers with a link: send the bytes there, and nothing here";
        return Err(Error::invalid("body", detail).into());
    }
    Ok(Answer(link(&app, Method::PUT, (&who.0.owner, &workspace, &key)).await?))
}

/// Delete a file of a workspace
///
/// A sandbox that has the workspace now keeps its own copy.
#[utoipa::path(
    delete, path = "/v1/workspaces/{app_id}/{capset_id}/files/{path}", tag = "Workspaces",
    operation_id = "delete_workspace_file",
    params(
        ("app_id" = String, Path, description = "Of the workspace"),
        ("capset_id" = String, Path, description = "Of the workspace"),
        ("path" = String, Path, description = "Of the file; may contain `/`"),
    ),
    responses(
        (status = 200, description = "Gone", body = Deleted),
        (status = 400, description = "A path that can be none"),
        (status = 404, description = "No such file"),
    )
)]
pub(crate) async fn delete_file(
    State(app): State<App>,
    who: Holder,
    FileTarget(workspace, key): FileTarget,
    _none: NoQuery,
) -> Result<Answer<Deleted>, Refusal> {
    if !app.blobs.delete(&who.0.owner, &workspace, &key).await? {
        return Err(no_file(&key).into());
    }
    Ok(Answer(Deleted::default()))
}

/// Delete a workspace, with all its files
#[utoipa::path(
    delete, path = "/v1/workspaces/{app_id}/{capset_id}", tag = "Workspaces",
    operation_id = "delete_workspace",
    params(
        ("app_id" = String, Path, description = "Of the workspace"),
        ("capset_id" = String, Path, description = "Of the workspace"),
    ),
    responses(
        (status = 200, description = "Gone", body = Deleted),
        (status = 404, description = "No such workspace"),
        (status = 409, description = "`wrong_state`: a sandbox has it now"),
    )
)]
pub(crate) async fn delete(
    State(app): State<App>,
    who: Holder,
    WorkspaceTarget(workspace): WorkspaceTarget,
    _none: NoQuery,
) -> Result<Answer<Deleted>, Refusal> {
    let owner = &who.0.owner;
    if app.engine.is_mounted(owner, &workspace) {
        let detail = format!("a sandbox has the workspace {workspace} now; destroy that first");
        return Err(Error::wrong_state(detail).into());
    }
    if !app.blobs.remove(owner, &workspace).await? {
        return Err(no_workspace(&workspace.to_string()).into());
    }
    Ok(Answer(Deleted::default()))
}

/// What a workspace takes
#[utoipa::path(
    get, path = "/v1/workspaces/{app_id}/{capset_id}/usage", tag = "Workspaces",
    operation_id = "get_workspace_usage",
    params(
        ("app_id" = String, Path, description = "Of the workspace"),
        ("capset_id" = String, Path, description = "Of the workspace"),
    ),
    responses(
        (status = 200, description = "Size and count; 0 when there is no such workspace", body = WorkspaceUsage),
    )
)]
pub(crate) async fn usage(
    State(app): State<App>,
    who: Holder,
    WorkspaceTarget(workspace): WorkspaceTarget,
    _none: NoQuery,
) -> Result<Answer<WorkspaceUsage>, Refusal> {
    let used = app.blobs.used(&who.0.owner, &workspace).await?.unwrap_or_default();
    Ok(Answer(WorkspaceUsage::new(used.bytes, used.files)))
}

/// What can be none is as unknown as any other.
pub(crate) fn no_workspace(id: &str) -> Error {
    Error::NotFound { what: "workspace", id: id.chars().take(300).collect() }
}

fn no_file(key: &Key) -> Error {
    Error::NotFound { what: "file", id: key.to_string() }
}

/// The storage's own link, or one of ours.
async fn link(
    app: &App,
    method: Method,
    file: (&OwnerId, &WorkspaceId, &Key),
) -> Result<FileLink, Refusal> {
    let lasts = Duration::from_secs(app.link_seconds);
    let url = match app.blobs.signed(method.clone(), file, lasts).await? {
        Some(url) => url.to_string(),
        None => workspace_files::link(app, &method, file, lasts)?,
    };
    Ok(FileLink { url, expires_in: app.link_seconds })
}

fn key_of_token(token: &str) -> Result<Key, Error> {
    let wrong = || Error::invalid("token", "not one of ours; begin without it");
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| wrong())?;
    String::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).ok_or_else(wrong)
}
