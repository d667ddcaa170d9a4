//! What is around a sandbox. What hostile code tries against it is the doctor's list.

mod needs_root {
    use crate::host::{Host, create, run};

    #[tokio::test]
    async fn each_sandbox_has_uids_processes_and_a_network_of_its_own() {
        let host = Host::new();
        let driver = host.driver().await;
        let (one, two) = (create(&driver).await, create(&driver).await);
        let data = host.path().join("data");
        let uid = |id| crate::host::run_record(&data, id)["uid_base"].as_i64().unwrap();
        assert!((uid(one.id) - uid(two.id)).abs() >= 65_536);
        let (_, map) = run(&driver, one.id, "cat /proc/self/uid_map").await;
        let words: Vec<&str> = map.split_whitespace().collect();
        assert_eq!(words, ["0", &uid(one.id).to_string(), "65536"]);
        let (_, count) = run(&driver, one.id, "ls /proc | grep -c '^[0-9]'").await;
        assert!(count.trim().parse::<u32>().unwrap() < 10, "{count}");
        let (_, links) = run(&driver, one.id, "cat /proc/net/dev | grep -c :").await;
        assert_eq!(links.trim(), "1", "only lo");
        let (_, reach) =
            run(&driver, one.id, "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 80), 2)' 2>&1 | tail -1").await;
        assert!(reach.contains("unreachable"), "{reach}");
        let serve = "python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 & \
                     for i in $(seq 50); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000), 1)' 2>/dev/null && echo up && break; sleep 0.1; done; kill %1";
        let (_, up) = run(&driver, one.id, serve).await;
        assert!(up.contains("up"), "its own loopback works: {up}");
        driver.close().await;
    }

    /// The keeper and its launchers need not wait for the processor; who runs in a sandbox has no such privilege.
    #[tokio::test]
    async fn it_waits_for_the_processor_like_any_other_process() {
        let host = Host::new();
        let driver = host.driver().await;
        let one = create(&driver).await;
        let record = crate::host::run_record(&host.path().join("data"), one.id);
        // How long a process runs before others have their turn, in nanoseconds; where the kernel shows it.
        let turn = |process: &str| {
            let facts = std::fs::read_to_string(format!("/proc/{process}/sched")).ok()?;
            let line = facts.lines().find(|line| line.starts_with("se.slice "))?;
            line.split(':').nth(1)?.trim().parse::<u64>().ok()
        };
        let guest = turn(&record["pid"].to_string());
        let keeper = turn(&host.keeper_pid().unwrap().to_string());
        assert_eq!(guest, turn("self"));
        // From 6.12 on the kernel takes a request; before, it may show what it does not let anybody choose.
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
        let takes_requests = (numbers.next(), numbers.next()) >= (Some(6), Some(12));
        assert_eq!(keeper, guest.map(|usual| if takes_requests { 100_000 } else { usual }));
        driver.close().await;
    }

    #[tokio::test]
    async fn its_environment_is_sealed_on_the_disk() {
        let host = Host::new();
        let driver = host.driver().await;
        let spec = create(&driver).await;
        let file = host.path().join("data/sandboxes").join(spec.id.bare()).join("spec.json");
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.contains("sealed_env") && !text.contains("GREETING"), "{text}");
        driver.close().await;
    }
}
