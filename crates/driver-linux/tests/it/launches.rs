//! For every step of a launch, something that makes that step fail: nothing of the sandbox is left, and
//! once the cause is mended the next one works. Mounts, a guest that does not start and one that dies
//! are in `restart`; a full and a read-only disk are tested through the server.

#![expect(clippy::unwrap_used, reason = "what tests share: a panic is how it tells")]

mod needs_root {
    use std::collections::BTreeSet;
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::net::Shutdown;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use driver::{Driver, Launch};
    use driver_linux::{LinuxConfig, LinuxDriver};
    use model::{EndReason, Policy, SandboxId, SandboxSpec};

    use crate::host::{
        Host, SAYS_NOTHING, create, kill, program, run, run_record, spec, succeed, until,
    };

    /// A host whose keeper can be taken away.
    struct Stage {
        host: Host,
    }

    impl Stage {
        fn new() -> Self {
            Self { host: Host::new() }
        }

        fn config(&self) -> LinuxConfig {
            let own = self.host.config();
            let made = LinuxConfig::new(self.data());
            LinuxConfig { disk: own.disk, runtime_dir: own.runtime_dir, ..made }
        }

        fn data(&self) -> PathBuf {
            self.host.path().join("data")
        }

        fn names(&self, dir: &str) -> Vec<String> {
            let entries = fs::read_dir(self.data().join(dir)).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            // Disks of sandboxes to come are nobody's.
            names.filter(|name| !name.starts_with(".blank-")).collect()
        }

        fn end_keeper(&self) {
            assert!(kill(self.host.keeper_pid().unwrap().into()));
            while self.host.keeper_pid().is_some() {
                std::thread::yield_now();
            }
        }

        /// What a launch may leave, in any place that has anything of a sandbox.
        #[track_caller]
        fn assert_clean(&self, driver: &LinuxDriver, step: &str) {
            for dir in ["sandboxes", "deleting", "pool", "run/g", "warm"] {
                assert_eq!(self.names(dir), [""; 0], "{step}: in {dir}");
            }
            assert_eq!(driver.uid_ranges_in_use(), 0, "{step}: uids");
            let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
            let data = self.data();
            let of_ours = mounts.lines().filter(|line| line.contains(data.to_str().unwrap()));
            assert_eq!(of_ours.count(), 1, "{step}: more than the pool is mounted:\n{mounts}");
            assert_eq!(self.members(), BTreeSet::new(), "{step}: processes");
        }

        /// The command lines of everything in the control groups of this instance, but for launchers and what they
        /// have begun with.
        fn members(&self) -> BTreeSet<String> {
            let instance = fs::read_to_string(self.data().join("instance")).unwrap();
            let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            let mounts = table.lines().filter(|line| line.contains(" - cgroup"));
            let mut lines = BTreeSet::new();
            for mount in mounts.filter_map(|line| line.split(' ').nth(4)) {
                let group = Path::new(mount).join("bastide").join(instance.trim());
                for leaf in fs::read_dir(group).into_iter().flatten().flatten() {
                    let pids = fs::read_to_string(leaf.path().join("cgroup.procs"));
                    let pids = pids.unwrap_or_default();
                    let members: Vec<String> = pids.lines().filter_map(command_line).collect();
                    let waits = members.iter().any(|line| line.contains("bastide-keeper"));
                    lines.extend(members.into_iter().filter(|_| !waits));
                }
            }
            lines
        }
    }

    /// A process that ends has none any more.
    fn command_line(pid: &str) -> Option<String> {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        (!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned())
    }

    async fn create_with(driver: &LinuxDriver, spec: SandboxSpec) -> model::Result<()> {
        driver.create(Launch { spec, policy: Policy::none() }).await.map(drop)
    }

