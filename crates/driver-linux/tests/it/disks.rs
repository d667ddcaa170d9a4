//! Every kind of disk pool: what its limit covers, what happens at it, and what is left afterwards.

#![expect(clippy::unwrap_used, reason = "support of tests: a panic is how it tells")]

mod needs_root {
    use std::path::Path;
    use std::process::Command;
    use std::sync::Arc;
    use std::time::Duration;

    use driver::{Driver, Launch, conformance};
    use driver_linux::{DiskKind, LinuxDriver};
    use model::{EndReason, Policy, SandboxId, Tier};

    use crate::host::{self, Host, create, run, run_as, spec, succeed};

    const ASKED: EndReason = EndReason::UserRequest;

    #[tokio::test]
    async fn one_limit_of_btrfs_covers_both_disks() {
        covers_both_disks(&Host::new()).await;
    }

    #[tokio::test]
    async fn one_limit_of_an_image_covers_both_disks() {
        covers_both_disks(&Host::with_disk(DiskKind::Image)).await;
    }

    #[tokio::test]
    async fn one_limit_of_a_partition_covers_both_disks() {
        covers_both_disks(&Host::on_volume("btrfs", 4096, DiskKind::Auto)).await;
    }

    /// `disk_gb` is 1.
    async fn covers_both_disks(host: &Host) {
        let driver = host.driver().await;
        let (full, other) = (create(&driver).await.id, create(&driver).await.id);
        fill(&driver, full, "fallocate -l 500M /workspace/one && sync").await;
        fill(&driver, full, "fallocate -l 300M /var/tmp/two && sync").await;
        let (code, text) = run(&driver, full, "fallocate -l 300M /workspace/three 2>&1").await;
        assert!(code != 0 && is_full(&text), "{text}");
        let (code, text) = run_as(&driver, full, Some("root"), "fallocate -l 300M /x 2>&1").await;
        assert!(code != 0 && is_full(&text), "{text}");
        let used = driver.usage(full).await.unwrap().disk_bytes;
        assert!((800 << 20..=1 << 30).contains(&used), "{used}");
        fill(&driver, other, "fallocate -l 600M /workspace/one").await;
        close(driver, &[full, other]).await;
        until_no_loops(host.path()).await;
    }

    #[tokio::test]
    async fn a_full_sandbox_on_btrfs_stops_and_starts_and_goes() {
        stops_and_starts_when_full(&Host::new()).await;
    }

    #[tokio::test]
    async fn a_full_sandbox_on_an_image_stops_and_starts_and_goes() {
        stops_and_starts_when_full(&Host::with_disk(DiskKind::Image)).await;
    }

    async fn stops_and_starts_when_full(host: &Host) {
        let driver = host.driver().await;
        for tier in [Tier::Ephemeral, Tier::Persistent] {
            stops_and_starts(&driver, tier).await;
        }
        driver.close().await;
        until_no_loops(host.path()).await;
    }

    async fn stops_and_starts(driver: &LinuxDriver, tier: Tier) {
        let mut spec = spec("host");
        spec.tier = tier;
        let id = spec.id;
        driver.create(Launch { spec, policy: Policy::none() }).await.unwrap();
        for round in 0..3 {
            // To the last block that it gives: what is freed by a flush is taken as well.
            // Most of it is only set aside, which a slow disk does as fast as another.
            let fill = "cd /workspace; [ -e kept ] || echo kept > kept
                        [ -e big ] || fallocate -l 900M big
                        for more in 1 2 3; do
                            cat /dev/zero 2>&1 >> big; sync
                            for n in $(seq 999); do echo $more >> small-$n || break; done 2>&1; sync
                        done";
            let (_, text) = run(driver, id, fill).await;
            assert!(is_full(&text), "{text}");
            driver.stop(id, ASKED).await.unwrap();
            driver.start(id, Policy::none()).await.unwrap();
            let (code, text) = run(driver, id, "cat /workspace/kept").await;
            assert_eq!((code, text.as_str()), (0, "kept\n"), "round {round}");
        }
        let after = "rm /workspace/big && echo room > /workspace/again && cat /workspace/again";
        assert_eq!(run(driver, id, after).await, (0, "room\n".to_owned()));
        run(driver, id, "cd /workspace; fallocate -l 900M big; cat /dev/zero >> big").await;
        driver.remove(id, ASKED).await.unwrap();
    }

