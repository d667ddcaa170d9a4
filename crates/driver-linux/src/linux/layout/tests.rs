//! A directory that is opened while somebody removes it.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::template::leftovers;

#[test]
fn a_lock_of_a_file_that_is_gone_is_not_one() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("yard");
    let mut opened = 0;
    let (layout, _lock) = Layout::open_alone_by(&root, |lock| {
        let file = File::create(lock)?;
        opened += 1;
        if opened == 1 {
            // Whoever has it removes all of it now, and lets go.
            fs::remove_dir_all(&root)?;
        }
        Ok(file)
    })
    .unwrap();
    assert_eq!(opened, 2);
    assert!(layout.root().join("sandboxes").is_dir(), "what was removed is there again");
    let other = lock_file::take(&root.join("lock"), |lock| File::open(lock)).unwrap();
    assert!(matches!(other, Lock::Busy), "it can be locked twice");
    let refused = Layout::open_alone(&root).map(drop).unwrap_err();
    assert!(refused.to_string().contains("another server runs"), "{refused:#}");
}

#[test]
fn what_is_removed_just_before_the_lock_is_there_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("yard");
    Layout::open(&root).unwrap();
    let (layout, _lock) = Layout::open_alone_by(&root, |lock| {
        // The last steps of whoever had it, who goes on where it was in its list.
        fs::remove_dir_all(root.join("run"))?;
        File::create(lock)
    })
    .unwrap();
    assert!(layout.root().join("run/g").is_dir());
}

#[test]
fn who_has_it_has_all_of_it_whoever_removes_it_before() {
    // In memory: a disk may take long for so many small files.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (root, inside) = (dir.path().join("yard"), AtomicUsize::new(0));
    let turns = || {
        let mut had = 0;
        while had < 25 {
            // Refused while somebody else has it.
            let Ok((layout, lock)) = Layout::open_alone(&root) else { continue };
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two have it");
            // Whichever way a directory is read, some of it comes after the lock.
            let own = (0..200).map(|n| layout.root().join(format!("own-{n}")));
            for path in own.clone() {
                fs::create_dir(path).unwrap();
            }
            let dirs = ["sandboxes", "warm", "run/etc/etc", "run/agent/app/config"];
            let dirs = dirs.map(|name| layout.root().join(name));
            for path in own.chain(dirs) {
                assert!(path.is_dir(), "{} is gone", path.display());
            }
            inside.fetch_sub(1, Ordering::SeqCst);
            leftovers::remove_dir(&root);
            drop(lock);
            had += 1;
        }
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(turns)).collect();
        all.into_iter().for_each(|one| one.join().unwrap());
    });
}
