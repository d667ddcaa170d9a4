//! Templates: the root file systems that sandboxes are made from.
//!
//! On disk a template is `DIR/templates/NAME/DIGEST/meta.json`, which names its layers in
//! `DIR/layers`, with a symlink `current` that names the digest to use. Layers are whole before a
//! build names them, a build is flushed and renamed before `current` moves: a half-made template is
//! never seen. Older digests stay until [`TemplateStore::collect`] is told that no sandbox stands on
//! them, layers until no template has them. An image is a template whose name is made from its digest.
//!
//! Files in layers belong to the canonical range (uids 0 to 65535 as they are); mapping them into a
//! sandbox's own range is the launcher's work. What runs while one is made runs in a sandbox.

mod agent;
mod base;
mod builder;
mod code;
mod context;
mod copy;
mod definition;
mod dockerfile;
mod host;
mod image;
mod layers;
pub(crate) mod leftovers;
mod meta;
mod passwd;
mod recipe;
mod skeleton;
mod sources;
mod users;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use driver::Template;
use model::{Error, Result, TemplateName};

use crate::privilege::Privilege;

pub use self::agent::publish_agent;
pub use self::builder::{BuildOptions, Event, Tell, build};
pub use self::definition::{Definition, definition, definitions};
pub use self::dockerfile::dockerfile;
pub use self::host::host_skeleton;
pub use self::image::{ImageAccess, Trusted, import, pull};
pub(crate) use self::image::{is_listed, pull_passing, registry_of, touch_image};
pub(crate) use self::layers::Layers;
pub use self::leftovers::clean_up;
use self::meta::Meta;
pub use self::recipe::Recipe;
pub use oci::{Credentials, Login};

/// The template that needs no building: a read-only view of this machine.
pub const HOST: &str = "host";

const CURRENT: &str = "current";
const META: &str = "meta.json";
const ROOTFS: &str = "rootfs";
const LOCK: &str = ".lock";
/// Names that begin so are builds under way, or what is left of one.
const UNFINISHED: &str = ".unfinished-";
const HOST_SKELETON: &str = ".host-skeleton";

/// A template that can be used.
#[derive(Debug, Clone, PartialEq)]
pub struct Built {
    pub template: Template,
    /// Lower directories, the topmost first.
    pub layers: Vec<PathBuf>,
    /// What they are called, the lowest first; none in what older versions built.
    pub layer_ids: Vec<String>,
    /// The id of the template's user.
    pub uid: u32,
    /// Where commands run, if not in the workspace.
    pub workdir: Option<String>,
    /// Started in every sandbox.
    pub start: Vec<String>,
    /// An image that goes by itself when no sandbox has needed it for a while.
    pub passing: bool,
    /// Processes may gain privileges inside (`no_new_privs` stays off).
    pub sudo: bool,
    /// Programs may make namespaces of their own inside.
    pub nesting: bool,
}

/// The templates of one data directory.
#[derive(Debug, Clone)]
pub struct TemplateStore {
    data_dir: PathBuf,
    root: PathBuf,
    host_skeleton: PathBuf,
    host_nesting: bool,
    layers: Layers,
}

/// How long a layer stays that only a build step of late remembers.
const CACHE_KEEP: Duration = Duration::from_secs(24 * 3600);

impl TemplateStore {
    /// `data_dir` is the server's; the templates are in `data_dir/templates`.
    pub fn open(data_dir: &Path) -> Result<Self> {
        crate::linux::make_data_dir(data_dir)?;
        // Layers are opened from elsewhere than where this process is.
        let data_dir = fs::canonicalize(data_dir).context("find the data directory")?;
        let root = data_dir.join("templates");
        fs::create_dir_all(&root).context("make the template directory")?;
        let layers = Layers::open(&data_dir)?;
        // The home in it belongs to whom its ids say, so another map has another one.
        let host_skeleton = match Privilege::current() {
            Privilege::Namespace { ids: 1 } => root.join(format!("{HOST_SKELETON}-1")),
            Privilege::Namespace { .. } | Privilege::Host => root.join(HOST_SKELETON),
        };
        Ok(Self { data_dir, root, host_skeleton, layers, host_nesting: false })
    }

    /// With the capability `nesting` for the template `host`.
    pub fn with_host_nesting(self, host_nesting: bool) -> Self {
        Self { host_nesting, ..self }
    }

    /// Every template that can be used now, `host` first, then by name.
    pub fn list(&self) -> Result<Vec<Built>> {
        let mut all = vec![self.host()];
        for name in self.names()? {
            all.extend(self.get(&name)?);
        }
        Ok(all)
    }

