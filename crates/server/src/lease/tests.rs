use super::*;

fn store(dir: &Path) -> Store {
    Store::open(&dir.join("bastide.db")).unwrap()
}

#[tokio::test]
async fn one_holds_it_and_the_next_waits_with_a_later_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let lock = Lock::try_take(dir.path()).unwrap().unwrap();
    let first = Lease::begin(lock, &store).await.unwrap();
    assert!(Lock::try_take(dir.path()).unwrap().is_none());
    let waiting = Lock::wait(dir.path()).unwrap();
    assert!(first.holds());
    assert_eq!(holder(dir.path()).unwrap().pid, std::process::id());
    let before = first.epoch();
    drop(first);
    let second = Lease::begin(waiting.await.unwrap().unwrap(), &store).await.unwrap();
    assert!(second.holds() && second.epoch() > before);
}

#[tokio::test]
async fn a_removed_file_is_a_lost_lease() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let lease = Lease::begin(Lock::try_take(dir.path()).unwrap().unwrap(), &store).await.unwrap();
    std::fs::remove_file(dir.path().join(LEASE_FILE)).unwrap();
    assert!(!lease.holds());
    lease.lost().await;
    let other = Lease::begin(Lock::try_take(dir.path()).unwrap().unwrap(), &store).await.unwrap();
    assert!(other.holds() && !lease.holds());
}
