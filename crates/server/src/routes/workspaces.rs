//! Stored workspaces (000 *Workspaces*): their files in storage, whatever sandboxes do.

use std::time::Duration;

use api::secrets::Deleted;
use api::workspace::{
    FileLink, FilesQuery, Workspace, WorkspaceFile, WorkspaceFiles, WorkspaceUsage, Workspaces,
    WorkspacesQuery,
};
use axum::Json as Answer;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONTENT_LENGTH, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use blobs::Key;
use futures_util::{StreamExt, TryStreamExt, stream};
use model::{Error, OwnerId, Quota, WorkspaceId};

use crate::app::App;
use crate::auth::Holder;
use crate::refusal::Refusal;
use crate::routes::workspace_files;
use crate::sizes;
use crate::target::{FileTarget, NoQuery, RawQuery, WorkspaceTarget};

const BYTES: &str = "application/octet-stream";
/// Workspaces of one page, where they have to be counted.
const COUNTED_AT_ONCE: usize = 8;

/// List your workspaces
///
/// A page at a time, in the order of their names. Sizes are at most a few minutes old.
#[utoipa::path(
    get, path = "/v1/workspaces", tag = "Workspaces", operation_id = "list_workspaces",
    params(
        ("limit" = Option<u64>, Query, description = "At most 1000; default 100"),
        ("token" = Option<String>, Query, description = "`next_token` of the page before"),
    ),
    responses(
        (status = 200, description = "A page", body = Workspaces),
        (status = 400, description = "A wrong limit or token"),
    )
)]
pub(crate) async fn list(
    State(app): State<App>,
    who: Holder,
    RawQuery(query): RawQuery,
) -> Result<Answer<Workspaces>, Refusal> {
    let asked = WorkspacesQuery::parse(query.as_deref())?;
    let after = asked.token.as_deref().map(workspace_of_token).transpose()?;
    let owner = &who.0.owner;
    let (page, more) = app.blobs.workspaces(owner, after.as_ref(), asked.limit).await?;
    let next_token = page.last().filter(|_| more).map(token);
    let sized = page.into_iter().map(|workspace| {
        let (app, owner) = (App::clone(&app), owner.clone());
        async move {
            let size_bytes = sizes::size(&app, &owner, &workspace).await?;
            let (app_id, capset_id) = (workspace.app_id().into(), workspace.capset_id().into());
            Ok::<_, Error>(Workspace { app_id, capset_id, size_bytes })
        }
    });
    let sized: Vec<_> = sized.collect();
    let workspaces = stream::iter(sized).buffered(COUNTED_AT_ONCE).try_collect().await?;
    Ok(Answer(Workspaces { workspaces, next_token }))
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
        (status = 404, description = "A workspace that cannot be"),
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
    let next_token = page.objects.last().filter(|_| page.more).map(|last| token(&last.key));
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
    let link = link(&app, Method::GET, (owner, &workspace, &key), Quota::UNLIMITED).await?;
    Ok(Answer(link).into_response())
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
        (status = 404, description = "A workspace that cannot be"),
        (status = 429, description = "`quota_exceeded`: delete files or workspaces first"),
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
    sizes::admit(&app, &who.0, &workspace).await?;
    let quota = app.engine.quota(&who.0);
    Ok(Answer(link(&app, Method::PUT, (&who.0.owner, &workspace, &key), quota).await?))
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
    let owner = &who.0.owner;
    let size = app.blobs.head(owner, &workspace, &key).await?.map_or(0, |object| object.size);
    if !app.blobs.delete(owner, &workspace, &key).await? {
        return Err(no_file(&key).into());
    }
    let less = (i64::try_from(size).map_or(i64::MIN, |size| -size), -1);
    app.store.change_workspace_size(owner, &workspace, less).await?;
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
    app.store.forget_workspace_size(owner, &workspace).await?;
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
        (status = 404, description = "A workspace that cannot be"),
    )
)]
pub(crate) async fn usage(
    State(app): State<App>,
    who: Holder,
    WorkspaceTarget(workspace): WorkspaceTarget,
    _none: NoQuery,
) -> Result<Answer<WorkspaceUsage>, Refusal> {
    let used = sizes::count(&app, &who.0.owner, &workspace).await?.unwrap_or_default();
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
    quota: Quota,
) -> Result<FileLink, Refusal> {
    let lasts = Duration::from_secs(app.link_seconds);
    let url = match app.blobs.signed(method.clone(), file, lasts).await? {
        Some(url) => url.to_string(),
        None => workspace_files::link(app, &method, file, (lasts, quota.workspace_gib_max))?,
    };
    Ok(FileLink { url, expires_in: app.link_seconds })
}

/// Where a page ended.
fn token(last: &impl ToString) -> String {
    URL_SAFE_NO_PAD.encode(last.to_string())
}

fn workspace_of_token(token: &str) -> Result<WorkspaceId, Error> {
    let text = text_of_token(token)?;
    let (app_id, capset_id) = text.split_once('/').ok_or_else(wrong_token)?;
    WorkspaceId::new(app_id, capset_id).map_err(|_| wrong_token())
}

fn key_of_token(token: &str) -> Result<Key, Error> {
    text_of_token(token)?.parse().map_err(|_| wrong_token())
}

fn text_of_token(token: &str) -> Result<String, Error> {
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| wrong_token())?;
    String::from_utf8(bytes).map_err(|_| wrong_token())
}

fn wrong_token() -> Error {
    Error::invalid("token", "not one of ours; begin without it")
}
