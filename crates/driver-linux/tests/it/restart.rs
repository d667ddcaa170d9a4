//! Servers and keepers that die, and what their successors find.

#![expect(clippy::unwrap_used, reason = "what tests share: a panic is how it tells")]

mod needs_root {
    use std::ffi::OsString;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc::TryRecvError;

    use driver::{Driver, Launch};
    use driver_linux::LinuxDriver;
    use model::{EndReason, Phase, Policy};

    use crate::host::{ENDS_AT_ONCE, Host, create, kill, program, run, run_record, spec, until};

    #[tokio::test]
    async fn a_new_server_adopts_what_runs_and_knows_what_is_stopped() {
        let host = Host::new();
        let driver = host.driver().await;
        let (running, paused, stopped) =
            (create(&driver).await, create(&driver).await, create(&driver).await);
        run(&driver, running.id, "echo kept > /workspace/file; sleep 300 >/dev/null 2>&1 &").await;
        driver.pause(paused.id).await.unwrap();
        driver.stop(stopped.id, EndReason::Idle).await.unwrap();
        driver.close().await;

        let driver = host.driver().await;
        let phase = async |id| driver.observe(id).await.unwrap().unwrap().phase;
        assert_eq!(phase(running.id).await, Phase::Running);
        assert_eq!(phase(paused.id).await, Phase::Paused);
        assert_eq!(phase(stopped.id).await, Phase::Stopped);
        let observed = driver.observe(stopped.id).await.unwrap().unwrap();
        assert_eq!(observed.end_reason, Some(EndReason::Idle));
        assert_eq!(observed.spec.env, stopped.env, "the environment is unsealed again");
        let (_, text) = run(&driver, running.id, "cat /workspace/file; pgrep -c sleep").await;
        assert_eq!(text, "kept\n1\n", "its processes went on");
        driver.resume(paused.id).await.unwrap();
        assert_eq!(run(&driver, paused.id, "echo awake").await.1, "awake\n");
        driver.close().await;
    }

    #[tokio::test]
    async fn a_start_that_failed_leaves_the_reason_of_the_end_before() {
        let host = Host::new();
        let driver = host.driver().await;
        let kept = create(&driver).await;
        run(&driver, kept.id, "echo kept > /workspace/file").await;
        driver.stop(kept.id, EndReason::UserRequest).await.unwrap();
        // A guest that is launched and dies before it says a word.
        let programs = std::fs::read_dir(host.path().join("data/guest")).unwrap();
        let guests: Vec<_> = programs.map(|program| program.unwrap().path()).collect();
        let away = |path: &std::path::Path| path.with_extension("away");
        for guest in &guests {
            std::fs::rename(guest, away(guest)).unwrap();
            std::fs::write(guest, program(ENDS_AT_ONCE)).unwrap();
            std::fs::set_permissions(guest, PermissionsExt::from_mode(0o755)).unwrap();
        }
        // With a way out, because guests that have none may have been started by now.
        let failed = driver.start(kept.id, Policy::open()).await;
        assert!(failed.is_err());
        // As the engine does.
        driver.stop(kept.id, EndReason::Unknown).await.unwrap();
        for guest in &guests {
            std::fs::rename(away(guest), guest).unwrap();
        }
        driver.close().await;

        let driver = host.driver().await;
        let observed = driver.observe(kept.id).await.unwrap().unwrap();
        assert_eq!(observed.phase, Phase::Stopped);
        assert_eq!(observed.end_reason, Some(EndReason::UserRequest));
        driver.start(kept.id, Policy::none()).await.unwrap();
        assert_eq!(run(&driver, kept.id, "cat /workspace/file").await.1, "kept\n");
        driver.close().await;
    }

    #[tokio::test]
    async fn guests_outlive_their_keeper_and_their_ends_are_noticed() {
        let host = Host::new();
        let driver = host.driver().await;
        let mut exits = driver.take_exits().unwrap();
        let (one, two) = (create(&driver).await, create(&driver).await);
        let keeper = host.keeper_pid().unwrap();
        assert!(kill(keeper.into()));
        assert_eq!(run(&driver, one.id, "echo alive").await.1, "alive\n");
        let fresh = create(&driver).await;
        assert_eq!(
            run(&driver, fresh.id, "echo made").await.1,
            "made\n",
            "a new keeper was started"
        );
        let pid = run_record(&host.path().join("data"), one.id)["pid"].as_i64().unwrap();
        assert!(kill(pid));
        let limit = std::time::Duration::from_secs(10);
        let exit = tokio::time::timeout(limit, exits.recv()).await.unwrap().unwrap();
        assert_eq!((exit.id, exit.reason), (one.id, EndReason::Exited));
        driver.close().await;
        assert!(kill(host.keeper_pid().unwrap().into()));

        let driver = host.driver().await;
        assert_eq!(run(&driver, two.id, "echo both died").await.1, "both died\n");
        driver.close().await;
    }

