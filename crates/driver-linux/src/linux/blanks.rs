//! Directories of sandboxes to come, each with the files that a create and a delete write first, empty. A new file
//! takes a file system up to half a millisecond: ext4 without a journal looks at all that was deleted lately. Nobody
//! waits for it when it is made before.
//!
//! They are a convenience: where there is none, or it cannot be used, everything is made when it is wanted.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use super::{Inner, LinuxDriver};

/// Creates in quick succession beyond these make their own.
const BLANKS: usize = 4;
/// How long after one was used the next is made, so that the sandbox that uses it is not kept waiting.
const PAUSE: Duration = Duration::from_millis(20);
/// The file in a sandbox's directory that its tombstone will be.
const TOMB: &str = "tomb";
/// Under what names files of a sandbox are written before they get their own.
const FILES: [&str; 3] = ["spec.tmp", "run.tmp", TOMB];

pub(super) struct Blanks {
    dir: PathBuf,
    ready: Mutex<Vec<PathBuf>>,
    used: Notify,
}

impl Blanks {
    /// Those of a server before us go.
    pub(super) fn open(dir: PathBuf) -> Self {
        let _ = fs::remove_dir_all(&dir);
        let used = Notify::new();
        used.notify_one();
        Self { dir, ready: Mutex::default(), used }
    }

    /// Makes `place` from a blank. Where there is none it is up to the caller.
    pub(super) fn take(&self, place: &Path) {
        let Some(blank) = self.ready().pop() else { return };
        self.used.notify_one();
        if fs::rename(&blank, place).is_err() {
            let _ = fs::remove_dir_all(blank);
        }
    }

    /// Makes what is missing; `false` when it cannot be, as on a full disk.
    fn fill(&self) -> bool {
        while self.ready().len() < BLANKS {
            match self.make() {
                Ok(blank) => self.ready().push(blank),
                Err(_) => return false,
            }
        }
        true
    }

    fn make(&self) -> io::Result<PathBuf> {
        let name = keeper::random_hex::<6>().map_err(io::Error::other)?;
        let blank = self.dir.join(name);
        fs::create_dir_all(&blank)?;
        for file in FILES {
            File::create(blank.join(file))?;
        }
        Ok(blank)
    }

    fn ready(&self) -> MutexGuard<'_, Vec<PathBuf>> {
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
                let _ = tokio::task::spawn_blocking(move || filling.blanks.fill()).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_made_from_a_blank_or_left_to_the_caller() {
        let dir = tempfile::tempdir().unwrap();
        let blanks = Blanks::open(dir.path().join("blank"));
        let place = dir.path().join("place");
        blanks.take(&place);
        assert!(!place.exists());
        assert!(blanks.fill());
        blanks.take(&place);
        for file in FILES {
            assert_eq!(fs::metadata(place.join(file)).unwrap().len(), 0, "{file}");
        }
        // What is there already stays as it is, and the blank that was for it goes.
        fs::write(place.join("spec.json"), "spec").unwrap();
        blanks.take(&place);
        assert_eq!(fs::read(place.join("spec.json")).unwrap(), b"spec");
        assert_eq!(fs::read_dir(dir.path().join("blank")).unwrap().count(), BLANKS - 2);
    }

    #[test]
    fn blanks_that_cannot_be_made_are_done_without() {
        let dir = tempfile::tempdir().unwrap();
        let in_the_way = dir.path().join("blank");
        let blanks = Blanks::open(in_the_way.clone());
        fs::write(in_the_way, "").unwrap();
        assert!(!blanks.fill());
        let place = dir.path().join("place");
        blanks.take(&place);
        assert!(!place.exists());
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
