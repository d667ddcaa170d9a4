//! Container images as templates: pulled from a registry or read from an archive, layer by layer,
//! each unpacked once for all images that have it. Nothing of an image runs while this happens.

use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use model::{Error, Result, TemplateName, is_public};
use oci::{Archive, Credentials, Image, Layer, Reference, Registry, RegistryOptions, Tree};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::builder::{Event, Tell};
use super::layers::put_on_top;
use super::meta::Meta;
use super::recipe::LIMITS;
use super::{Built, TemplateStore, passwd, wait_for_lock};
use crate::egress::is_own;

/// How registries are reached, and how much of an image is taken.
#[derive(Debug, Clone)]
pub struct ImageAccess {
    pub credentials: Credentials,
    /// Registries that are spoken to without TLS; those on loopback are.
    pub plain_http: Vec<String>,
    /// Hosts that may have a private address; a name that is not among them must be public.
    pub trusted: Trusted,
    /// Of all layers together, unpacked.
    pub bytes_max: u64,
    /// For a whole pull.
    pub time_max: Duration,
}

/// See [`ImageAccess::trusted`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trusted {
    /// Whoever asks may reach what this machine reaches.
    Everything,
    Hosts(Vec<String>),
}

/// Its time says when the image was last asked for.
pub(super) const USED: &str = "used";
const ENTRIES_MAX: u64 = 2_000_000;
const CONNECT_MAX: Duration = Duration::from_secs(10);
const GIB: u64 = 1 << 30;

impl Default for ImageAccess {
    fn default() -> Self {
        Self {
            credentials: Credentials::default(),
            plain_http: Vec::new(),
            trusted: Trusted::Everything,
            bytes_max: 20 * GIB,
            time_max: Duration::from_secs(30 * 60),
        }
    }
}

/// Whether the operator's list lets others than the operator have images of a reference.
pub(crate) fn is_listed(reference: &str, registries: &[String]) -> Result<bool> {
    let reference: Reference = reference.parse().map_err(told)?;
    let whole = format!("{}/{}", reference.registry(), reference.repository());
    Ok(registries.iter().any(|one| {
        let one = one.trim_end_matches('/');
        one == "*" || whole == one || whole.strip_prefix(one).is_some_and(|r| r.starts_with('/'))
    }))
}

/// Notes that an image is needed.
pub(crate) fn touch_image(store: &TemplateStore, name: &TemplateName) {
    // Without the note it only goes earlier, and then it is pulled again.
    let _ = File::create(store.dir(name).join(USED));
}

/// The host of a reference's registry, for [`Trusted::Hosts`].
pub(crate) fn registry_of(reference: &str) -> Result<String> {
    let reference: Reference = reference.parse().map_err(told)?;
    Ok(reference.registry().to_owned())
}

/// What an image becomes.
#[derive(Debug, Clone)]
struct Naming {
    /// Absent: one is made from the digest.
    name: Option<TemplateName>,
    reference: String,
    /// Goes by itself when no sandbox has needed it for a while.
    passing: bool,
}

/// Pulls `reference` and makes it a template: `name`, or one that is made from its digest. An image
/// that is here already is not fetched again.
///
/// # Errors
/// `Invalid` for what the registry refuses, `Unavailable` for what it does not answer.
pub async fn pull(
    store: &TemplateStore,
    reference: &str,
    name: Option<TemplateName>,
    access: &ImageAccess,
    tell: Tell<'_>,
) -> Result<Built> {
    let naming = Naming { name, reference: reference.to_owned(), passing: false };
    pull_as(store, naming, access, tell).await
}

/// For a sandbox or as a base: kept as long as it is used. A template that stands on it keeps its
/// layers.
pub(crate) async fn pull_passing(
    store: &TemplateStore,
    reference: &str,
    access: &ImageAccess,
    tell: Tell<'_>,
) -> Result<Built> {
    let naming = Naming { name: None, reference: reference.to_owned(), passing: true };
    pull_as(store, naming, access, tell).await
}

async fn pull_as(
    store: &TemplateStore,
    naming: Naming,
    access: &ImageAccess,
    tell: Tell<'_>,
) -> Result<Built> {
    let reference: Reference = naming.reference.parse().map_err(told)?;
    let pulling = pull_within(store, &reference, naming, access, tell);
    let seconds = access.time_max.as_secs();
    let late = || Error::unavailable(format!("pulling {reference} took longer than {seconds} s"));
    timeout(access.time_max, pulling).await.map_err(|_| late())?
}