    #[tokio::test]
    async fn an_end_is_noted_also_where_there_is_no_place_to_make_notes() {
        let host = Host::new();
        let data = host.path().join("data");
        std::fs::create_dir_all(data.join("run")).unwrap();
        std::fs::write(data.join("run/ends"), "in the way").unwrap();
        let driver = host.driver().await;
        let record = run_record(&data, create(&driver).await.id);
        driver.close().await;
        let note = data.join("run/exits").join(record["incarnation"].as_str().unwrap());
        assert!(kill(record["pid"].as_i64().unwrap()));
        let noted = || std::fs::read_to_string(&note).is_ok_and(|status| status == "9");
        until("noted", async || noted()).await;
    }

    #[tokio::test]
    async fn what_died_while_no_server_watched_is_stopped_with_its_reason() {
        let host = Host::new();
        let driver = host.driver().await;
        let spec = create(&driver).await;
        let pid = run_record(&host.path().join("data"), spec.id)["pid"].as_i64().unwrap();
        driver.close().await;
        assert!(kill(pid));
        let driver = host.driver().await;
        let observed = driver.observe(spec.id).await.unwrap().unwrap();
        assert_eq!(observed.phase, Phase::Stopped);
        assert_eq!(observed.end_reason, Some(EndReason::Exited));
        driver.start(spec.id, Policy::none()).await.unwrap();
        assert_eq!(run(&driver, spec.id, "echo again").await.1, "again\n");
        driver.close().await;
    }

    #[tokio::test]
    async fn a_stop_of_what_died_a_moment_before_holds_and_the_next_start_is_not_taken_for_it() {
        let host = Host::new();
        let driver = host.driver().await;
        for _ in 0..10 {
            let spec = create(&driver).await;
            let record = run_record(&host.path().join("data"), spec.id);
            assert!(kill(record["pid"].as_i64().unwrap()));
            driver.stop(spec.id, EndReason::UserRequest).await.unwrap();
            driver.start(spec.id, Policy::none()).await.unwrap();
            // The death is told once it was looked after, which may be only now.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            let record = run_record(&host.path().join("data"), spec.id);
            let observed = driver.observe(spec.id).await.unwrap().unwrap();
            assert_eq!(observed.incarnation.as_deref(), record["incarnation"].as_str());
            driver.stop(spec.id, EndReason::UserRequest).await.unwrap();
            let end = host.path().join("data/sandboxes").join(spec.id.bare()).join("end.json");
            let end = std::fs::read_to_string(end).unwrap();
            assert!(end.contains("user_request"), "{end}");
            driver.remove(spec.id, EndReason::UserRequest).await.unwrap();
        }
        driver.close().await;
    }

    #[tokio::test]
    async fn a_stop_that_was_noted_and_not_finished_keeps_its_reason() {
        let host = Host::new();
        let driver = host.driver().await;
        let spec = create(&driver).await;
        let dir = host.path().join("data/sandboxes").join(spec.id.bare());
        let record = std::fs::read(dir.join("run.json")).unwrap();
        driver.stop(spec.id, EndReason::Idle).await.unwrap();
        let before = driver.observe(spec.id).await.unwrap().unwrap();
        driver.close().await;
        // As if the server had died before its last step.
        std::fs::write(dir.join("run.json"), record).unwrap();
        let driver = host.driver().await;
        let observed = driver.observe(spec.id).await.unwrap().unwrap();
        assert_eq!(observed.end_reason, Some(EndReason::Idle));
        assert_eq!(observed.ended, before.ended);
        assert!(!dir.join("run.json").exists());
        driver.remove(spec.id, EndReason::UserRequest).await.unwrap();
        driver.close().await;
    }

    #[tokio::test]
    async fn a_create_that_was_never_answered_leaves_nothing() {
        let host = Host::new();
        let driver = host.driver().await;
        let spec = create(&driver).await;
        let dir = host.path().join("data/sandboxes").join(spec.id.bare());
        driver.close().await;
        // As if the server had died before the spec was on the disk.
        std::fs::remove_file(dir.join("spec.json")).unwrap();
        let driver = host.driver().await;
        assert!(driver.observe(spec.id).await.unwrap().is_none());
        driver.collect().await.unwrap();
        driver.collect().await.unwrap();
        assert!(!dir.exists());
        let pool: Vec<_> = std::fs::read_dir(host.path().join("data/pool")).unwrap().collect();
        assert!(pool.is_empty(), "{pool:?}");
        driver.close().await;
    }

