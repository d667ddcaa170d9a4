//! Launchers begin with the sandbox that comes next before it is asked for: it takes what was begun for just this, and
//! whatever happens to that meanwhile, it is made.

#![expect(clippy::unwrap_used, reason = "support of tests: a panic is how it tells")]

mod needs_root {
    use std::collections::{BTreeMap, BTreeSet};
    use std::ffi::OsString;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use driver::{Driver, Launch};
    use driver_linux::LinuxDriver;
    use model::{EndReason, Policy, SandboxId, SandboxSpec};

    use crate::host::{Host, create, kill, run, run_record, spec};

    /// As many as a keeper begins with.
    const BEGUN: usize = 4;

    struct Stage {
        host: Host,
        driver: LinuxDriver,
        first: SandboxId,
    }

    impl Stage {
        /// With one sandbox, from which the keeper knows what the next will be like.
        async fn new() -> Self {
            let host = Host::new();
            let driver = host.driver().await;
            let first = create(&driver).await.id;
            Self { host, driver, first }
        }

        /// The PID 1s that wait, each with its launcher.
        fn waiting(&self) -> BTreeMap<i64, i64> {
            let guest = self.pid(self.first);
            let mut waiting = BTreeMap::new();
            for processes in self.groups() {
                let inside = processes.iter().find(|pid| is_inside(**pid) && **pid != guest);
                let launcher = processes.iter().find(|pid| !is_inside(**pid));
                if let (Some(init), Some(launcher)) = (inside, launcher) {
                    waiting.insert(*init, *launcher);
                }
            }
            waiting
        }

        /// The processes of each control group of this instance.
        fn groups(&self) -> Vec<Vec<i64>> {
            let instance = fs::read_to_string(self.host.path().join("data/instance")).unwrap();
            let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            let unified = table.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
            let mount = Path::new(unified.split(' ').nth(4).unwrap());
            let leaves = fs::read_dir(mount.join("bastide").join(instance.trim())).unwrap();
            let members = leaves.flatten().map(|leaf| {
                let pids = fs::read_to_string(leaf.path().join("cgroup.procs"));
                pids.unwrap_or_default().lines().map(|pid| pid.parse().unwrap()).collect()
            });
            members.collect()
        }

        /// Of guests that have begun, by incarnation.
        fn sockets(&self) -> BTreeSet<OsString> {
            let names = fs::read_dir(self.host.path().join("data/run/next")).unwrap();
            names.map(|entry| entry.unwrap().file_name()).collect()
        }