async fn pull_within(
    store: &TemplateStore,
    reference: &Reference,
    naming: Naming,
    access: &ImageAccess,
    tell: Tell<'_>,
) -> Result<Built> {
    let registry = Registry::new(RegistryOptions {
        dial: dial(access.trusted.clone()),
        credentials: access.credentials.clone(),
        plain_http: access.plain_http.clone(),
    })
    .map_err(told)?;
    let image = registry.image(reference).await.map_err(told)?;
    let packed: u64 = image.layers.iter().map(|layer| layer.bytes).sum();
    if packed > access.bytes_max {
        return Err(too_large(access));
    }
    let _held = store.layers.hold()?;
    let total = image.layers.len();
    let mut left = access.bytes_max;
    for (index, layer) in image.layers.iter().enumerate() {
        if !store.layers.has(&layer.diff_id) {
            let mut tell = |bytes| {
                tell(Event::Layer { number: index + 1, total, bytes, of: layer.bytes });
            };
            fetch(store, &registry, (reference, layer), left, &mut tell).await?;
        }
        left = left.saturating_sub(store.layers.bytes(&layer.diff_id));
    }
    publish(store, naming, image)
}

/// One layer, from the registry to the store. Two that want the same one take turns.
async fn fetch(
    store: &TemplateStore,
    registry: &Registry,
    (reference, layer): (&Reference, &Layer),
    bytes_max: u64,
    tell: &mut (dyn FnMut(u64) + Send),
) -> Result<()> {
    let blobs = store.layers.blobs()?;
    let path = blobs.join(layer.digest.trim_start_matches("sha256:"));
    let lock = File::create(path.with_extension("lock")).context("open a layer's lock")?;
    while lock.try_lock().is_err() {
        sleep(Duration::from_millis(200)).await;
    }
    if store.layers.has(&layer.diff_id) {
        return Ok(());
    }
    let (sender, mut receiver) = tokio::sync::watch::channel(0u64);
    let progress = |bytes| {
        sender.send_replace(bytes);
    };
    let download = registry.download(reference, layer, &path, &progress);
    tokio::pin!(download);
    loop {
        tokio::select! {
            done = &mut download => {
                done.map_err(told)?;
                break;
            }
            Ok(()) = receiver.changed() => {
                let bytes = *receiver.borrow_and_update();
                tell(bytes);
                // Often enough for people, and for the log of a slow line.
                tokio::select! {
                    done = &mut download => {
                        done.map_err(told)?;
                        break;
                    }
                    () = sleep(Duration::from_millis(200)) => {}
                }
            }
        }
    }
    tell(layer.bytes);
    let (store, layer) = (store.clone(), layer.clone());
    let from = path.clone();
    let unpacked =
        tokio::task::spawn_blocking(move || unpack(&store, &layer.diff_id, &from, bytes_max));
    let unpacked = unpacked.await.context("unpack a layer")?;
    // Whole or wrong, nothing more comes of it.
    let _ = fs::remove_file(&path);
    let _ = fs::remove_file(path.with_extension("lock"));
    unpacked
}

fn unpack(store: &TemplateStore, diff_id: &str, blob: &Path, bytes_max: u64) -> Result<()> {
    let layers = &store.layers;
    let unfinished = layers.begin()?;
    let unpack = || -> Result<()> {
        let file = File::open(blob).context("open a layer")?;
        let tree = Tree::open(&unfinished.tree()).context("open a tree")?;
        let limits = oci::Limits { bytes_max, entries_max: ENTRIES_MAX };
        let unpacked = oci::unpack(file, tree, limits).map_err(told)?;
        if unpacked.diff_id != diff_id {
            let detail = "a layer's content is not what the image's configuration says";
            return Err(Error::invalid("image", detail));
        }
        Ok(layers.publish(&unfinished, diff_id, unpacked.bytes)?)
    };
    let unpacked = unpack();
    if unpacked.is_err() {
        layers.drop_unfinished(&unfinished);
    }
    unpacked
}

/// Makes a template of an archive that `docker save`, `podman save` or the like wrote. `image` says
/// which of several.
///
/// # Errors
/// `Invalid` for what is no such archive.
pub fn import(
    store: &TemplateStore,
    archive: impl std::io::Read,
    image: Option<&str>,
    name: TemplateName,
    tell: Tell<'_>,
) -> Result<Built> {
    let access = ImageAccess::default();
    let _held = store.layers.hold()?;
    let unfinished = store.layers.begin()?;
    let made = (|| {
        let archive = Archive::read(archive, &unfinished.tree(), access.bytes_max).map_err(told)?;
        let found = archive.image(image).map_err(told)?;
        let total = found.layers.len();
        let mut left = access.bytes_max;
        for (index, layer) in found.layers.iter().enumerate() {
            let (bytes, of) = (layer.bytes, layer.bytes);
            tell(Event::Layer { number: index + 1, total, bytes, of });
            if !store.layers.has(&layer.diff_id) {
                unpack(store, &layer.diff_id, &archive.blob(&layer.digest), left)?;
            }
            left = left.saturating_sub(store.layers.bytes(&layer.diff_id));
        }
        let reference = image.unwrap_or(name.as_str()).to_owned();
        publish(store, Naming { name: Some(name), reference, passing: false }, found)
    })();
    store.layers.drop_unfinished(&unfinished);
    made
}