    #[tokio::test]
    async fn an_unfinished_delete_is_finished() {
        let host = Host::new();
        let driver = host.driver().await;
        let spec = create(&driver).await;
        driver.stop(spec.id, EndReason::UserRequest).await.unwrap();
        driver.close().await;
        let data = host.path().join("data");
        let bare = spec.id.bare();
        std::fs::rename(data.join("sandboxes").join(&bare), data.join("deleting").join(&bare))
            .unwrap();
        let driver = host.driver().await;
        assert!(driver.observe(spec.id).await.unwrap().is_none());
        assert!(!data.join("deleting").join(&bare).exists());
        assert!(!data.join("pool").join(&bare).exists());
        driver.close().await;
    }

    /// A create fails, leaves nothing, and the next one works once `mend` was called.
    async fn check_failure(host: &Host, driver: &LinuxDriver, mend: impl FnOnce()) -> String {
        let launch = Launch { spec: spec("host"), policy: Policy::none() };
        let refused = driver.create(launch).await;
        mend();
        let said = format!("{:#}", anyhow::Error::from(refused.unwrap_err()));
        assert!(driver.list().await.unwrap().is_empty());
        let disks = std::fs::read_dir(host.path().join("data/pool")).unwrap().flatten();
        // Those of sandboxes to come are nobody's.
        let is_ones = |name: &OsString| !name.to_string_lossy().starts_with(".blank-");
        let disks: Vec<_> = disks.map(|disk| disk.file_name()).filter(is_ones).collect();
        assert!(disks.is_empty(), "{disks:?}");
        let sockets = std::fs::read_dir(host.path().join("data/run/g")).unwrap().count();
        assert_eq!(sockets, 0);
        let fine = create(driver).await;
        assert_eq!(run(driver, fine.id, "echo fine").await.1, "fine\n");
        driver.remove(fine.id, EndReason::UserRequest).await.unwrap();
        said
    }

    #[tokio::test]
    async fn a_launch_whose_mounts_fail_leaves_nothing() {
        let host = Host::new();
        let driver = host.driver().await;
        // Where the workspace goes, and no directory can.
        let place = host.path().join("data/run/etc/workspace");
        std::fs::remove_dir(&place).unwrap();
        std::fs::write(&place, "").unwrap();
        let mend = || {
            std::fs::remove_file(&place).unwrap();
            std::fs::create_dir(&place).unwrap();
        };
        let said = check_failure(&host, &driver, mend).await;
        assert!(said.contains("attach at workspace"), "{said}");
        driver.close().await;
    }

    /// What a sandbox starts as its PID 1.
    fn guest_program(host: &Host) -> std::path::PathBuf {
        let programs = std::fs::read_dir(host.path().join("data/guest")).unwrap();
        let mut paths = programs.map(|program| program.unwrap().path());
        let named = |path: &std::path::PathBuf| path.to_string_lossy().contains("/guestd-");
        paths.find(named).unwrap()
    }

    #[tokio::test]
    async fn a_launch_whose_guest_does_not_start_leaves_nothing() {
        let host = Host::new();
        let driver = host.driver().await;
        let program = guest_program(&host);
        let kept = std::fs::read(&program).unwrap();
        std::fs::write(&program, "#!/nothing").unwrap();
        check_failure(&host, &driver, || std::fs::write(&program, kept).unwrap()).await;
        driver.close().await;
    }

    #[tokio::test]
    async fn a_launch_whose_guest_dies_at_once_leaves_nothing() {
        let host = Host::new();
        let driver = host.driver().await;
        let guest = guest_program(&host);
        let kept = std::fs::read(&guest).unwrap();
        std::fs::write(&guest, program(ENDS_AT_ONCE)).unwrap();
        check_failure(&host, &driver, || std::fs::write(&guest, kept).unwrap()).await;
        driver.close().await;
    }

