//! What tenants keep beyond the life of a sandbox: files of workspaces, in a directory or in a bucket of
//! anything that speaks S3.
//!
//! Every key is below its workspace's own prefix, segment by segment, and no segment can be read as
//! anything but a name: so no key leads out of its scope. The only crate that knows object storage.

mod key;
mod place;
mod scope;

use std::pin::Pin;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::Method;
use jiff::Timestamp;
use model::{Error, OwnerId, Result, WorkspaceId};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use url::Url;

pub use key::Key;
use place::Place;
pub use place::{Credentials, S3Config};
use scope::Scope;

/// Objects that are sorted at once, where the storage does not do that itself.
const SORTED_MAX: usize = 1_000_000;
/// Written to the storage at once.
const PART_BYTES: usize = 8 << 20;
/// Parts on their way at once.
const PARTS_MAX: usize = 4;

pub type ByteStream = Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>;

/// Clones share one.
#[derive(Clone)]
pub struct Blobs(Place);

/// A file of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub key: Key,
    pub size: u64,
    pub modified: Timestamp,
}

/// Files of a workspace, by key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub objects: Vec<Object>,
    /// There are more after the last one.
    pub more: bool,
}

/// What a workspace takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    pub bytes: u64,
    pub files: u64,
}

impl Blobs {
    /// Below a directory, which is made when absent.
    pub fn in_directory(dir: &std::path::Path) -> Result<Self> {
        Ok(Self(Place::directory(dir).context("open the directory of workspaces")?))
    }

    pub fn in_bucket(config: &S3Config) -> Result<Self> {
        Ok(Self(Place::bucket(config).context("open the bucket of workspaces")?))
    }

    /// At most `limit` of an owner's workspaces after `after`, in order; and whether there are more.
    pub async fn workspaces(
        &self,
        owner: &OwnerId,
        after: Option<&WorkspaceId>,
        limit: usize,
    ) -> Result<(Vec<WorkspaceId>, bool)> {
        let below = self.0.prefixed(&scope::of_owner(owner));
        let mut apps = self.directories(&below).await?;
        apps.sort();
        let mut all = Vec::new();
        for app in apps {
            let name = scope::app(&app);
            if name.is_none_or(|name| after.is_some_and(|after| *name < *after.app_id())) {
                continue;
            }
            let capsets = self.directories(&app).await?;
            let found = capsets.iter().filter_map(|capset| scope::workspace(&app, capset));
            let mut found: Vec<_> =
                found.filter(|found| after.is_none_or(|after| found > after)).collect();
            found.sort();
            all.append(&mut found);
            if all.len() > limit {
                all.truncate(limit);
                return Ok((all, true));
            }
        }
        Ok((all, false))
    }

    /// `None` when there is no such workspace.
    pub async fn used(&self, owner: &OwnerId, workspace: &WorkspaceId) -> Result<Option<Used>> {
        let scope = self.scope(owner, workspace);
        let mut used = Used::default();
        let mut exists = false;
        let mut all = self.0.store().list(Some(scope.root()));
        while let Some(meta) = all.next().await {
            let meta = meta.map_err(|error| failed("list", &error))?;
            exists = true;
            if scope.key_of(&meta.location).is_some() {
                used.bytes += meta.size;
                used.files += 1;
            }
        }
        Ok(exists.then_some(used))
    }

    /// At most `limit` files whose keys begin with `prefix`, after `after`.
    pub async fn page(
        &self,
        owner: &OwnerId,
        workspace: &WorkspaceId,
        (prefix, after): (&str, Option<&Key>),
        limit: usize,
    ) -> Result<Page> {
        let scope = self.scope(owner, workspace);
        // Storage lists by whole directories, and in the order of its own names.
        let directory = prefix.rsplit_once('/').map_or("", |(directory, _)| directory);
        let Some(below) = scope.directory(directory) else {
            return Ok(Page { objects: Vec::new(), more: false });
        };
        let store = self.0.store();
        let mut listed = match after {
            Some(after) => store.list_with_offset(Some(&below), &scope.file(after)),
            None => store.list(Some(&below)),
        };
        let mut objects = Vec::new();
        while let Some(meta) = listed.next().await {
            let Some(meta) = found("list", meta)? else { continue };
            let Some(object) = object(&scope, &meta) else { continue };
            if !object.key.as_str().starts_with(prefix) {
                continue;
            }
            objects.push(object);
            if self.0.lists_in_order() && objects.len() > limit {
                break;
            }
            if objects.len() > SORTED_MAX {
                return Err(Error::unavailable("the workspace has too many files to list"));
            }
        }
        objects.sort_by_cached_key(|object| scope.file(&object.key).to_string());
        let more = objects.len() > limit;
        objects.truncate(limit);
        Ok(Page { objects, more })
    }

    /// Every file, in no order.
    pub fn all(
        &self,
        owner: &OwnerId,
        workspace: &WorkspaceId,
    ) -> impl Stream<Item = Result<Object>> + Send + use<> {
        let scope = self.scope(owner, workspace);
        let listed = self.0.store().list(Some(scope.root()));
        listed.filter_map(move |meta| {
            let found = match meta {
                Ok(meta) => object(&scope, &meta).map(Ok),
                Err(error) => Some(Err(failed("list", &error))),
            };
            std::future::ready(found)
        })
    }

