//! A machine, a server or a guest that goes down, and what is found then.

#![expect(clippy::unwrap_used, reason = "what tests share: a panic is how it tells")]

mod needs_root {
    use std::cell::Cell;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use driver::{Driver, Launch};
    use driver_linux::{DiskKind, LinuxDriver};
    use model::{EndReason, Phase, Policy, SandboxSpec, TemplateName, Tier};
    use rustix::process::{Pid, Signal, kill_process};

    use crate::host::{Host, create, kill, run, run_record, spec, until};

    #[tokio::test]
    async fn a_machine_that_went_down_leaves_its_sandboxes_stopped_with_what_was_flushed() {
        goes_down(&Host::new()).await;
    }

    #[tokio::test]
    async fn the_same_with_a_disk_image_each() {
        goes_down(&Host::with_disk(DiskKind::Image)).await;
    }

    /// Whatever that leaves of what is never flushed: the record of what ran, the note of a stop that was
    /// under way, the disks of a moment before. An older server's spec does not name its boot.
    async fn goes_down(host: &Host) {
        for (left, has_disks, boot) in [
            ("record", false, Some("of before")),
            ("nothing", false, Some("of before")),
            ("torn", true, Some("of before")),
            ("torn stop", true, Some("of before")),
            ("nothing", true, None),
        ] {
            let driver = host.driver().await;
            let spec = create(&driver).await;
            let data = host.path().join("data");
            let dir = data.join("sandboxes").join(spec.id.bare());
            driver.close().await;
            let mut record = run_record(&data, spec.id);
            assert!(kill(record["pid"].as_i64().unwrap()));
            match left {
                "record" => {
                    record["boot_id"] = "of before".into();
                    fs::write(dir.join("run.json"), record.to_string()).unwrap();
                }
                "torn" => fs::write(dir.join("run.json"), "").unwrap(),
                "torn stop" => {
                    fs::write(dir.join("run.json"), "").unwrap();
                    fs::write(dir.join("end.json"), "").unwrap();
                }
                _ => fs::remove_file(dir.join("run.json")).unwrap(),
            }
            if !has_disks {
                lose_disks(&data.join("pool"), &spec.id.bare());
            }
            let text = fs::read(dir.join("spec.json")).unwrap();
            let mut stored: serde_json::Value = serde_json::from_slice(&text).unwrap();
            assert!(stored["boot"].is_string(), "{stored}");
            stored["boot"] = boot.into();
            fs::write(dir.join("spec.json"), stored.to_string()).unwrap();

            let driver = host.driver().await;
            let observed = driver.observe(spec.id).await.unwrap().unwrap();
            assert_eq!(observed.phase, Phase::Stopped);
            assert_eq!(observed.end_reason, Some(EndReason::HostLost));
            assert!(observed.greeted, "{left}: a create that may have been answered");
            driver.start(spec.id, Policy::none()).await.unwrap();
            assert_eq!(run(&driver, spec.id, "echo x > /workspace/file").await.0, 0);
            driver.remove(spec.id, EndReason::UserRequest).await.unwrap();
            driver.close().await;
        }
    }
    fn lose_disks(pool: &Path, sandbox: &str) {
        let home = pool.join(sandbox);
        if pool.join(format!("{sandbox}.img")).exists() {
            assert!(Command::new("umount").arg(&home).status().unwrap().success());
            fs::remove_file(pool.join(format!("{sandbox}.img"))).unwrap();
        }
        fs::remove_dir_all(home).unwrap();
    }

    #[tokio::test]
    async fn a_start_that_was_cut_off_leaves_it_stopped_for_the_reason_it_was() {
        let host = Host::new();
        let data = host.path().join("data");
        let driver = host.driver().await;
        let id = create(&driver).await.id;
        driver.stop(id, EndReason::UserRequest).await.unwrap();
        let dir = data.join("sandboxes").join(id.bare());
        let note = fs::read(dir.join("end.json")).unwrap();
        driver.start(id, Policy::none()).await.unwrap();
        assert!(!dir.join("end.json").exists(), "it runs, whatever happens next");
        driver.close().await;
        // As a server leaves it that dies before the guest answers, which then ends with its launcher.
        fs::write(dir.join("end.json"), note).unwrap();
        fs::set_permissions(dir.join("run.json"), PermissionsExt::from_mode(0o600)).unwrap();
        assert!(kill(run_record(&data, id)["pid"].as_i64().unwrap()));
        let driver = host.driver().await;
        let seen = driver.observe(id).await.unwrap().unwrap();
        assert_eq!((seen.phase, seen.end_reason), (Phase::Stopped, Some(EndReason::UserRequest)));
        assert!(seen.greeted);
        driver.close().await;
    }

