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
use model::{Error, OwnerId, WorkspaceId};
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
        ("signature" = String, Query, description = "As the link has it"),
    ),
    request_body(content = [u8], content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "Written", body = Uploaded),
        (status = 400, description = "No body, or one that broke off"),
        (status = 403, description = "The link has expired, or is for something else"),
        (status = 408, description = "The rest of the body did not come in time"),
        (status = 413, description = "The file is larger than this server takes"),
        (status = 503, description = "The storage does not answer"),
    )
)]
pub(crate) async fn put(
    State(app): State<App>,
    LinkTarget(owner, workspace, key): LinkTarget,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Answer<Uploaded>, Refusal> {
    check(&app, &Method::PUT, (&owner, &workspace, &key), query.as_deref())?;
    let patience = Duration::from_secs(app.limits.body_timeout_seconds);
    let (bytes, verdict) = body::upload(request, app.limits.file_bytes, patience)?;
    // Large, so on the heap.
    let written = Box::pin(app.blobs.put(&owner, &workspace, &key, bytes)).await;
    written.map_err(|error| verdict.or(error))?;
    Ok(Answer(Uploaded::done()))
}

pub(crate) fn link(
    app: &App,
    method: &Method,
    (owner, workspace, key): (&OwnerId, &WorkspaceId, &Key),
    lasts: Duration,
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
    let signature = app.signer.sign_text(&message(method, (owner, workspace, key), expires));
    url.query_pairs_mut()
        .append_pair("expires", &expires.to_string())
        .append_pair("signature", &signature);
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

fn check(
    app: &App,
    method: &Method,
    file: (&OwnerId, &WorkspaceId, &Key),
    query: Option<&str>,
) -> Result<(), Refusal> {
    let mut query = Query::parse(query, &["expires", "signature"])?;
    let bad = || Refusal::Forbidden(BAD_LINK);
    let (expires, signature) = (query.take("expires"), query.take("signature"));
    let expires: i64 = expires.and_then(|text| text.parse().ok()).ok_or_else(bad)?;
    let good =
        app.signer.is_signed(&message(method, file, expires), &signature.unwrap_or_default());
    if !good || expires <= Timestamp::now().as_second() {
        return Err(bad());
    }
    Ok(())
}

/// No part can contain a line break, so no two files have the same.
fn message(
    method: &Method,
    (owner, workspace, key): (&OwnerId, &WorkspaceId, &Key),
    expires: i64,
) -> String {
    format!("bastide workspace link\n{method}\n{owner}\n{workspace}\n{key}\n{expires}")
}