    #[tokio::test]
    async fn empty_files_come_to_an_end_on_an_image() {
        let host = Host::with_disk(DiskKind::Image);
        let driver = host.driver().await;
        let (one, other) = (create(&driver).await.id, create(&driver).await.id);
        let (_, text) = run(&driver, one, &empty_files(200_000)).await;
        let made: u32 = text.trim().parse().unwrap_or_else(|_| panic!("{text}"));
        assert!((100_000..=131_072).contains(&made), "{made} of 131,072 a GiB");
        assert_eq!(run(&driver, other, &empty_files(100)).await.1, "all\n");
        close(driver, &[one, other]).await;
    }

    #[tokio::test]
    async fn empty_files_come_to_an_end_on_btrfs() {
        let host = Host::new();
        let driver = host.driver().await;
        let (one, other) = (create(&driver).await.id, create(&driver).await.id);
        // Inodes are bytes there: with 16 MiB left they are soon used up.
        fill(&driver, one, "fallocate -l 1008M /workspace/one && sync").await;
        let (_, text) = run(&driver, one, &empty_files(200_000)).await;
        let made: u32 = text.trim().parse().unwrap_or_else(|_| panic!("{text}"));
        assert!((1_000..100_000).contains(&made), "{made} in 16 MiB");
        assert_eq!(run(&driver, other, &empty_files(100)).await.1, "all\n");
        close(driver, &[one, other]).await;
    }

    /// Prints how many it made, or `all`.
    fn empty_files(count: u32) -> String {
        let program = "import os, sys, errno\nos.mkdir(\"/workspace/many\")\n\
            for n in range(int(sys.argv[1])):\n try: os.close(os.open(f\"/workspace/many/{n}\", 65))\n\
            \x20except OSError as error:\n  assert error.errno in (errno.ENOSPC, errno.EDQUOT)\n\
            \x20 print(n); break\nelse: print(\"all\")";
        format!("python3 -c '{program}' {count} 2>&1")
    }

    #[tokio::test]
    async fn images_keep_every_promise_of_a_driver() {
        keeps_every_promise(&Host::with_disk(DiskKind::Image)).await;
    }

    #[tokio::test]
    async fn a_partition_keeps_every_promise_of_a_driver() {
        keeps_every_promise(&Host::on_volume("btrfs", 8192, DiskKind::Btrfs)).await;
    }

    async fn keeps_every_promise(host: &Host) {
        let driver = host.driver().await;
        let data = host.path().join("data");
        let kill = move |id: SandboxId| {
            assert!(host::kill(host::run_record(&data, id)["pid"].as_i64().unwrap()));
        };
        let options = conformance::Options {
            template: "host".parse().unwrap(),
            kill: Box::new(kill),
            memory_limit: true,
        };
        conformance::check(Arc::new(driver.clone()), options).await;
        driver.close().await;
        until_no_loops(host.path()).await;
    }