    #[tokio::test]
    async fn a_policy_opens_the_way_out_and_survives_a_restart() {
        let host = Host::new();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let server = std::thread::spawn(move || {
            listener.set_nonblocking(true).unwrap();
            while stopped.try_recv().is_err_and(|error| error == TryRecvError::Empty) {
                let accepted = listener.accept();
                let _ =
                    accepted.and_then(|(mut c, _)| std::io::Write::write_all(&mut c, b"outside\n"));
                std::thread::yield_now();
            }
        });
        let policy =
            Policy::parse(&[format!("127.0.0.1/32:{port}"), "outside.test".into()]).unwrap();
        let mut policies = std::collections::BTreeMap::new();
        policies.insert("default".parse().unwrap(), policy.clone());
        let config = || {
            let hosts = [("outside.test".to_owned(), vec!["127.0.0.1".parse().unwrap()])].into();
            let mut config = host.config();
            config.policies = policies.clone();
            config.egress.resolver = driver_linux::egress::Resolver::fixed(hosts);
            config
        };
        let ask = format!(
            "python3 -c 'import socket; print(socket.create_connection((\"outside.test\", {port}), 3).recv(99).decode(), end=\"\")' 2>&1 | tail -1"
        );
        let driver = LinuxDriver::open(config()).await.unwrap();
        let spec = create(&driver).await;
        assert!(!run(&driver, spec.id, &ask).await.1.contains("outside\n"), "closed at first");
        let update = driver::Update { name: None, policy: Some((spec.policy.clone(), policy)) };
        driver.update(spec.id, update).await.unwrap();
        assert_eq!(run(&driver, spec.id, &ask).await.1, "outside\n", "opened while it runs");
        driver.close().await;
        let driver = LinuxDriver::open(config()).await.unwrap();
        assert_eq!(run(&driver, spec.id, &ask).await.1, "outside\n", "the next server carries it");
        let names: Vec<_> = driver.access_log(spec.id).into_iter().map(|a| a.target).collect();
        assert_eq!(names, ["outside.test"]);
        let update = driver::Update { name: None, policy: Some((spec.policy, Policy::none())) };
        driver.update(spec.id, update).await.unwrap();
        assert!(!run(&driver, spec.id, &ask).await.1.contains("outside\n"), "closed again");
        driver.close().await;
        drop(stop);
        server.join().unwrap();
    }

    #[tokio::test]
    async fn two_servers_on_one_host_do_not_touch_each_others_sandboxes() {
        let (host, other) = (Host::new(), Host::new());
        let (one, two) = (host.driver().await, other.driver().await);
        let (mine, theirs) = (create(&one).await, create(&two).await);
        for _ in 0..3 {
            one.collect().await.unwrap();
            two.collect().await.unwrap();
        }
        assert_eq!(run(&one, mine.id, "echo one").await.1, "one\n");
        assert_eq!(run(&two, theirs.id, "echo two").await.1, "two\n");
        one.close().await;
        two.close().await;
    }

    #[tokio::test]
    async fn a_second_server_on_one_directory_is_refused() {
        let host = Host::new();
        let driver = host.driver().await;
        let second = LinuxDriver::open(host.config()).await;
        let error = second.err().expect("refused").to_string();
        assert!(error.contains("another server"), "{error}");
        driver.close().await;
    }

    #[tokio::test]
    async fn a_waiting_sandbox_is_given_out_once_with_what_was_asked() {
        let host = Host::new();
        let mut config = host.config();
        config.warm.insert("host".parse().unwrap(), 2);
        let driver = LinuxDriver::open(config).await.unwrap();
        let template = "host".parse().unwrap();
        let mut taken = Vec::new();
        for _ in 0..200 {
            taken.extend(driver.take_warm(&template, model::Tier::Ephemeral));
            if taken.len() == 3 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert_eq!(taken.len(), 3, "it is filled again");
        taken.dedup();
        assert_eq!(taken.len(), 3, "never one twice");
        assert!(driver.take_warm(&template, model::Tier::Persistent).is_none());
        let mut spec = spec("host");
        spec.id = taken[0];
        spec.limits.pids = 77;
        driver.create(Launch { spec: spec.clone(), policy: Policy::none() }).await.unwrap();
        let (_, text) = run(&driver, spec.id, "echo $GREETING $BASTIDE_SANDBOX_ID").await;
        assert_eq!(text, format!("hello {}\n", spec.id));
        let record = run_record(&host.path().join("data"), spec.id);
        let legacy = record["legacy"].as_array().unwrap();
        let dirs = legacy.iter().map(|dir| dir.as_str().unwrap()).chain(record["unified"].as_str());
        let limits: Vec<String> = dirs
            .filter_map(|dir| std::fs::read_to_string(format!("{dir}/pids.max")).ok())
            .map(|text| text.trim().to_owned())
            .collect();
        assert!(limits.contains(&"77".to_owned()), "{limits:?}");
        driver.close().await;
        let data = host.path().join("data");
        let waiting = std::fs::read_dir(data.join("warm")).unwrap().count();
        assert_eq!(waiting, 0, "nobody waits after the server is gone");
    }
}