    /// Breaks something for one launch: it fails, nothing is left, and the next one works.
    async fn check(
        step: &str,
        break_it: impl Fn(&Stage, SandboxId),
        mend: impl Fn(&Stage, SandboxId),
    ) -> String {
        let stage = Stage::new();
        let driver = LinuxDriver::open(stage.config()).await.unwrap();
        let doomed = spec("host");
        let id = doomed.id;
        break_it(&stage, id);
        let refused = create_with(&driver, doomed).await;
        mend(&stage, id);
        let said = refused.err().map(|error| format!("{:#}", anyhow::Error::from(error)));
        let said = said.unwrap_or_else(|| panic!("{step} did not fail"));
        assert!(driver.list().await.unwrap().is_empty(), "{step}");
        // What a killed keeper was about to do is the sweep's, which looks twice.
        for _ in 0..2 {
            driver.collect().await.unwrap();
        }
        stage.assert_clean(&driver, step);
        let fine = create(&driver).await;
        assert_eq!(run(&driver, fine.id, "echo fine").await.1, "fine\n", "{step}");
        driver.remove(fine.id, EndReason::UserRequest).await.unwrap();
        driver.close().await;
        said
    }

    /// The launcher is at work then, and waits for them.
    #[tokio::test]
    async fn a_launch_whose_disks_cannot_be_made_leaves_nothing() {
        let chattr = |stage: &Stage, flag: &str| {
            let pool = stage.data().join("pool");
            assert!(Command::new("chattr").arg(flag).arg(pool).status().unwrap().success());
        };
        let (break_it, mend) =
            (|stage: &Stage, _| chattr(stage, "+i"), |stage: &Stage, _| chattr(stage, "-i"));
        let said = check("make the disks", break_it, mend).await;
        assert!(said.contains("Operation not permitted"), "{said}");
    }

    #[tokio::test]
    async fn a_launch_whose_control_groups_cannot_be_made_leaves_nothing() {
        let limit = |stage: &Stage, value: &str| {
            let instance = fs::read_to_string(stage.data().join("instance")).unwrap();
            let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            let unified = table.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
            let mount = Path::new(unified.split(' ').nth(4).unwrap());
            let group = mount.join("bastide").join(instance.trim());
            fs::write(group.join("cgroup.max.descendants"), value).unwrap();
        };
        let break_it = |stage: &Stage, _| {
            // Launchers that wait have their groups already; new ones make theirs.
            stage.end_keeper();
            limit(stage, "0");
        };
        let mend = |stage: &Stage, _| {
            limit(stage, "max");
            stage.end_keeper();
        };
        check("make control groups", break_it, mend).await;
    }

    #[tokio::test]
    async fn a_launch_whose_spec_cannot_be_written_leaves_nothing() {
        let in_the_way = |stage: &Stage, id: SandboxId| {
            let place = stage.data().join("sandboxes").join(id.bare()).join("spec.tmp");
            fs::create_dir_all(place).unwrap();
        };
        check("write the spec", in_the_way, |_, _| {}).await;
    }

    #[tokio::test]
    async fn a_launch_whose_run_record_cannot_be_written_leaves_nothing() {
        let in_the_way = |stage: &Stage, id: SandboxId| {
            let place = stage.data().join("sandboxes").join(id.bare()).join("run.tmp");
            fs::create_dir_all(place).unwrap();
        };
        check("write the run record", in_the_way, |_, _| {}).await;
    }

