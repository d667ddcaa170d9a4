//! Layers: read-only trees, each named by what is in it, shared by every template that has it.
//!
//! ```text
//!  layers/ID/tree            the tree; ID is a digest (of the tree, or of an image layer's tar)
//!  layers/ID/layer.json      its size
//!  layers/.unfinished-…      being made; a rename makes it a layer
//!  layers/.blobs/DIGEST      a layer of an image as far as it was fetched
//!  layers/.cache/KEY         which layer a build step made, by what the step was
//! ```
//!
//! Whoever makes or picks layers holds the store's lock shared until a template names them; the
//! collection takes it alone.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::{UNFINISHED, entries, sync_dir};

const TREE: &str = "tree";
const ABOUT: &str = "layer.json";
const CACHE: &str = ".cache";
const BLOBS: &str = ".blobs";
const LOCK: &str = ".lock";

#[derive(Debug, Clone)]
pub(crate) struct Layers {
    root: PathBuf,
}

/// A layer under way. Removed by [`Layers::drop_unfinished`] or the next collection if it is not published.
#[derive(Debug)]
pub(crate) struct Unfinished {
    dir: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct About {
    bytes: u64,
}

impl Unfinished {
    pub(crate) fn tree(&self) -> PathBuf {
        self.dir.join(TREE)
    }
}

impl Layers {
    pub(crate) fn open(data_dir: &Path) -> anyhow::Result<Self> {
        let root = data_dir.join("layers");
        fs::create_dir_all(root.join(CACHE)).context("make the layer directory")?;
        Ok(Self { root })
    }

    pub(crate) fn tree(&self, id: &str) -> PathBuf {
        self.root.join(id).join(TREE)
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        is_id(id) && self.root.join(id).join(ABOUT).exists()
    }

    pub(crate) fn bytes(&self, id: &str) -> u64 {
        let text = fs::read(self.root.join(id).join(ABOUT)).unwrap_or_default();
        serde_json::from_slice(&text).map_or(0, |about: About| about.bytes)
    }

    /// Keeps the collection away until the file is dropped.
    pub(crate) fn hold(&self) -> anyhow::Result<File> {
        let file = File::create(self.root.join(LOCK)).context("open the layers' lock")?;
        file.lock_shared().context("hold the layers")?;
        Ok(file)
    }

    /// Where blobs of images wait to be whole; what is there is nobody's after a day.
    pub(crate) fn blobs(&self) -> anyhow::Result<PathBuf> {
        let dir = self.root.join(BLOBS);
        fs::create_dir_all(&dir).context("make a directory for downloads")?;
        Ok(dir)
    }

    pub(crate) fn begin(&self) -> anyhow::Result<Unfinished> {
        let dir = self.root.join(format!("{UNFINISHED}{}", keeper::random_hex::<8>()?));
        fs::create_dir(&dir).context("begin a layer")?;
        fs::create_dir(dir.join(TREE)).context("begin a layer")?;
        Ok(Unfinished { dir })
    }

    pub(crate) fn drop_unfinished(&self, unfinished: &Unfinished) {
        // What stays is collected.
        let _ = fs::remove_dir_all(&unfinished.dir);
    }

    /// Makes it a layer, durably. One that is there already is as good.
    pub(crate) fn publish(
        &self,
        unfinished: &Unfinished,
        id: &str,
        bytes: u64,
    ) -> anyhow::Result<()> {
        if !is_id(id) {
            bail!("not the name of a layer: {id:?}");
        }
        let about = serde_json::to_vec(&About { bytes }).context("describe a layer")?;
        fs::write(unfinished.dir.join(ABOUT), about).context("describe a layer")?;
        // The whole file system, because a tree of thousands of files has no cheaper barrier.
        rustix::fs::syncfs(File::open(&unfinished.dir)?).context("flush a layer")?;
        match fs::rename(&unfinished.dir, self.root.join(id)) {
            Ok(()) => {}
            Err(_) if self.has(id) => self.drop_unfinished(unfinished),
            Err(error) => return Err(error).context("name a layer"),
        }
        Ok(sync_dir(&self.root)?)
    }

    /// The layer that a step made before. To ask is to use: it stays for a while longer.
    pub(crate) fn cached(&self, key: &str) -> Option<String> {
        let path = self.root.join(CACHE).join(key);
        let id = fs::read_to_string(&path).ok().filter(|id| self.has(id))?;
        let used = File::options().write(true).open(&path);
        let _ = used.and_then(|file| file.set_modified(SystemTime::now()));
        Some(id)
    }

    pub(crate) fn remember(&self, key: &str, id: &str) -> anyhow::Result<()> {
        crate::linux::write_durably(&self.root.join(CACHE).join(key), id.as_bytes())
    }

    /// Deletes layers that are not in `keep` and that no step of late remembers; answers how many.
    /// Does nothing while somebody builds.
    pub(crate) fn collect(
        &self,
        keep: &BTreeSet<String>,
        cache_keep: Duration,
    ) -> anyhow::Result<u32> {
        let lock = File::create(self.root.join(LOCK)).context("open the layers' lock")?;
        if lock.try_lock().is_err() {
            return Ok(0);
        }
        let mut wanted = keep.clone();
        for key in entries(&self.root.join(CACHE))? {
            let path = self.root.join(CACHE).join(&key);
            let used = fs::metadata(&path).and_then(|meta| meta.modified())?;
            let young = used.elapsed().is_ok_and(|age| age < cache_keep);
            let id = fs::read_to_string(&path).unwrap_or_default();
            if young || keep.contains(&id) {
                wanted.insert(id);
            } else {
                fs::remove_file(&path).context("forget a build step")?;
            }
        }
        let mut removed = self.collect_blobs(cache_keep)?;
        for name in entries(&self.root)? {
            let unused = is_id(&name) && !wanted.contains(&name);
            if unused || name.starts_with(UNFINISHED) {
                self.remove(&name)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn collect_blobs(&self, keep: Duration) -> anyhow::Result<u32> {
        let mut removed = 0;
        let dir = self.blobs()?;
        for name in entries(&dir)? {
            let path = dir.join(name);
            let used = fs::metadata(&path).and_then(|meta| meta.modified())?;
            if used.elapsed().is_ok_and(|age| age >= keep) {
                fs::remove_file(&path).context("remove a download")?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Renamed first, so that a removal that is cut short leaves no layer with files missing.
    fn remove(&self, name: &str) -> anyhow::Result<()> {
        let doomed = self.root.join(format!("{UNFINISHED}{name}"));
        if !name.starts_with(UNFINISHED) {
            fs::rename(self.root.join(name), &doomed).context("set a layer aside")?;
        }
        let doomed = if name.starts_with(UNFINISHED) { self.root.join(name) } else { doomed };
        match fs::remove_dir_all(&doomed) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).context("remove a layer")
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// A layer that is in the stack already is moved: what it says is said last, and the kernel takes no
/// directory twice.
pub(super) fn put_on_top(layers: &mut Vec<String>, layer: String) {
    layers.retain(|other| *other != layer);
    layers.push(layer);
}

pub(super) fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|c| c.is_ascii_hexdigit())
}
