//! The file system below the data directory is full: who notices what, and what happens when it is not.

#![expect(clippy::unwrap_used, reason = "support of tests: a panic is how it tells")]

mod needs_root {
    use std::io::Write as _;
    use std::path::Path;
    use std::time::Duration;

    use driver::{Driver, Launch};
    use driver_linux::{DiskKind, LinuxDriver};
    use model::{EndReason, Error, Policy, SandboxId};

    use crate::host::{Host, create, run, spec};

    const VOLUME_MIB: u64 = 1500;
    const RESERVE_BYTES: u64 = 128 << 20;

    #[tokio::test]
    async fn sandboxes_leave_the_host_what_it_keeps_for_itself() {
        let mut host = Host::on_volume("ext4", VOLUME_MIB, DiskKind::Btrfs);
        host.disk.reserve_bytes = RESERVE_BYTES;
        let driver = host.driver().await;
        let (greedy, other) = (large(&driver).await, create(&driver).await.id);
        let (_, text) = run(&driver, greedy, "cat /dev/zero 2>&1 > /workspace/one; sync").await;
        assert!(is_full(&text), "{text}");
        assert!(free(host.path()) > RESERVE_BYTES / 2, "{} left", free(host.path()));
        assert_eq!(run(&driver, other, "echo lives").await, (0, "lives\n".to_owned()));
        // Who makes room gets room, and so do the others.
        assert_eq!(run(&driver, greedy, "rm /workspace/one").await.0, 0);
        until_it_writes(&driver, other).await;
        driver.remove(greedy, EndReason::UserRequest).await.unwrap();
        driver.remove(other, EndReason::UserRequest).await.unwrap();
        driver.close().await;
    }

    #[tokio::test]
    async fn a_host_that_others_filled_is_survived_on_btrfs() {
        let mut host = Host::on_volume("ext4", VOLUME_MIB, DiskKind::Btrfs);
        host.disk.reserve_bytes = RESERVE_BYTES;
        let driver = host.driver().await;
        is_survived(&host, &driver).await;
        // The sandbox that wrote meanwhile goes on too.
        driver.close().await;
    }

    #[tokio::test]
    async fn a_host_that_others_filled_is_survived_on_images() {
        let mut host = Host::on_volume("ext4", VOLUME_MIB, DiskKind::Image);
        host.disk.reserve_bytes = RESERVE_BYTES;
        let driver = host.driver().await;
        is_survived(&host, &driver).await;
        driver.close().await;
    }

    async fn is_survived(host: &Host, driver: &LinuxDriver) {
        let (writer, reader) = (create(driver).await.id, create(driver).await.id);
        let kept = "echo kept > /workspace/kept; sync; cat /workspace/kept";
        assert_eq!(run(driver, reader, kept).await, (0, "kept\n".to_owned()));
        let filler = host.path().join("filler");
        fill(&filler);
        let write = "head -c 300M /dev/zero 2>&1 > /workspace/one && sync /workspace/one 2>&1
                     for n in $(seq 500); do echo $n > /workspace/small-$n; done 2>&1; sync";
        let (_, text) = run(driver, writer, write).await;
        assert!(is_full(&text), "{text}");
        let refused = driver.create(Launch { spec: spec("host"), policy: Policy::none() }).await;
        assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
        assert_eq!(run(driver, reader, "cat /workspace/kept").await, (0, "kept\n".to_owned()));
        std::fs::remove_file(filler).unwrap();
        until_it_writes(driver, reader).await;
        // Who wrote to a full host may have to begin anew: its own disk, and nobody else's.
        if let Err(error) = driver.stop(writer, EndReason::UserRequest).await {
            // The kernel tells once, and perhaps only now, of what it could not write while there was no room.
            let said = format!("{:#}", anyhow::Error::from(error));
            assert!(is_full(&said), "{said}");
            driver.stop(writer, EndReason::UserRequest).await.unwrap();
        }
        driver.start(writer, Policy::none()).await.unwrap();
        until_it_writes(driver, writer).await;
        let fresh = create(driver).await.id;
        for id in [writer, reader, fresh] {
            driver.remove(id, EndReason::UserRequest).await.unwrap();
        }
    }

    async fn until_it_writes(driver: &LinuxDriver, id: SandboxId) {
        let write = "rm -f /workspace/new; head -c 20M /dev/zero 2>&1 > /workspace/new &&
                     sync /workspace/new 2>&1 && echo good";
        let mut text = String::new();
        for _ in 0..60 {
            text = run(driver, id, write).await.1;
            if text == "good\n" {
                return;
            }
            driver.collect().await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("{text}");
    }

    async fn large(driver: &LinuxDriver) -> SandboxId {
        let mut spec = spec("host");
        spec.limits.disk_gb = 4;
        let id = spec.id;
        driver.create(Launch { spec, policy: Policy::none() }).await.unwrap();
        id
    }

    /// Takes everything that is left, also what is for root only.
    fn fill(path: &Path) {
        let mut file = std::fs::File::create(path).unwrap();
        for size in [1 << 20, 4096] {
            let block = vec![7u8; size];
            while file.write_all(&block).is_ok() {}
            let _ = file.sync_all();
        }
    }

    fn free(path: &Path) -> u64 {
        let stat = rustix::fs::statvfs(path).unwrap();
        stat.f_bavail * stat.f_frsize
    }

    fn is_full(text: &str) -> bool {
        ["quota", "No space", "Input/output", "Read-only"].iter().any(|word| text.contains(word))
    }
}