    /// Passes everything on but a second answer, in whose place it ends the connection.
    fn relay(client: UnixStream, keeper: UnixStream) {
        let (mut asked, mut passed_on) = (client.try_clone().unwrap(), keeper.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut asked, &mut passed_on));
        let (mut answers, mut client) = (keeper, client);
        let mut answer = || {
            let mut length = [0u8; 4];
            answers.read_exact(&mut length)?;
            let mut body = vec![0; u32::from_be_bytes(length).try_into().unwrap()];
            answers.read_exact(&mut body)?;
            std::io::Result::Ok([&length[..], &body].concat())
        };
        if let Ok(first) = answer() {
            let _ = client.write_all(&first);
            let _ = answer();
        }
        let _ = client.shutdown(Shutdown::Both);
    }

    /// The guest answers by then, and nobody knows whether the sandbox is whole.
    #[tokio::test]
    async fn a_launch_that_nobody_finishes_leaves_nothing() {
        let socket = |stage: &Stage| stage.data().join("run/keeper.sock");
        let hidden = |stage: &Stage| stage.data().join("run/hidden.sock");
        let break_it = |stage: &Stage, _| {
            fs::rename(socket(stage), hidden(stage)).unwrap();
            let (listener, keeper) = (UnixListener::bind(socket(stage)).unwrap(), hidden(stage));
            std::thread::spawn(move || {
                let clients = listener.incoming().map_while(Result::ok);
                clients.for_each(|client| relay(client, UnixStream::connect(&keeper).unwrap()));
            });
        };
        let mend = |stage: &Stage, _| fs::rename(hidden(stage), socket(stage)).unwrap();
        let said = check("finish", break_it, mend).await;
        assert!(said.contains("the keeper does not answer"), "{said}");
    }

    /// Its server and its launcher died in the moment between its first word and the end of its launch.
    #[tokio::test]
    async fn a_guest_whose_old_root_is_still_there_is_not_adopted() {
        let host = Host::new();
        let driver = host.driver().await;
        let (whole, half) = (create(&driver).await, create(&driver).await);
        driver.close().await;
        let data = host.path().join("data");
        for id in [whole.id, half.id] {
            let record = data.join("sandboxes").join(id.bare()).join("run.json");
            fs::set_permissions(record, PermissionsExt::from_mode(0o600)).unwrap();
        }
        let pid = run_record(&data, half.id)["pid"].to_string();
        let over = ["mount", "-t", "tmpfs", "none", "/"];
        succeed(Command::new("nsenter").args(["--target", &pid, "--mount"]).args(over));

        let driver = host.driver().await;
        let phase = async |id| driver.observe(id).await.unwrap().unwrap().phase;
        assert_eq!(phase(whole.id).await, model::Phase::Running);
        assert_eq!(phase(half.id).await, model::Phase::Stopped);
        assert!(!kill(pid.parse().unwrap()), "its guest is gone");
        driver.close().await;
    }

    /// It has left the pool then, and its directory is where those that wait are, for a moment more.
    #[tokio::test]
    async fn a_sweep_leaves_what_is_given_out_of_the_warm_pool_alone() {
        let stage = Stage::new();
        let driver = LinuxDriver::open(stage.config()).await.unwrap();
        let id = create(&driver).await.id;
        run(&driver, id, "echo kept > /workspace/file").await;
        let waits = |id: SandboxId| stage.data().join("warm").join(id.bare());
        let nobodys = SandboxId::generate();
        [id, nobodys].into_iter().for_each(|id| fs::create_dir(waits(id)).unwrap());
        driver.collect().await.unwrap();
        assert!(waits(id).exists() && !waits(nobodys).exists());
        assert_eq!(run(&driver, id, "cat /workspace/file").await.1, "kept\n");
        driver.close().await;
    }

    /// Over and over, because a sweep takes only what it found to be nobody's the time before too.
    #[tokio::test]
    async fn sweeps_beside_a_busy_warm_pool_take_nothing() {
        let stage = Stage::new();
        let template = "host".parse().unwrap();
        let mut config = stage.config();
        config.warm.insert("host".parse().unwrap(), 8);
        let driver = LinuxDriver::open(config).await.unwrap();
        for _ in 0..20 {
            let mut taken = Vec::new();
            let filled = async || {
                taken.extend(driver.take_warm(&template, model::Tier::Ephemeral));
                taken.len() == 8
            };
            until("is the pool filled", filled).await;
            let claim = async |id| create_with(&driver, SandboxSpec { id, ..spec("host") }).await;
            let claims = futures_util::future::join_all(taken.iter().map(|id| claim(*id)));
            let (claimed, swept) = tokio::join!(claims, driver.collect());
            swept.unwrap();
            claimed.into_iter().for_each(|claimed| claimed.unwrap());
            for id in taken {
                assert_eq!(run(&driver, id, "cd /workspace && touch it && ls").await.1, "it\n");
                driver.remove(id, EndReason::UserRequest).await.unwrap();
            }
        }
        driver.close().await;
    }

    #[tokio::test]
    async fn a_launch_without_a_keeper_leaves_nothing() {
        let guest = |stage: &Stage| stage.data().join("guest");
        let hidden = |stage: &Stage| stage.data().join("hidden");
        let break_it = |stage: &Stage, _| {
            stage.end_keeper();
            fs::rename(guest(stage), hidden(stage)).unwrap();
        };
        let mend = |stage: &Stage, _| fs::rename(hidden(stage), guest(stage)).unwrap();
        check("start a launcher", break_it, mend).await;
    }

    /// What a sandbox starts as its PID 1.
    fn guest_program(stage: &Stage) -> PathBuf {
        let name = stage.names("guest").into_iter().find(|name| name.starts_with("guestd-"));
        stage.data().join("guest").join(name.unwrap())
    }

    #[tokio::test]
    async fn a_launch_whose_guest_never_answers_leaves_nothing() {
        // Other than what it may be replaced by, the file is busy while it runs: so it is moved.
        let kept = |stage: &Stage| stage.host.path().join("kept");
        let break_it = |stage: &Stage, _| {
            let guest = guest_program(stage);
            fs::rename(&guest, kept(stage)).unwrap();
            fs::write(&guest, program(SAYS_NOTHING)).unwrap();
            fs::set_permissions(guest, PermissionsExt::from_mode(0o755)).unwrap();
        };
        let mend = |stage: &Stage, _| {
            let guest = guest_program(stage);
            fs::remove_file(&guest).unwrap();
            fs::rename(kept(stage), guest).unwrap();
            // Others of it may have been started for the sandboxes to come.
            stage.end_keeper();
        };
        check("greet the guest", break_it, mend).await;
    }

    #[tokio::test]
    async fn a_waiting_sandbox_that_cannot_be_claimed_goes() {
        let stage = Stage::new();
        let mut config = stage.config();
        config.warm.insert("host".parse().unwrap(), 1);
        let driver = LinuxDriver::open(config).await.unwrap();
        let template = "host".parse().unwrap();
        let mut taken = None;
        for _ in 0..400 {
            taken = driver.take_warm(&template, model::Tier::Ephemeral);
            if taken.is_some() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        let id = taken.unwrap();
        // A claim is a rename, which nothing may be in the way of.
        fs::create_dir_all(stage.data().join("sandboxes").join(id.bare()).join("in-the-way"))
            .unwrap();
        let refused = create_with(&driver, SandboxSpec { id, ..spec("host") }).await;
        assert!(refused.is_err());
        assert!(driver.observe(id).await.unwrap().is_none());
        driver.collect().await.unwrap();
        driver.collect().await.unwrap();
        let left = |dir: &str| stage.names(dir).iter().any(|name| name.contains(&id.bare()));
        for dir in ["sandboxes", "deleting", "pool", "run/g", "warm"] {
            assert!(!left(dir), "{dir}: {:?}", stage.names(dir));
        }
        let fine = create(&driver).await;
        assert_eq!(run(&driver, fine.id, "echo fine").await.1, "fine\n");
        driver.remove(fine.id, EndReason::UserRequest).await.unwrap();
        driver.close().await;
    }

    /// A start is a launch too, and what it begins from must survive its failure.
    #[tokio::test]
    async fn a_start_that_fails_leaves_the_sandbox_stopped_with_what_it_had() {
        let stage = Stage::new();
        let driver = LinuxDriver::open(stage.config()).await.unwrap();
        let kept = create(&driver).await;
        run(&driver, kept.id, "echo kept > /workspace/file").await;
        driver.stop(kept.id, EndReason::UserRequest).await.unwrap();
        let place = stage.data().join("sandboxes").join(kept.id.bare()).join("run.tmp");
        fs::create_dir(&place).unwrap();
        assert!(driver.start(kept.id, Policy::none()).await.is_err());
        fs::remove_dir(&place).unwrap();
        let observed = driver.observe(kept.id).await.unwrap().unwrap();
        assert_eq!(observed.phase, model::Phase::Stopped);
        assert_eq!(driver.uid_ranges_in_use(), 0);
        // As whoever asked for the start does then.
        driver.stop(kept.id, EndReason::Unknown).await.unwrap();
        let observed = driver.observe(kept.id).await.unwrap().unwrap();
        assert_eq!(observed.end_reason, Some(EndReason::UserRequest));
        driver.start(kept.id, Policy::none()).await.unwrap();
        assert_eq!(run(&driver, kept.id, "cat /workspace/file").await.1, "kept\n");
        assert!(run_record(&stage.data(), kept.id)["pid"].is_number());
        driver.remove(kept.id, EndReason::UserRequest).await.unwrap();
        driver.close().await;
    }
}
