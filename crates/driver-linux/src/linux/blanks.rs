//! What sandboxes to come are made from: directories with the files that a create and a delete write first, and disks.
//! A new file takes a file system up to half a millisecond (ext4 without a journal looks at all that was deleted lately),
//! disks a third of one. Nobody waits for them when they are made before.
//!
//! They are a convenience: where there is none, or it cannot be used, everything is made when it is wanted.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Context;
use keeper::spread::Spread;
use tokio::sync::Notify;

use super::{Inner, LinuxDriver, layout};
use crate::pool::DiskPool;

/// Of each. Creates in quick succession beyond these make their own.
const BLANKS: usize = 4;
/// Disks of all kinds: sandboxes of different sizes may take turns.
const DISKS_MAX: usize = 2 * BLANKS;
/// How long after one was used the next is made, so that the sandbox that uses it is not kept waiting.
const PAUSE: Duration = Duration::from_millis(20);
/// The file in a sandbox's directory that its tombstone will be.
const TOMB: &str = "tomb";
/// Under what names files of a sandbox are written before they get their own.
const FILES: [&str; 2] = ["run.tmp", TOMB];
/// The same for the spec, which is flushed.
const SPEC: &str = "spec.tmp";

pub(super) struct Blanks {
    dir: PathBuf,
    /// `None` until it could be made in `dir`, as on a full disk.
    dirs: Mutex<Option<Spread>>,
    ready: Mutex<Ready>,
    used: Notify,
}

#[derive(Default)]
struct Ready {
    dirs: Vec<PathBuf>,
    /// Oldest first.
    disks: Vec<(Kind, String)>,
    /// What was asked for last.
    wanted: Option<Kind>,
}

/// What disks are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) disk_gb: u32,
    pub(super) user: u32,
}

impl Blanks {
    /// Those of a server before us go.
    pub(super) fn open(dir: PathBuf, pool: &DiskPool) -> Self {
        let dirs = Mutex::new(Spread::open(dir.clone()).ok());
        pool.remove_blanks();
        let used = Notify::new();
        used.notify_one();
        Self { dir, dirs, ready: Mutex::default(), used }
    }

    /// Makes the directory `place` from a blank. Where there can be none it is up to the caller.
    pub(super) fn take_dir(&self, place: &Path) {
        let ready = self.ready().dirs.pop();
        let Some(blank) = ready.or_else(|| self.make_dir().ok()) else { return };
        self.used.notify_one();
        if fs::rename(&blank, place).is_err() {
            let _ = fs::remove_dir_all(blank);
        }
    }

    /// Makes the disks of `sandbox` from a blank, of another size if need be; whether there was one.
    pub(super) fn take_disks(&self, pool: &DiskPool, sandbox: &str, kind: Kind) -> bool {
        let blank = {
            let mut ready = self.ready();
            ready.wanted = Some(kind);
            let disks = ready.disks.iter();
            let same = disks.clone().position(|(of, _)| *of == kind);
            let place = same.or_else(|| disks.clone().position(|(of, _)| of.user == kind.user));
            place.map(|place| ready.disks.remove(place))
        };
        self.used.notify_one();
        let Some((of, name)) = blank else { return false };
        let fits = of == kind || pool.set_limit(&name, kind.disk_gb).is_ok();
        let used = fits && pool.use_blank(&name, sandbox);
        if !used {
            let _ = pool.remove(&name);
        }
        used
    }

    /// Makes what is missing, and gives up when that cannot be, as on a full disk.
    fn fill(&self, pool: &DiskPool) -> anyhow::Result<()> {
        while self.ready().dirs.len() < BLANKS {
            let blank = self.make_dir()?;
            if let Err(error) = layout::make_room(&blank.join(SPEC)) {
                let _ = fs::remove_dir_all(&blank);
                return Err(error).context("make room for a spec in advance");
            }
            self.ready().dirs.push(blank);
        }
        let Some(kind) = self.ready().wanted else { return Ok(()) };
        let has = |ready: &Ready| ready.disks.iter().filter(|(of, _)| *of == kind).count();
        while has(&self.ready()) < BLANKS {
            pool.check_room().map_err(anyhow::Error::from)?;
            let Some(made) = pool.create_blank(kind.disk_gb, kind.user) else { return Ok(()) };
            self.ready().disks.push((kind, made?));
        }
        let extra: Vec<_> = {
            let mut ready = self.ready();
            let extra = ready.disks.len().saturating_sub(DISKS_MAX);
            ready.disks.drain(..extra).collect()
        };
        extra.iter().try_for_each(|(_, name)| pool.remove(name))
    }