    #[tokio::test]
    async fn an_image_is_mounted_while_it_is_used_and_no_longer() {
        let host = Host::with_disk(DiskKind::Image);
        let driver = host.driver().await;
        let id = create(&driver).await.id;
        let image = host.path().join("data/pool").join(format!("{}.img", id.bare()));
        assert_eq!(loops_of(host.path()), vec![image.display().to_string()]);
        driver.stop(id, ASKED).await.unwrap();
        until_no_loops(host.path()).await;
        // As a server leaves it that died between a mount and a launch.
        let place = image.with_extension("");
        succeed(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&place));
        assert_eq!(loops_of(host.path()).len(), 1);
        driver.collect().await.unwrap();
        until_no_loops(host.path()).await;
        driver.start(id, Policy::none()).await.unwrap();
        driver.remove(id, ASKED).await.unwrap();
        for _ in 0..500 {
            if !image.exists() && loops_of(host.path()).is_empty() {
                return driver.close().await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("left: {:?}", loops_of(host.path()));
    }

    #[tokio::test]
    async fn a_waiting_sandbox_on_btrfs_gets_the_disk_that_was_asked_for() {
        gets_what_was_asked_for(&Host::new()).await;
    }

    /// The size of one that waits stays; who asks for another gets one that is made now.
    #[tokio::test]
    async fn a_waiting_sandbox_on_an_image_gets_the_disk_that_was_asked_for() {
        gets_what_was_asked_for(&Host::with_disk(DiskKind::Image)).await;
    }

    async fn gets_what_was_asked_for(host: &Host) {
        let mut config = host.config();
        config.warm = [("host".parse().unwrap(), 1)].into();
        let driver = LinuxDriver::open(config).await.unwrap();
        let mut spec = spec("host");
        spec.limits.disk_gb = 2;
        spec.id = warm(&driver).await;
        let id = spec.id;
        driver.create(Launch { spec, policy: Policy::none() }).await.unwrap();
        fill(&driver, id, "fallocate -l 1500M /workspace/one").await;
        let (_, text) = run(&driver, id, "fallocate -l 600M /workspace/two 2>&1").await;
        assert!(is_full(&text), "{text}");
        close(driver, &[id]).await;
    }

    async fn warm(driver: &LinuxDriver) -> SandboxId {
        for _ in 0..500 {
            if let Some(id) = driver.take_warm(&"host".parse().unwrap(), Tier::Ephemeral) {
                return id;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("no sandbox waits");
    }

    #[tokio::test]
    async fn what_is_gone_leaves_no_group_and_gives_its_room_back() {
        let host = Host::new();
        let driver = host.driver().await;
        let pool = host.path().join("data/pool");
        // What is removed is freed after a commit, every 30 s else.
        succeed(Command::new("mount").args(["-o", "remount,commit=1"]).arg(&pool));
        let before = bytes_of(&host.path().join("data/pool.img"));
        let id = create(&driver).await.id;
        fill(&driver, id, "head -c 200M /dev/urandom > /workspace/one && sync").await;
        assert!(bytes_of(&host.path().join("data/pool.img")) > before + (190 << 20));
        driver.remove(id, ASKED).await.unwrap();
        for _ in 0..150 {
            driver.collect().await.unwrap();
            succeed(Command::new("sync").arg("-f").arg(&pool));
            let left = bytes_of(&host.path().join("data/pool.img"));
            if groups(&host).is_empty() && left < before + (100 << 20) {
                return driver.close().await;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let left = bytes_of(&host.path().join("data/pool.img"));
        panic!("left: {:?}, {left} bytes after {before}", groups(&host));
    }

    /// Of single sandboxes.
    fn groups(host: &Host) -> Vec<String> {
        let pool = host.path().join("data/pool");
        let output = Command::new("btrfs").args(["qgroup", "show"]).arg(pool).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // Those of sandboxes to come stay.
        let of_one = |line: &&str| {
            line.starts_with("0/") && !line.starts_with("0/5 ") && !line.contains(".blank-")
        };
        text.lines().filter(of_one).map(str::to_owned).collect()
    }

    fn bytes_of(file: &Path) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(file).unwrap().blocks() * 512
    }

    fn is_full(text: &str) -> bool {
        text.contains("quota") || text.contains("No space")
    }

    async fn fill(driver: &LinuxDriver, id: SandboxId, command: &str) {
        let (code, text) = run(driver, id, &format!("({command}) 2>&1")).await;
        assert_eq!((code, text.as_str()), (0, ""), "{command}");
    }

    async fn close(driver: LinuxDriver, sandboxes: &[SandboxId]) {
        for id in sandboxes {
            driver.remove(*id, ASKED).await.unwrap();
        }
        driver.close().await;
    }

    /// A launch of another sandbox has copies of all mounts, for the moment until it leaves them.
    async fn until_no_loops(dir: &Path) {
        for _ in 0..100 {
            if loops_of(dir).is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("left: {:?}", loops_of(dir));
    }

    /// The files below `dir` that loop devices are over, the pool's own included.
    fn loops_of(dir: &Path) -> Vec<String> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir("/sys/block").unwrap() {
            let file = entry.unwrap().path().join("loop/backing_file");
            let Ok(text) = std::fs::read_to_string(file) else { continue };
            if Path::new(text.trim_end().trim_end_matches(" (deleted)")).starts_with(dir) {
                files.push(text.trim_end().to_owned());
            }
        }
        files
    }
}