    #[tokio::test]
    async fn one_that_dies_while_its_start_is_being_answered_is_told_as_ended() {
        let host = Host::new();
        let data = host.path().join("data");
        let driver = host.driver().await;
        let id = create(&driver).await.id;
        let record = data.join("sandboxes").join(id.bare()).join("run.json");
        for round in 0..20 {
            driver.stop(id, EndReason::UserRequest).await.unwrap();
            let answered = Arc::new(AtomicBool::new(false));
            let (over, path) = (Arc::clone(&answered), record.clone());
            let killer = tokio::task::spawn_blocking(move || kill_once_answered(&path, &over));
            let started = driver.start(id, Policy::none()).await;
            answered.store(true, Ordering::SeqCst);
            killer.await.unwrap();
            let seen = async || driver.observe(id).await.unwrap().unwrap().phase;
            let what = format!("stopped in round {round}, started: {started:?}");
            until(&what, async || seen().await == Phase::Stopped).await;
        }
        driver.close().await;
    }

    #[tokio::test]
    async fn what_is_left_of_a_guest_over_the_workspace_goes_while_the_sandbox_runs() {
        let host = Host::new();
        let data = host.path().join("data");
        let driver = host.driver().await;
        let id = create(&driver).await.id;
        let socket = |name: String| data.join("run/g").join(name);
        let left = socket(format!("{}-m", id.bare()));
        fs::write(&left, "").unwrap();
        // What is nobody's at two looks.
        driver.collect().await.unwrap();
        assert!(left.exists());
        driver.collect().await.unwrap();
        assert!(!left.exists());
        driver.close().await;
        // A server that died over the rest, with the cgroups removed.
        let mut record = run_record(&data, id);
        record["incarnation"] = "of before".into();
        record["unified"] = data.join("gone").to_str().unwrap().into();
        record["socket"] = left.to_str().unwrap().into();
        let maintenance = data.join("sandboxes").join(id.bare()).join("maintenance.json");
        fs::write(&maintenance, record.to_string()).unwrap();
        fs::write(&left, "").unwrap();
        let driver = host.driver().await;
        assert!(!left.exists() && !maintenance.exists());
        assert!(socket(id.bare()).exists());
        assert_eq!(run(&driver, id, "echo fine").await.1, "fine\n");
        driver.remove(id, EndReason::UserRequest).await.unwrap();
        driver.close().await;
    }

    #[tokio::test]
    async fn a_waiting_sandbox_that_died_is_given_to_nobody() {
        let host = Host::new();
        let mut config = host.config();
        let template: TemplateName = "host".parse().unwrap();
        config.warm.insert(template.clone(), 1);
        let driver = LinuxDriver::open(config).await.unwrap();
        let taken = Cell::new(None);
        let take = async || {
            taken.set(driver.take_warm(&template, Tier::Ephemeral));
            taken.get().is_some()
        };
        until("one waits", take).await;
        let dead = taken.take().unwrap();
        // Another is made for it, and then nobody looks at them.
        let waiting = host.path().join("data/warm");
        until("two wait", async || fs::read_dir(&waiting).unwrap().count() == 2).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        driver.return_warm(dead);
        let record = waiting.join(dead.bare()).join("run.json");
        kill_once_answered(&record, &AtomicBool::new(true));
        tokio::time::sleep(Duration::from_millis(300)).await;
        until("another one waits", take).await;
        let id = taken.take().unwrap();
        assert_ne!(id, dead);
        // Nor is one of use that dies when it is taken: there is a launch then, as without it.
        kill_once_answered(&waiting.join(id.bare()).join("run.json"), &AtomicBool::new(true));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let launch = Launch { spec: SandboxSpec { id, ..spec("host") }, policy: Policy::none() };
        driver.create(launch).await.unwrap();
        assert_eq!(run(&driver, id, "echo fine").await.1, "fine\n");
        driver.remove(id, EndReason::UserRequest).await.unwrap();
        driver.close().await;
    }

    /// From the moment in which the server has noted that the guest answers, or what it began is over.
    fn kill_once_answered(record: &Path, over: &AtomicBool) {
        let is_noted = || fs::metadata(record).is_ok_and(|meta| meta.mode() & 0o222 == 0);
        while !is_noted() && !over.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let text = fs::read(record).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let pid = Pid::from_raw(record["pid"].as_i64().unwrap().try_into().unwrap());
        kill_process(pid.unwrap(), Signal::KILL).unwrap();
    }
}