    /// `None` when it is not built.
    pub fn get(&self, name: &TemplateName) -> Result<Option<Built>> {
        if let Some(own) = self.built_in(name) {
            return Ok(Some(own));
        }
        self.read(&self.dir(name).join(CURRENT))
    }

    /// One exact build (`sha256:…`), also when `current` has moved on: what a sandbox was made from.
    pub fn get_digest(&self, name: &TemplateName, digest: &str) -> Result<Option<Built>> {
        if let Some(own) = self.built_in(name) {
            return Ok(Some(own));
        }
        let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
        if hex.is_empty() || !hex.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Ok(None);
        }
        self.read(&self.dir(name).join(hex))
    }

    /// The log of the last build of `name`, whether it worked or not.
    pub fn build_log(&self, name: &TemplateName) -> PathBuf {
        self.dir(name).join("build.log")
    }

    /// Makes `name` unusable for new sandboxes; `false` when it was not built. The bytes go with
    /// the next [`TemplateStore::collect`], because sandboxes may stand on them.
    ///
    /// # Errors
    /// `Conflict` for a built-in template that sandboxes are made from, with their names.
    pub fn remove(&self, name: &TemplateName) -> Result<bool> {
        if name.as_str() == HOST {
            return Err(Error::invalid("name", "host is this machine's own and was never built"));
        }
        let users = users::of(&self.data_dir, name)?;
        if !users.is_empty() && definition(name).is_some() {
            return Err(Error::wrong_state(format!(
                "template {name} is used by: {}",
                users.join(", ")
            )));
        }
        let dir = self.dir(name);
        match fs::remove_file(dir.join(CURRENT)) {
            Ok(()) => {
                sync_dir(&dir)?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(anyhow::Error::from(error).context("unlink template").into()),
        }
    }

    /// Deletes builds that are neither current nor `in_use(name, digest)`, what unfinished builds
    /// left behind, and layers that no template has any more. Answers how many.
    pub fn collect(&self, in_use: &dyn Fn(&TemplateName, &str) -> bool) -> Result<u32> {
        self.collect_older(in_use, CACHE_KEEP)
    }

    fn collect_older(
        &self,
        in_use: &dyn Fn(&TemplateName, &str) -> bool,
        cache_keep: Duration,
    ) -> Result<u32> {
        let mut removed = 0;
        let mut layers = BTreeSet::new();
        if let Some(_lock) = try_lock(&self.root)? {
            removed += remove_unfinished(&self.root)?;
            removed += self.collect_code_roots(in_use)?;
        }
        for name in self.names()? {
            let dir = self.dir(&name);
            // A build under way holds the lock; its directory is collected next time.
            if let Some(_lock) = try_lock(&dir)? {
                removed += remove_unfinished(&dir)?;
                removed += self.collect_builds(&name, in_use, cache_keep)?;
            }
            for hex in digests(&dir)? {
                layers.extend(Meta::read(&dir.join(&hex))?.layers);
            }
        }
        Ok(removed + self.layers.collect(&layers, cache_keep)?)
    }

    /// Those of one template, whose lock the caller holds.
    fn collect_builds(
        &self,
        name: &TemplateName,
        in_use: &dyn Fn(&TemplateName, &str) -> bool,
        keep: Duration,
    ) -> Result<u32> {
        let dir = self.dir(name);
        let mut removed = 0;
        let current = fs::read_link(dir.join(CURRENT)).ok();
        for hex in digests(&dir)? {
            let is_current = current.as_deref() == Some(Path::new(&hex));
            if in_use(name, &format!("sha256:{hex}")) {
                continue;
            }
            let passing = is_current
                && Meta::read(&dir.join(&hex))?.passing
                && last_use(&dir).is_none_or(|age| age >= keep);
            if passing {
                fs::remove_file(dir.join(CURRENT)).context("forget an image")?;
            }
            if passing || !is_current {
                remove_build(&dir, &hex)?;
                removed += 1;
            }
        }
        if removed > 0 && digests(&dir)?.is_empty() && name.is_of_image() {
            fs::remove_dir_all(&dir).context("forget an image")?;
        }
        Ok(removed)
    }

    /// Where [`host_skeleton`] lies.
    pub fn host_skeleton_dir(&self) -> &Path {
        &self.host_skeleton
    }

    fn host(&self) -> Built {
        Built { nesting: self.host_nesting, ..host::built(self.host_skeleton.clone()) }
    }

    fn dir(&self, name: &TemplateName) -> PathBuf {
        self.root.join(name.as_str())
    }

    fn names(&self) -> Result<Vec<TemplateName>> {
        let mut names: Vec<TemplateName> = entries(&self.root)?
            .into_iter()
            .filter_map(|name| name.parse().ok())
            .filter(|name: &TemplateName| name.as_str() != HOST)
            .collect();
        names.sort();
        Ok(names)
    }

    fn read(&self, path: &Path) -> Result<Option<Built>> {
        // Resolved now, so that a `current` that moves later changes nothing for this sandbox.
        let dir = match fs::canonicalize(path) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(anyhow::Error::from(error).context("find template").into());
            }
        };
        Ok(Some(Meta::read(&dir)?.built(&dir, &self.layers)))
    }

    /// Makes what `meta` describes the current build of its name, whole or not at all.
    fn publish(&self, meta: &Meta) -> anyhow::Result<()> {
        let dir = self.dir(&meta.name);
        let hex = meta.digest.trim_start_matches("sha256:");
        let home = dir.join(hex);
        let unfinished = dir.join(format!("{UNFINISHED}{hex}"));
        remove_any(&unfinished)?;
        fs::create_dir(&unfinished).context("make the build's directory")?;
        let mut file = File::create_new(unfinished.join(META))?;
        serde_json::to_writer_pretty(&mut file, meta)?;
        file.sync_all()?;
        sync_dir(&unfinished)?;
        // The same layers and settings: the build that is there may be in use, and is as good.
        match home.exists() {
            true => fs::remove_dir_all(&unfinished)?,
            false => fs::rename(&unfinished, &home)?,
        }
        sync_dir(&dir)?;
        let link = dir.join(format!("{UNFINISHED}current"));
        remove_any(&link)?;
        symlink(hex, &link)?;
        fs::rename(&link, dir.join(CURRENT))?;
        Ok(sync_dir(&dir)?)
    }
}

