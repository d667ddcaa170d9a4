//! The two kinds of storage, and what differs between them.

use std::fmt;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http::Method;
use model::{Conflict, Error, Result, SecretText};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, WriteMultipart};
use url::Url;

use crate::{Key, PART_BYTES, PARTS_MAX, failed, is_in_the_way};

const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Between two pieces of an answer.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A bucket, or a part of one.
#[derive(Debug, Clone)]
pub struct S3Config {
    pub bucket: String,
    /// What all keys begin with; may be empty.
    pub prefix: String,
    pub region: String,
    /// Other than AWS's own.
    pub endpoint: Option<String>,
    pub credentials: Option<Credentials>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub access_key_id: String,
    pub secret_access_key: SecretText,
    pub session_token: Option<SecretText>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Credentials");
        shown.field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

#[derive(Clone)]
pub(crate) enum Place {
    Directory(Arc<LocalFileSystem>),
    Bucket { store: Arc<AmazonS3>, prefix: Path },
}

impl Place {
    pub(crate) fn directory(dir: &std::path::Path) -> anyhow::Result<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.with_context(|| format!("make {}", dir.display()))?;
        let store = LocalFileSystem::new_with_prefix(dir)?;
        Ok(Self::Directory(Arc::new(store.with_automatic_cleanup(true).with_fsync(true))))
    }

    pub(crate) fn bucket(config: &S3Config) -> anyhow::Result<Self> {
        // The client of HTTP takes the process's own. A second one changes nothing.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let plain = config.endpoint.as_deref().is_some_and(|url| url.starts_with("http://"));
        let client = ClientOptions::new()
            .with_connect_timeout(CONNECT_MAX)
            .with_timeout_disabled()
            .with_read_timeout(SILENCE_MAX)
            .with_allow_http(plain);
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&config.bucket)
            .with_region(&config.region)
            .with_client_options(client);
        if let Some(endpoint) = &config.endpoint {
            builder = builder.with_endpoint(endpoint).with_virtual_hosted_style_request(false);
        }
        if let Some(Credentials { access_key_id, secret_access_key, session_token }) =
            &config.credentials
        {
            builder = builder
                .with_access_key_id(access_key_id)
                .with_secret_access_key(&secret_access_key.0);
            if let Some(SecretText(token)) = session_token {
                builder = builder.with_token(token);
            }
        }
        let prefix = Path::parse(&config.prefix).context("a prefix of keys")?;
        Ok(Self::Bucket { store: Arc::new(builder.build()?), prefix })
    }

    pub(crate) fn store(&self) -> Arc<dyn ObjectStore> {
        match self {
            Self::Directory(store) => Arc::clone(store) as Arc<dyn ObjectStore>,
            Self::Bucket { store, .. } => Arc::clone(store) as Arc<dyn ObjectStore>,
        }
    }

    pub(crate) fn prefixed(&self, path: &Path) -> Path {
        match self {
            Self::Directory(_) => path.clone(),
            Self::Bucket { prefix, .. } => prefix.parts().chain(path.parts()).collect(),
        }
    }

    /// A bucket lists by key, a directory as it comes.
    pub(crate) fn lists_in_order(&self) -> bool {
        matches!(self, Self::Bucket { .. })
    }

    pub(crate) async fn signed(
        &self,
        method: Method,
        path: &Path,
        lasts: Duration,
    ) -> Result<Option<Url>> {
        match self {
            Self::Directory(_) => Ok(None),
            Self::Bucket { store, .. } => {
                let signed = store.signed_url(method, path, lasts).await;
                signed.map(Some).map_err(|error| failed("sign a link to", &error))
            }
        }
    }

    /// Looked at before anything is written, because what was written is left behind where it cannot be put.
    fn has_directory(&self, path: &Path) -> bool {
        match self {
            Self::Directory(store) => {
                store.path_to_filesystem(path).is_ok_and(|place| place.is_dir())
            }
            Self::Bucket { .. } => false,
        }
    }

    /// Small ones at once, large ones in parts. Nothing of it is seen until all of it is there.
    pub(crate) async fn write<S>(&self, (path, key): (&Path, &Key), bytes: S) -> Result<u64>
    where
        S: Stream<Item = io::Result<Bytes>> + Send,
    {
        if self.has_directory(path) {
            return Err(in_the_way(key));
        }
        let mut bytes = std::pin::pin!(bytes);
        let mut start = BytesMut::new();
        let mut ended = false;
        while start.len() < PART_BYTES {
            let Some(piece) = bytes.next().await else {
                ended = true;
                break;
            };
            start.extend_from_slice(&piece.map_err(broken)?);
        }
        let mut size = start.len() as u64;
        if ended {
            let put = self.store().put(path, start.freeze().into()).await;
            put.map_err(|error| unwritten(key, &error))?;
            return Ok(size);
        }
        let upload = self.store().put_multipart(path).await;
        let upload = upload.map_err(|error| unwritten(key, &error))?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        upload.put(start.freeze());
        while let Some(piece) = bytes.next().await {
            let ready = upload.wait_for_capacity(PARTS_MAX).await;
            let written = ready.map_err(|error| failed("write", &error));
            match written.and_then(|()| piece.map_err(broken)) {
                Ok(piece) => {
                    size += piece.len() as u64;
                    upload.put(piece);
                }
                Err(failure) => {
                    // What cannot be taken back is the storage's to forget.
                    let _ = upload.abort().await;
                    return Err(failure);
                }
            }
        }
        upload.finish().await.map_err(|error| unwritten(key, &error))?;
        Ok(size)
    }
}

fn unwritten(key: &Key, error: &object_store::Error) -> Error {
    if !is_in_the_way(error) {
        return failed("write", error);
    }
    in_the_way(key)
}

fn in_the_way(key: &Key) -> Error {
    let detail = format!("a file and a directory cannot have one name: {key}");
    Error::Conflict { code: Conflict::NameTaken, detail }
}

/// Whoever sends it has failed, and knows why.
fn broken(error: io::Error) -> Error {
    Error::Internal(anyhow::Error::new(error).context("read what is to be written"))
}
