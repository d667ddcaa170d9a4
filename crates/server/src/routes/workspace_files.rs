//! Links to files of workspaces, where the storage makes none itself. What such a link says is signed: method,
//! file and when it ends; whoever has it needs no key.

use std::time::Duration;

use anyhow::Context;
use api::Uploaded;
use api::query::Query;
use axum::Json as Answer;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
};
use axum::http::{HeaderValue, Method};
use axum::response::Response;
use blobs::{ByteStream, Key};
use jiff::Timestamp;
use model::{Error, OwnerId, Quota, WorkspaceId};
use url::Url;

use crate::app::App;
use crate::body;
use crate::refusal::Refusal;
use crate::target::{LinkTarget, RawQuery};

const BAD_LINK: &str = "the link has expired, or is not for this; ask for a new one";

/// Download by a link
///
/// As `GET /v1/workspaces/…/files/…` made it. Needs no key.
#[utoipa::path(
    get, path = "/v1/workspace-files/{owner}/{app_id}/{capset_id}/{path}", tag = "Workspaces",
    operation_id = "get_file_by_link", security(()),
    params(
        ("owner" = String, Path, description = "As the link has it"),
        ("app_id" = String, Path, description = "As the link has it"),
        ("capset_id" = String, Path, description = "As the link has it"),
        ("path" = String, Path, description = "As the link has it"),
        ("expires" = u64, Query, description = "As the link has it"),
        ("signature" = String, Query, description = "As the link has it"),
    ),
    responses(
        (status = 200, description = "The bytes", body = [u8], content_type = "application/octet-stream"),
        (status = 403, description = "The link has expired, or is for something else"),
        (status = 404, description = "There is no such file any more"),
        (status = 503, description = "The storage does not answer"),
    )
)]
pub(crate) async fn get(
    State(app): State<App>,
    LinkTarget(owner, workspace, key): LinkTarget,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    check(&app, &Method::GET, (&owner, &workspace, &key), query.as_deref())?;
    let got = app.blobs.get(&owner, &workspace, &key).await?;
    let gone = || Error::NotFound { what: "file", id: key.to_string() };
    let (object, bytes) = got.ok_or_else(gone)?;
    Ok(attachment(object.size, bytes))
}