/// Copies a hostile tree by descriptors: see [`copy`].
pub(crate) fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    copy::copy(from, to).map(drop)
}

/// How long ago an image was last asked for.
fn last_use(dir: &Path) -> Option<Duration> {
    fs::symlink_metadata(dir.join(image::USED)).ok()?.modified().ok()?.elapsed().ok()
}

fn remove_any(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn entries(dir: &Path) -> Result<Vec<String>> {
    let read = || -> io::Result<Vec<String>> {
        fs::read_dir(dir)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    Ok(read().with_context(|| format!("list {}", dir.display()))?)
}

fn digests(dir: &Path) -> Result<Vec<String>> {
    let is_digest = |name: &String| name.len() == 64 && name.bytes().all(|c| c.is_ascii_hexdigit());
    Ok(entries(dir)?.into_iter().filter(is_digest).collect())
}

/// Renamed first, so that a removal that is cut short leaves no template with files missing.
fn remove_build(dir: &Path, hex: &str) -> Result<()> {
    let doomed = dir.join(format!("{UNFINISHED}{hex}"));
    fs::rename(dir.join(hex), &doomed).context("set an old build aside")?;
    fs::remove_dir_all(&doomed).context("remove an old build")?;
    Ok(())
}

fn remove_unfinished(dir: &Path) -> Result<u32> {
    let mut removed = 0;
    for name in entries(dir)?.into_iter().filter(|name| name.starts_with(UNFINISHED)) {
        remove_any(&dir.join(&name)).with_context(|| format!("remove {name}"))?;
        removed += 1;
    }
    Ok(removed)
}

/// One build of a name at a time; the kernel lets go when the process ends, however it does.
fn lock(dir: &Path) -> Result<File> {
    try_lock(dir)?.ok_or_else(|| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Error::wrong_state(format!("template {name} is being built already"))
    })
}

/// For work of milliseconds only.
fn wait_for_lock(dir: &Path) -> Result<File> {
    let lock = || -> io::Result<File> {
        let file = File::create(dir.join(LOCK))?;
        file.lock()?;
        Ok(file)
    };
    Ok(lock().with_context(|| format!("lock {}", dir.display()))?)
}

fn try_lock(dir: &Path) -> Result<Option<File>> {
    let file = File::create(dir.join(LOCK)).context("open the template's lock")?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => {
            Err(anyhow::Error::from(error).context("lock the template").into())
        }
    }
}

fn sync_dir(dir: &Path) -> Result<()> {
    let sync = || File::open(dir)?.sync_all();
    Ok(sync().with_context(|| format!("flush {}", dir.display()))?)
}

#[cfg(test)]
mod tests;