fn publish(store: &TemplateStore, naming: Naming, image: Image) -> Result<Built> {
    let hex = image.digest.trim_start_matches("sha256:");
    let name = match naming.name {
        Some(name) => name,
        None => format!("{}{}", TemplateName::OF_IMAGE, &hex[..40]).parse()?,
    };
    let dir = store.dir(&name);
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let _lock = wait_for_lock(&dir)?;
    File::create(dir.join(USED)).context("note the use of an image")?;
    let mut ids = Vec::new();
    for layer in &image.layers {
        put_on_top(&mut ids, layer.diff_id.clone());
    }
    let trees: Vec<PathBuf> = ids.iter().rev().map(|id| store.layers.tree(id)).collect();
    let config = image.config;
    let user = if config.user.is_empty() { "root".to_owned() } else { config.user };
    let workdir = Some(config.working_dir).filter(|dir| dir != "/" && has_dir(&trees, dir));
    let kept = name.is_of_image() && store.get(&name)?.is_some_and(|built| !built.passing);
    let meta = Meta {
        name: name.clone(),
        digest: image.digest,
        built_at: Timestamp::now(),
        bytes: ids.iter().map(|id| store.layers.bytes(id)).sum(),
        uid: Some(passwd::uid(&user, &trees)),
        user,
        sudo: false,
        nesting: false,
        limits: LIMITS,
        env: config.env,
        layers: ids,
        workdir,
        start: config.command,
        image: Some(naming.reference),
        passing: naming.passing && !kept,
    };
    store.publish(&meta).context("publish the image")?;
    store.get(&name)?.ok_or_else(|| Error::unavailable(format!("image {name} vanished")))
}

/// Whether one of the layers has that directory.
fn has_dir(layers: &[PathBuf], path: &str) -> bool {
    let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
    let relative = path.trim_start_matches('/');
    !relative.is_empty()
        && layers.iter().any(|layer| {
            let root = rustix::fs::openat(CWD, layer, flags, Mode::empty());
            let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
            root.and_then(|root| rustix::fs::openat2(root, relative, flags, Mode::empty(), inside))
                .is_ok()
        })
}

/// Resolves on this machine, checks every address, dials what was checked.
fn dial(trusted: Trusted) -> oci::Dial {
    Arc::new(move |host, port| {
        let trusted = trusted.clone();
        Box::pin(async move {
            let may = |address: IpAddr| match &trusted {
                Trusted::Everything => true,
                Trusted::Hosts(hosts) => {
                    let named = format!("{host}:{port}");
                    hosts.iter().any(|one| *one == host || *one == named)
                        || (is_public(address.to_canonical()) && !is_own(address))
                }
            };
            let lookup = timeout(CONNECT_MAX, tokio::net::lookup_host((host.as_str(), port)));
            let found = lookup.await.map_err(|_| "its name is not found in time".to_owned())?;
            let found = found.map_err(|_| "there is no such name".to_owned())?;
            let mut last = "its address is private, and it is not in images.registries".to_owned();
            for address in found.filter(|address| may(address.ip())).take(4) {
                match timeout(CONNECT_MAX, TcpStream::connect(address)).await {
                    Ok(Ok(stream)) => return Ok(stream),
                    Ok(Err(error)) => last = error.to_string(),
                    Err(_) => last = "it does not answer".to_owned(),
                }
            }
            Err(last)
        })
    })
}

fn too_large(access: &ImageAccess) -> Error {
    let gib = access.bytes_max / GIB;
    Error::invalid("image", format!("the image is larger than {gib} GiB"))
}

fn told(error: oci::Error) -> Error {
    use oci::Error as Oci;
    match error {
        Oci::Invalid(detail)
        | Oci::Unknown(detail)
        | Oci::Denied(detail)
        | Oci::Corrupt(detail)
        | Oci::TooLarge(detail) => Error::invalid("image", detail),
        Oci::Unavailable(detail) => Error::unavailable(detail),
        Oci::DiskFull => {
            Error::DiskFull { detail: "no room on this machine's disk for the image".into() }
        }
        Oci::Internal(error) => Error::Internal(error),
    }
}
