//! Templates: the root file systems that sandboxes are made from.
//!
//! On disk a template is `DIR/templates/NAME/DIGEST/{rootfs/, meta.json}` with a symlink `current`
//! that names the digest to use. A build is made under another name, flushed, renamed, and only then
//! does `current` move, so that a half-made template is never seen. Older digests stay until
//! [`TemplateStore::collect`] is told that no sandbox stands on them.
//!
//! Files in `rootfs` belong to the canonical range (uids 0 to 65535 as they are); mapping them into
//! a sandbox's own range is the launcher's work. This module mounts nothing and runs no sandbox.

mod build;
mod definition;
mod host;
mod size;
mod sources;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use driver::Template;
use jiff::Timestamp;
use model::{Limits, Result, TemplateName};
use serde::{Deserialize, Serialize};

pub use self::build::{Phase, Progress};
pub use self::definition::{Base, Definition, definition, definitions};
pub use self::host::host_skeleton;

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
    /// Processes may gain privileges inside (`no_new_privs` stays off).
    pub sudo: bool,
}

/// The templates of one data directory.
#[derive(Debug, Clone)]
pub struct TemplateStore {
    root: PathBuf,
}

/// What `meta.json` holds. New fields get `#[serde(default)]`.
#[derive(Debug, Serialize, Deserialize)]
struct Meta {
    name: TemplateName,
    digest: String,
    built_at: Timestamp,
    bytes: u64,
    user: String,
    sudo: bool,
    limits: Limits,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    packages: Vec<String>,
}

impl TemplateStore {
    /// `data_dir` is the server's; the templates are in `data_dir/templates`.
    pub fn open(data_dir: &Path) -> Result<Self> {
        let root = data_dir.join("templates");
        fs::create_dir_all(&root)
            .with_context(|| format!("make the template directory {}", root.display()))?;
        Ok(Self { root })
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
        if name.as_str() == HOST {
            return Ok(Some(self.host()));
        }
        self.read(&self.dir(name).join(CURRENT))
    }

    /// One exact build (`sha256:…`), also when `current` has moved on: what a sandbox was made from.
    pub fn get_digest(&self, name: &TemplateName, digest: &str) -> Result<Option<Built>> {
        if name.as_str() == HOST {
            return Ok(Some(self.host()));
        }
        let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
        if hex.is_empty() || !hex.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Ok(None);
        }
        self.read(&self.dir(name).join(hex))
    }

    /// Builds `definition` and makes it current. An existing build is kept unless `force`.
    /// Blocks for a minute or so; `progress` is told what happens.
    pub fn build(
        &self,
        definition: &Definition,
        progress: &mut dyn FnMut(Progress),
        force: bool,
    ) -> Result<Built> {
        let name = definition.name();
        if name.as_str() == HOST {
            return Ok(self.host());
        }
        if let (false, Some(built)) = (force, self.get(name)?) {
            return Ok(built);
        }
        let dir = self.dir(name);
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let _lock = lock(&dir)?;
        remove_unfinished(&dir)?;
        build::build(&dir, definition, progress)?;
        self.get(name)?.ok_or_else(|| {
            anyhow::anyhow!("template {name} vanished while it was being built").into()
        })
    }

    /// The log of the last build of `name`, whether it worked or not.
    pub fn build_log(&self, name: &TemplateName) -> PathBuf {
        self.dir(name).join("build.log")
    }

    /// Makes `name` unusable for new sandboxes; `false` when it was not built. The bytes go with
    /// the next [`TemplateStore::collect`], because sandboxes may stand on them.
    pub fn remove(&self, name: &TemplateName) -> Result<bool> {
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

    /// Deletes builds that are neither current nor `in_use(name, digest)`, and what unfinished builds
    /// left behind. Answers how many.
    pub fn collect(&self, in_use: &dyn Fn(&TemplateName, &str) -> bool) -> Result<u32> {
        let mut removed = 0;
        if let Some(_lock) = try_lock(&self.root)? {
            removed += remove_unfinished(&self.root)?;
        }
        for name in self.names()? {
            let dir = self.dir(&name);
            // A build under way holds the lock; its directory is collected next time.
            let Some(_lock) = try_lock(&dir)? else { continue };
            removed += remove_unfinished(&dir)?;
            let current = fs::read_link(dir.join(CURRENT)).ok();
            for hex in digests(&dir)? {
                let is_current = current.as_deref() == Some(Path::new(&hex));
                if !is_current && !in_use(&name, &format!("sha256:{hex}")) {
                    remove_build(&dir, &hex)?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }

    /// Where [`host_skeleton`] lies.
    pub fn host_skeleton_dir(&self) -> PathBuf {
        self.root.join(HOST_SKELETON)
    }

    fn host(&self) -> Built {
        host::built(self.host_skeleton_dir())
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
        let text = fs::read(dir.join(META))
            .with_context(|| format!("read the template's metadata in {}", dir.display()))?;
        let meta: Meta = serde_json::from_slice(&text)
            .with_context(|| format!("parse the template's metadata in {}", dir.display()))?;
        Ok(Some(Built {
            layers: vec![dir.join(ROOTFS)],
            sudo: meta.sudo,
            template: Template {
                name: meta.name,
                digest: meta.digest,
                built_at: Some(meta.built_at),
                bytes: Some(meta.bytes),
                user: meta.user,
                limits: meta.limits,
                env: meta.env,
            },
        }))
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
        fs::remove_dir_all(dir.join(&name)).with_context(|| format!("remove {name}"))?;
        removed += 1;
    }
    Ok(removed)
}

/// One build of a name at a time; the kernel lets go when the process ends, however it does.
fn lock(dir: &Path) -> Result<File> {
    try_lock(dir)?.ok_or_else(|| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        model::Error::wrong_state(format!("template {name} is being built already"))
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