        async fn until_none_of(&self, sockets: &BTreeSet<OsString>) {
            for _ in 0..200 {
                if self.sockets().is_disjoint(sockets) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
            panic!("of {sockets:?} there are {:?}", self.sockets());
        }

        async fn until_waiting(&self, count: usize) -> BTreeMap<i64, i64> {
            for _ in 0..200 {
                let waiting = self.waiting();
                if waiting.len() == count {
                    return waiting;
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
            panic!("{:?} wait instead of {count}", self.waiting());
        }

        fn pid(&self, id: SandboxId) -> i64 {
            run_record(&self.host.path().join("data"), id)["pid"].as_i64().unwrap()
        }

        async fn make(&self, spec: SandboxSpec) -> SandboxId {
            let id = spec.id;
            self.driver.create(Launch { spec, policy: Policy::none() }).await.unwrap();
            assert_eq!(run(&self.driver, id, "echo fine").await, (0, "fine\n".to_owned()));
            id
        }

        async fn end(self, more: &[SandboxId]) {
            for id in more.iter().chain([&self.first]) {
                self.driver.remove(*id, EndReason::UserRequest).await.unwrap();
            }
            self.driver.close().await;
        }
    }

    async fn until_dead(waiting: &BTreeMap<i64, i64>) {
        for _ in 0..200 {
            if !waiting.keys().any(|init| is_inside(*init)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("of {waiting:?} some live");
    }

    /// What is in `file` once `text` is.
    async fn until_contains(file: impl AsRef<Path>, text: &str) -> String {
        let read = || fs::read_to_string(&file).unwrap();
        for _ in 0..200 {
            if read().contains(text) {
                return read();
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("no {text:?} in {}", read());
    }

    /// Whether it lives and is PID 1 of a namespace below ours.
    fn is_inside(pid: i64) -> bool {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        !status.contains("\nState:\tZ")
            && status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
    }

    #[tokio::test]
    async fn the_next_sandboxes_are_begun_and_each_takes_its_own() {
        let stage = Stage::new().await;
        let mut made = Vec::new();
        for _ in 0..3 {
            let waiting = stage.until_waiting(BEGUN).await;
            let id = stage.make(spec("host")).await;
            assert!(waiting.contains_key(&stage.pid(id)), "{waiting:?}");
            made.push(id);
        }
        stage.end(&made).await;
    }

    /// A copy of a mount of the host would keep it there after the host has unmounted it.
    #[tokio::test]
    async fn what_waits_has_no_mount_of_the_host() {
        let stage = Stage::new().await;
        for init in stage.until_waiting(BEGUN).await.into_keys() {
            // It leaves them a moment after it was made.
            let mounts = until_contains(&format!("/proc/{init}/mountinfo"), " /whole ").await;
            for mount in mounts.lines() {
                let kind = mount.split(" - ").nth(1).and_then(|rest| rest.split(' ').next());
                let of_kernel = ["proc", "sysfs", "tmpfs", "devpts", "cgroup2"];
                assert!(of_kernel.contains(&kind.unwrap()), "{mount}");
            }
            let root = format!("/proc/{init}/root");
            let names = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name());
            let names: BTreeSet<_> = names.collect();
            let made = ["dev", "proc", "root", "sys", "upper", "whole"];
            assert_eq!(names, made.map(OsString::from).into());
        }
        stage.end(&[]).await;
    }

    /// Whoever of the two is killed, the other is gone too, and the next sandbox begins when it is asked for.
    async fn check_killed(pick: fn((&i64, &i64)) -> i64) -> (Stage, BTreeSet<OsString>) {
        let stage = Stage::new().await;
        let waiting = stage.until_waiting(BEGUN).await;
        let sockets = stage.sockets();
        assert_eq!(sockets.len(), BEGUN);
        for pid in waiting.iter().map(pick) {
            assert!(kill(pid));
        }
        until_dead(&waiting).await;
        let id = stage.make(spec("host")).await;
        assert!(!waiting.contains_key(&stage.pid(id)));
        stage.driver.remove(id, EndReason::UserRequest).await.unwrap();
        (stage, sockets)
    }

    #[tokio::test]
    async fn what_was_killed_while_it_waited_is_begun_again() {
        let (stage, _) = check_killed(|(init, _)| *init).await;
        stage.end(&[]).await;
    }

    #[tokio::test]
    async fn what_waits_dies_with_its_launcher() {
        let (stage, sockets) = check_killed(|(_, launcher)| *launcher).await;
        stage.until_none_of(&sockets).await;
        stage.end(&[]).await;
    }

    /// As one leaves it whose launcher and keeper were killed together.
    #[tokio::test]
    async fn a_new_keeper_removes_sockets_of_guests_that_nobody_has_begun() {
        let stage = Stage::new().await;
        let stray = BTreeSet::from([OsString::from("0123456789abcdef")]);
        fs::write(stage.host.path().join("data/run/next/0123456789abcdef"), "").unwrap();
        assert!(kill(stage.host.keeper_pid().unwrap().into()));
        while stage.host.keeper_pid().is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let id = stage.make(spec("host")).await;
        stage.until_none_of(&stray).await;
        stage.end(&[id]).await;
    }

    #[tokio::test]
    async fn what_could_not_be_begun_begins_when_it_is_asked_for() {
        let stage = Stage::new().await;
        let waiting = stage.until_waiting(BEGUN).await;
        let place = stage.host.path().join("data/run/mnt");
        let hidden = place.with_extension("hidden");
        fs::rename(&place, &hidden).unwrap();
        // What has begun does not need it; the one that is begun in its stead does.
        let mut made = vec![stage.make(spec("host")).await];
        let log = stage.host.path().join("data/run/keeper.log");
        until_contains(log, "go to the mount point").await;
        fs::rename(&hidden, &place).unwrap();
        for _ in 0..BEGUN {
            made.push(stage.make(spec("host")).await);
        }
        let begun = made.iter().filter(|id| waiting.contains_key(&stage.pid(**id)));
        assert_eq!(begun.count(), BEGUN);
        stage.end(&made).await;
    }

    /// Its own begins when it is asked for; the others stay for those that are like the one before.
    #[tokio::test]
    async fn a_sandbox_of_another_kind_takes_nothing_that_was_begun() {
        let stage = Stage::new().await;
        let waiting = stage.until_waiting(BEGUN).await;
        // It has a way out, which nothing that waits has.
        let other = spec("host");
        let id = other.id;
        stage.driver.create(Launch { spec: other, policy: Policy::open() }).await.unwrap();
        assert!(!waiting.contains_key(&stage.pid(id)));
        let next = stage.make(spec("host")).await;
        assert!(waiting.contains_key(&stage.pid(next)));
        stage.end(&[id, next]).await;
    }

    #[tokio::test]
    async fn a_sandbox_of_another_size_takes_what_was_begun_with_limits_of_its_own() {
        let stage = Stage::new().await;
        let usual = spec("host").limits;
        let mut made = Vec::new();
        for (memory_mib, pids) in [(usual.memory_mib * 2, 77), (usual.memory_mib / 2, 99)] {
            let waiting = stage.until_waiting(BEGUN).await;
            let mut other = spec("host");
            (other.limits.memory_mib, other.limits.pids) = (memory_mib, pids);
            let id = stage.make(other).await;
            made.push(id);
            assert!(waiting.contains_key(&stage.pid(id)));
            let record = run_record(&stage.host.path().join("data"), id);
            let groups = record["legacy"].as_array().unwrap().iter().chain([&record["unified"]]);
            let groups: Vec<_> =
                groups.map(|group| PathBuf::from(group.as_str().unwrap())).collect();
            let limit = |files: &[&str]| {
                let files =
                    groups.iter().flat_map(|group| files.iter().map(|file| group.join(file)));
                files.filter_map(|file| fs::read_to_string(file).ok()).next().unwrap()
            };
            assert_eq!(limit(&["pids.max"]), format!("{pids}\n"));
            let memory = limit(&["memory.limit_in_bytes", "memory.max"]);
            assert_eq!(memory, format!("{}\n", u64::from(memory_mib) << 20));
        }
        stage.end(&made).await;
    }
}
