//! What a sandbox may use, measured from inside and outside.

#![expect(clippy::unwrap_used, reason = "support of tests: a panic is how it tells")]

mod needs_root {
    use driver::{Driver, Launch};
    use model::{EndReason, Policy};

    use crate::host::{Host, create, run, spec};

    #[tokio::test]
    async fn a_full_disk_is_full_inside_and_nowhere_else() {
        let host = Host::new();
        let driver = host.driver().await;
        let (full, other) = (create(&driver).await, create(&driver).await);
        let (code, text) =
            run(&driver, full.id, "fallocate -l 600M /workspace/one 2>&1; sync").await;
        assert_eq!((code, text.as_str()), (0, ""));
        let (_, text) = run(&driver, full.id, "fallocate -l 600M /workspace/two 2>&1").await;
        assert!(text.contains("quota") || text.contains("No space"), "{text}");
        let (code, text) =
            run(&driver, other.id, "echo fine > /workspace/a && cat /workspace/a").await;
        assert_eq!((code, text.as_str()), (0, "fine\n"));
        let used = async |id| driver.usage(id).await.unwrap().disk_bytes;
        let (full, other) = (used(full.id).await, used(other.id).await);
        assert!(full >= 600 << 20 && other < 10 << 20, "{full} and {other}");
        driver.close().await;
    }

    #[tokio::test]
    async fn a_share_of_a_processor_is_no_more_than_that() {
        let host = Host::new();
        let driver = host.driver().await;
        let mut spec = spec("host");
        spec.limits.cpu_fraction = 0.2;
        let launch = Launch { spec: spec.clone(), policy: Policy::none() };
        driver.create(launch).await.unwrap();
        let before = driver.usage(spec.id).await.unwrap().cpu_usec;
        let (code, _) = run(&driver, spec.id, "timeout 2 sh -c 'while :; do :; done'").await;
        assert_eq!(code, 124);
        let used = driver.usage(spec.id).await.unwrap().cpu_usec - before;
        assert!((100_000..800_000).contains(&used), "{used} us of 2 s at a fifth");
        driver.close().await;
    }

    #[tokio::test]
    async fn memory_that_pid_1_itself_cannot_have_ends_the_sandbox_with_that_reason() {
        let host = Host::new();
        let driver = host.driver().await;
        let mut exits = driver.take_exits().unwrap();
        let mut spec = spec("host");
        spec.limits.memory_mib = 24;
        driver.create(Launch { spec: spec.clone(), policy: Policy::none() }).await.unwrap();
        let guest = driver.guest(spec.id).unwrap();
        // It keeps the last MiB of each, and when they have ended there is nothing else to kill.
        for number in 0..48 {
            let talk = guest_proto::ExecStart {
                id: format!("talk-{number}"),
                argv: ["head", "-c", "1048576", "/dev/zero"].map(str::to_owned).to_vec(),
                detached: true,
                ..guest_proto::ExecStart::default()
            };
            let Ok(mut frames) = guest.exec(&talk).await else { break };
            while let Some(Ok(_)) = frames.next().await {}
        }
        let limit = std::time::Duration::from_secs(10);
        let exit = tokio::time::timeout(limit, exits.recv()).await.unwrap().unwrap();
        assert_eq!((exit.id, exit.reason), (spec.id, EndReason::Oom));
        driver.close().await;
    }

    /// Reads and writes that go past the page cache. What goes through it is written by the kernel, for
    /// nobody in particular where the controller is that of version 1.
    #[tokio::test]
    async fn a_disk_is_read_and_written_no_faster_than_that() {
        let mut host = Host::new();
        host.disk.bytes_per_second = Some(8 << 20);
        is_slow(&host.driver().await).await;
    }

    #[tokio::test]
    async fn an_image_is_read_and_written_no_faster_than_that() {
        let mut host = Host::with_disk(driver_linux::DiskKind::Image);
        host.disk.bytes_per_second = Some(8 << 20);
        is_slow(&host.driver().await).await;
    }

    async fn is_slow(driver: &driver_linux::LinuxDriver) {
        let id = create(driver).await.id;
        let (code, text) = run(driver, id, "head -c 24M /dev/urandom > /workspace/one; sync").await;
        assert_eq!((code, text.as_str()), (0, ""));
        for command in [
            "dd if=/workspace/one of=/dev/null bs=1M iflag=direct",
            "dd if=/dev/zero of=/workspace/two bs=1M count=24 oflag=direct",
        ] {
            let started = tokio::time::Instant::now();
            let (code, text) = run(driver, id, &format!("{command} 2>&1")).await;
            let took = started.elapsed();
            assert_eq!(code, 0, "{text}");
            // 3 s, less what the kernel lets through at the beginning.
            assert!(took.as_millis() > 1500, "{command}: {took:?}");
        }
        driver.remove(id, EndReason::UserRequest).await.unwrap();
        driver.clone().close().await;
    }
}