/// Upload by a link
///
/// As `PUT /v1/workspaces/…/files/…` made it. Needs no key.
#[utoipa::path(
    put, path = "/v1/workspace-files/{owner}/{app_id}/{capset_id}/{path}", tag = "Workspaces",
    operation_id = "put_file_by_link", security(()),
    params(
        ("owner" = String, Path, description = "As the link has it"),
        ("app_id" = String, Path, description = "As the link has it"),
        ("capset_id" = String, Path, description = "As the link has it"),
        ("path" = String, Path, description = "As the link has it"),
        ("expires" = u64, Query, description = "As the link has it"),
        ("quota_gib" = Option<u32>, Query, description = "As the link has it"),
        ("signature" = String, Query, description = "As the link has it"),
    ),
    request_body(content = [u8], content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "Written", body = Uploaded),
        (status = 400, description = "No body, or one that broke off"),
        (status = 403, description = "The link has expired, or is for something else"),
        (status = 404, description = "A workspace that cannot be"),
        (status = 408, description = "The rest of the body did not come in time"),
        (status = 409, description = "`name_taken`: a directory has that name, or a file one above it"),
        (status = 413, description = "The file is larger than this server takes, or than there is room for"),
        (status = 429, description = "`quota_exceeded`: delete files or workspaces first"),
        (status = 503, description = "The storage does not answer"),
    )
)]
pub(crate) async fn put(
    State(app): State<App>,
    LinkTarget(owner, workspace, key): LinkTarget,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Answer<Uploaded>, Refusal> {
    let file = (&owner, &workspace, &key);
    let quota = check(&app, &Method::PUT, file, query.as_deref())?;
    let patience = Duration::from_secs(app.limits.body_timeout_seconds);
    let before = app.blobs.head(&owner, &workspace, &key).await?;
    let replaced = before.as_ref().map_or(0, |object| object.size);
    let bytes_max = match quota {
        None => app.limits.file_bytes,
        Some(_) => app.limits.file_bytes.min(room(&app, &owner, (quota, replaced)).await?),
    };
    let (bytes, verdict) = body::upload(request, bytes_max, patience)?;
    // Large, so on the heap.
    let written = Box::pin(app.blobs.put(&owner, &workspace, &key, bytes)).await;
    let size = written.map_err(|error| verdict.or(error))?;
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let more = (signed(size) - signed(replaced), i64::from(before.is_none()));
    app.store.change_workspace_size(&owner, &workspace, more).await?;
    Ok(Answer(Uploaded::done()))
}

/// How large a file may be that takes the place of `replaced` bytes.
async fn room(
    app: &App,
    owner: &OwnerId,
    (quota, replaced): (Option<u32>, u64),
) -> Result<u64, Error> {
    let quota = Quota { workspace_gib_max: quota, ..Quota::UNLIMITED };
    let used = app.store.workspace_bytes(owner).await?.saturating_sub(replaced);
    let retry_after = Duration::from_secs(3600);
    let refused = |detail| Error::Exhausted { detail, retry_after };
    quota.admit_workspace(used, 1).map_err(refused)?;
    let max = u64::from(quota.workspace_gib_max.unwrap_or(u32::MAX)) << 30;
    Ok(max.saturating_sub(used))
}

pub(crate) fn link(
    app: &App,
    method: &Method,
    (owner, workspace, key): (&OwnerId, &WorkspaceId, &Key),
    (lasts, quota_gib): (Duration, Option<u32>),
) -> Result<String, Error> {
    let mut url = Url::parse(&app.address.url).context("read the public URL")?;
    let parts = [owner.as_str(), workspace.app_id(), workspace.capset_id()];
    url.path_segments_mut()
        .map_err(|()| anyhow::anyhow!("the public URL has no path"))?
        .pop_if_empty()
        .extend(["v1", "workspace-files"])
        .extend(parts)
        .extend(key.as_str().split('/'));
    let expires = (Timestamp::now() + lasts).as_second();
    let said = message(method, (owner, workspace, key), (expires, quota_gib));
    let mut pairs = url.query_pairs_mut();
    pairs.append_pair("expires", &expires.to_string());
    if let Some(quota) = quota_gib {
        pairs.append_pair("quota_gib", &quota.to_string());
    }
    pairs.append_pair("signature", &app.signer.sign_text(&said));
    drop(pairs);
    Ok(url.into())
}

/// Never shown by a browser as a page of ours.
pub(crate) fn attachment(size: u64, bytes: ByteStream) -> Response {
    let mut response = Response::new(Body::from_stream(bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
    response
}

/// Answers with what the owner may keep, as whoever made the link knew it.
fn check(
    app: &App,
    method: &Method,
    file: (&OwnerId, &WorkspaceId, &Key),
    query: Option<&str>,
) -> Result<Option<u32>, Refusal> {
    let mut query = Query::parse(query, &["expires", "quota_gib", "signature"])?;
    let bad = || Refusal::Forbidden(BAD_LINK);
    let (expires, signature) = (query.take("expires"), query.take("signature"));
    let expires: i64 = expires.and_then(|text| text.parse().ok()).ok_or_else(bad)?;
    let quota = query.take("quota_gib").map(|text| text.parse::<u32>());
    let quota = quota.transpose().map_err(|_| bad())?;
    let said = message(method, file, (expires, quota));
    let good = app.signer.is_signed(&said, &signature.unwrap_or_default());
    if !good || expires <= Timestamp::now().as_second() {
        return Err(bad());
    }
    Ok(quota)
}

/// No part can contain a line break, so no two files have the same.
fn message(
    method: &Method,
    (owner, workspace, key): (&OwnerId, &WorkspaceId, &Key),
    (expires, quota): (i64, Option<u32>),
) -> String {
    let quota = quota.map(|quota| quota.to_string()).unwrap_or_default();
    format!("bastide workspace link\n{method}\n{owner}\n{workspace}\n{key}\n{expires}\n{quota}")
}