    fn make_dir(&self) -> anyhow::Result<PathBuf> {
        let blank = self.new_place()?;
        let files = || {
            fs::create_dir(&blank)?;
            FILES.iter().try_for_each(|file| File::create(blank.join(file)).map(drop))
        };
        if let Err(error) = files() {
            // Nobody knows of half a blank.
            let _ = fs::remove_dir_all(&blank);
            return Err(error).context("make a directory in advance");
        }
        Ok(blank)
    }

    fn new_place(&self) -> anyhow::Result<PathBuf> {
        let name = keeper::random_hex::<6>()?;
        let mut dirs = self.dirs.lock().expect("no holder of this lock panics");
        let opened = match dirs.take() {
            Some(opened) => opened,
            None => {
                Spread::open(self.dir.clone()).context("make room for directories in advance")?
            }
        };
        Ok(dirs.insert(opened).place(&name))
    }

    fn ready(&self) -> MutexGuard<'_, Ready> {
        self.ready.lock().expect("no holder of this lock panics")
    }
}

/// Lets what is to be written at `path` go into the file that the sandbox in `dir` has for it.
pub(super) fn use_tomb(dir: &Path, path: &Path) {
    let _ = fs::rename(dir.join(TOMB), path);
}

impl LinuxDriver {
    /// Keeps blanks ready until the driver closes.
    pub(super) fn keep_blanks(&self) {
        let inner: Arc<Inner> = Arc::clone(&self.inner);
        self.inner.tasks.spawn(async move {
            loop {
                let used = async {
                    inner.blanks.used.notified().await;
                    tokio::time::sleep(PAUSE).await;
                };
                tokio::select! {
                    () = inner.cancel.cancelled() => break,
                    () = used => {}
                }
                let filling = Arc::clone(&inner);
                let fill = move || filling.blanks.fill(&filling.pool);
                if let Ok(Err(error)) = tokio::task::spawn_blocking(fill).await {
                    tracing::debug!(error = format!("{error:#}"), "nothing is made in advance");
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::pool::{Disk, DiskConfig, DiskKind};

    fn stage(kind: DiskKind) -> (tempfile::TempDir, DiskPool, Blanks) {
        let dir = tempfile::tempdir().unwrap();
        let disk = DiskConfig { kind, reserve_bytes: 0, ..DiskConfig::default() };
        let pool = DiskPool::open(dir.path(), disk).unwrap();
        let blanks = Blanks::open(dir.path().join("blank"), &pool);
        (dir, pool, blanks)
    }

    #[test]
    fn a_directory_is_made_from_a_blank_or_left_to_the_caller() {
        let (dir, pool, blanks) = stage(DiskKind::Plain);
        let place = dir.path().join("place");
        let has_files = || {
            for file in FILES {
                assert_eq!(fs::metadata(place.join(file)).unwrap().len(), 0, "{file}");
            }
        };
        // One is made when it is wanted, but for what is flushed.
        blanks.take_dir(&place);
        has_files();
        assert!(!place.join(SPEC).exists());
        fs::remove_dir_all(&place).unwrap();
        blanks.fill(&pool).unwrap();
        blanks.take_dir(&place);
        has_files();
        let block = fs::metadata(place.join(SPEC)).unwrap().ino();
        layout::write_json(&place.join("spec.json"), &[1, 2]).unwrap();
        let spec = fs::read(place.join("spec.json")).unwrap();
        assert_eq!(serde_json::from_slice::<[u8; 2]>(&spec).unwrap(), [1, 2]);
        let spec = fs::metadata(place.join("spec.json")).unwrap();
        assert_eq!((spec.ino(), spec.len()), (block, 4096));
        // What is there already stays as it is, and the blank that was for it goes.
        fs::write(place.join("spec.json"), "spec").unwrap();
        blanks.take_dir(&place);
        assert_eq!(fs::read(place.join("spec.json")).unwrap(), b"spec");
        let parts = fs::read_dir(dir.path().join("blank")).unwrap().flatten();
        let left = parts.map(|part| fs::read_dir(part.path()).unwrap().count());
        assert_eq!(left.sum::<usize>(), BLANKS - 2);
    }

    #[test]
    fn blanks_that_cannot_be_made_are_done_without() {
        let (dir, pool, blanks) = stage(DiskKind::Plain);
        fs::remove_dir_all(dir.path().join("blank")).unwrap();
        fs::write(dir.path().join("blank"), "").unwrap();
        assert!(blanks.fill(&pool).is_err());
        let blanks = Blanks::open(dir.path().join("blank"), &pool);
        assert!(blanks.fill(&pool).is_err());
        let place = dir.path().join("place");
        blanks.take_dir(&place);
        assert!(!place.exists());
        // Until they can.
        fs::remove_file(dir.path().join("blank")).unwrap();
        blanks.take_dir(&place);
        assert!(place.exists());
    }

    mod needs_root {
        use std::io::ErrorKind;

        use super::*;

        const SMALL: Kind = Kind { disk_gb: 1, user: 1000 };
        const LARGE: Kind = Kind { disk_gb: 2, user: 1000 };

        fn blanks_in(dir: &Path) -> usize {
            let names = fs::read_dir(dir.join("pool")).unwrap().flatten();
            names.filter(|name| name.file_name().to_string_lossy().starts_with('.')).count()
        }

        #[test]
        fn disks_are_made_from_a_blank_of_their_kind_with_its_limit() {
            let (dir, pool, blanks) = stage(DiskKind::Btrfs);
            // Nobody knows yet what will be wanted.
            blanks.fill(&pool).unwrap();
            assert_eq!(blanks_in(dir.path()), 0);
            assert!(!blanks.take_disks(&pool, "a", SMALL));
            blanks.fill(&pool).unwrap();
            assert_eq!(blanks_in(dir.path()), BLANKS);
            assert!(!blanks.take_disks(&pool, "b", Kind { user: 0, ..SMALL }));
            for (kind, is_small) in [(SMALL, true), (LARGE, false)] {
                assert!(blanks.take_disks(&pool, "c", kind));
                let workspace = pool.path(Disk::Workspace, "c");
                assert_eq!(fs::metadata(&workspace).unwrap().uid(), 1000);
                let written = fs::write(workspace.join("file"), vec![7; (1 << 30) + (1 << 20)]);
                let refused = written.is_err_and(|error| error.kind() == ErrorKind::QuotaExceeded);
                assert_eq!(refused, is_small);
                pool.remove("c").unwrap();
            }
            // Different ones take turns, and they do not become more and more.
            for kind in [LARGE, SMALL, LARGE, SMALL, LARGE] {
                blanks.take_disks(&pool, "d", kind);
                let _ = pool.remove("d");
                blanks.fill(&pool).unwrap();
                assert!(blanks_in(dir.path()) <= DISKS_MAX);
            }
            // So small that the directories in it cannot be made: nothing of it is left.
            assert!(!blanks.take_disks(&pool, "e", Kind { disk_gb: 0, user: 1001 }));
            let before = blanks_in(dir.path());
            assert!(blanks.fill(&pool).is_err());
            assert_eq!(blanks_in(dir.path()), before);
            drop(blanks);
            Blanks::open(dir.path().join("blank"), &pool);
            assert_eq!(blanks_in(dir.path()), 0);
            pool.close();
        }
    }

    #[test]
    fn the_file_of_a_tombstone_is_written_over_and_may_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tombstone.tmp");
        use_tomb(dir.path(), &path);
        assert!(!path.exists());
        fs::write(dir.path().join(TOMB), "").unwrap();
        use_tomb(dir.path(), &path);
        assert!(path.exists());
    }
}