    pub async fn head(
        &self,
        owner: &OwnerId,
        workspace: &WorkspaceId,
        key: &Key,
    ) -> Result<Option<Object>> {
        let scope = self.scope(owner, workspace);
        let head = self.0.store().head(&scope.file(key)).await;
        Ok(found("look at", head)?.and_then(|meta| object(&scope, &meta)))
    }

    /// A file, and its bytes as they come.
    pub async fn get(
        &self,
        owner: &OwnerId,
        workspace: &WorkspaceId,
        key: &Key,
    ) -> Result<Option<(Object, ByteStream)>> {
        let scope = self.scope(owner, workspace);
        let got = found("read", self.0.store().get(&scope.file(key)).await)?;
        let Some(got) = got else { return Ok(None) };
        let Some(object) = object(&scope, &got.meta) else { return Ok(None) };
        let bytes = got.into_stream().map(|piece| piece.map_err(std::io::Error::other));
        Ok(Some((object, Box::pin(bytes))))
    }

    /// Replaces a file by what comes, once all of it has come. How much that was.
    pub async fn put<S>(
        &self,
        owner: &OwnerId,
        workspace: &WorkspaceId,
        key: &Key,
        bytes: S,
    ) -> Result<u64>
    where
        S: Stream<Item = std::io::Result<Bytes>> + Send,
    {
        let path = self.scope(owner, workspace).file(key);
        self.0.write((&path, key), bytes).await
    }

    /// Whether there was one.
    pub async fn delete(
        &self,
        owner: &OwnerId,
        workspace: &WorkspaceId,
        key: &Key,
    ) -> Result<bool> {
        if self.head(owner, workspace, key).await?.is_none() {
            return Ok(false);
        }
        let path = self.scope(owner, workspace).file(key);
        Ok(found("delete", self.0.store().delete(&path).await)?.is_some())
    }

    /// The whole workspace; whether there was one.
    pub async fn remove(&self, owner: &OwnerId, workspace: &WorkspaceId) -> Result<bool> {
        let scope = self.scope(owner, workspace);
        let store = self.0.store();
        let listed = store.list(Some(scope.root())).map(|meta| meta.map(|meta| meta.location));
        let mut deleted = store.delete_stream(listed.boxed());
        let mut any = false;
        while let Some(one) = deleted.next().await {
            any |= found("delete", one)?.is_some();
        }
        Ok(any)
    }

    /// What is kept beside the files of a workspace; it is no file of it.
    pub async fn note(&self, owner: &OwnerId, workspace: &WorkspaceId) -> Result<Option<Bytes>> {
        let path = self.scope(owner, workspace).note();
        let Some(got) = found("read", self.0.store().get(&path).await)? else { return Ok(None) };
        got.bytes().await.map(Some).map_err(|error| failed("read", &error))
    }

    pub async fn set_note(
        &self,
        owner: &OwnerId,
        workspace: &WorkspaceId,
        note: Bytes,
    ) -> Result<()> {
        let path = self.scope(owner, workspace).note();
        let put = self.0.store().put(&path, note.into()).await;
        put.map(drop).map_err(|error| failed("write", &error))
    }

    /// A link that works without any credential, for this method and file alone. `None` where the storage
    /// makes none: then it is for us to make one.
    pub async fn signed(
        &self,
        method: Method,
        (owner, workspace, key): (&OwnerId, &WorkspaceId, &Key),
        lasts: Duration,
    ) -> Result<Option<Url>> {
        self.0.signed(method, &self.scope(owner, workspace).file(key), lasts).await
    }

    fn scope(&self, owner: &OwnerId, workspace: &WorkspaceId) -> Scope {
        Scope::new(&self.0.prefixed(&scope::of_owner(owner)), workspace)
    }

    async fn directories(&self, below: &Path) -> Result<Vec<Path>> {
        let listed = self.0.store().list_with_delimiter(Some(below)).await;
        let listed = found("list", listed)?;
        Ok(listed.map(|listed| listed.common_prefixes).unwrap_or_default())
    }
}

fn object(scope: &Scope, meta: &ObjectMeta) -> Option<Object> {
    let key = scope.key_of(&meta.location)?;
    let modified = meta.last_modified.timestamp_micros();
    let modified = Timestamp::from_microsecond(modified).unwrap_or_default();
    Some(Object { key, size: meta.size, modified })
}

/// `None` for what is not there, nor can be: in a directory, nothing is below a file.
fn found<T>(what: &str, outcome: object_store::Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) if is_in_the_way(&error) => Ok(None),
        Err(error) => Err(failed(what, &error)),
    }
}

/// A file where a directory would have to be, or the other way round. A bucket can have both.
fn is_in_the_way(error: &object_store::Error) -> bool {
    use std::io::ErrorKind::{DirectoryNotEmpty, IsADirectory, NotADirectory};
    let mut causes = causes(error).filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes.any(|cause| matches!(cause.kind(), NotADirectory | IsADirectory | DirectoryNotEmpty))
}

fn causes(error: &object_store::Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |e| e.source())
}

/// The caller is told that it does not work, the log why.
fn failed(what: &str, error: &object_store::Error) -> Error {
    let error = causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ");
    tracing::warn!(error, "could not {what} files of a workspace");
    Error::unavailable("the storage of workspaces does not answer as it should; try again")
}
