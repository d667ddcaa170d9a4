//! The binary as PID 1 of a pid namespace, as a launcher starts it: descriptors by number, nothing
//! else.

/// Everything here makes namespaces and mounts.
mod needs_root {
    use std::fs;
    use std::os::fd::{AsRawFd as _, OwnedFd};
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use guest_proto::{Address, ExecStart, Guest};
    use tempfile::TempDir;

    use crate::commands::{is_alive, read_all, shell};

    /// A guest that is killed with the value, and everything in its namespace with it.
    struct PidOne {
        guest: Guest,
        unshare: Child,
        directory: TempDir,
        /// The root of the cgroup file system, which outlives the mount namespace through this.
        cgroups: fs::File,
        cgroup_name: String,
    }

    impl PidOne {
        /// In a mount namespace of its own too, where a cgroup file system of version 2 is mounted.
        async fn start() -> Self {
            let directory = TempDir::new().unwrap();
            let socket = directory.path().join("socket");
            let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
            let name = format!("guestd-test-{}", std::process::id());
            let mounted = directory.path().join("cgroup");
            fs::create_dir(&mounted).unwrap();
            let cgroup = mounted.join(&name);
            // Shell redirections put the two descriptors where the launcher does.
            let script = "mount -t cgroup2 none \"$3\" && mkdir \"$4\" && \
                exec unshare --pid --fork --kill-child --mount-proc \
                \"$1\" --listen-fd 3 --cgroup-fd 4 --nonce \"$2\" --user root --workdir / \
                3<&0 4<\"$4\" </dev/null";
            let unshare = Command::new("unshare")
                .args(["--mount", "--", "/bin/sh", "-c", script, "sh"])
                .args([env!("CARGO_BIN_EXE_guestd"), "the-nonce"])
                .args([&mounted, &cgroup])
                .env_clear()
                .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
                .env("FROM_LAUNCHER", "yes")
                .stdin(Stdio::from(OwnedFd::from(listener)))
                .spawn()
                .unwrap();
            let guest = Guest::new(Address::Unix(socket));
            // Its answer means that the mount is there.
            guest.health().await.unwrap();
            let root = format!("/proc/{}/root", unshare.id());
            let cgroups = PathBuf::from(root).join(mounted.strip_prefix("/").unwrap());
            let cgroups = fs::File::open(cgroups).unwrap();
            Self { guest, unshare, directory, cgroups, cgroup_name: name }
        }

        async fn run(&self, id: &str, script: &str) -> String {
            read_all(self.guest.exec(&shell(id, script)).await.unwrap()).await.stdout
        }

        /// As the host sees it.
        fn cgroup_from_outside(&self, name: &str) -> PathBuf {
            let root = format!("/proc/self/fd/{}", self.cgroups.as_raw_fd());
            PathBuf::from(root).join(&self.cgroup_name).join(name)
        }
    }

    impl Drop for PidOne {
        fn drop(&mut self) {
            let _ = self.unshare.kill();
            let _ = self.unshare.wait();
            let cgroup = self.cgroup_from_outside("");
            let names = fs::read_dir(&cgroup).into_iter().flatten().flatten();
            let mut all: Vec<_> =
                names.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
            all.push(cgroup);
            for directory in all {
                let _ = fs::write(directory.join("cgroup.kill"), "1");
                // Its processes are dead, but not all of them reaped.
                while matches!(fs::remove_dir(&directory), Err(error) if error.raw_os_error() == Some(16))
                {
                    std::thread::yield_now();
                }
            }
            let _ = self.directory.path();
        }
    }

    async fn wait_for(mut is_so: impl FnMut() -> bool) {
        for _ in 0..500 {
            if is_so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it never was so");
    }

    #[tokio::test]
    async fn it_serves_with_the_environment_of_its_launcher() {
        let guest = PidOne::start().await;
        assert_eq!(guest.guest.health().await.unwrap().nonce, "the-nonce");
        assert_eq!(guest.run("a", "echo $FROM_LAUNCHER $PPID; pwd").await, "yes 1\n/\n");
    }

    #[tokio::test]
    async fn it_reaps_orphans_and_keeps_exit_codes() {
        let guest = PidOne::start().await;
        let orphan = "setsid sh -c 'setsid sh -c \"echo \\$\\$; exit 0\" & exit 0'";
        let pid = guest.run("a", orphan).await.trim().to_owned();
        assert!(!pid.is_empty());
        let mut round = 0;
        loop {
            let look = format!("test -e /proc/{pid} && echo there; exit 7");
            let start = shell(&format!("look-{round}"), &look);
            let ran = read_all(guest.guest.exec(&start).await.unwrap()).await;
            assert_eq!(ran.end.exit_code, 7);
            if ran.stdout.is_empty() {
                return;
            }
            round += 1;
            assert!(round < 200, "process {pid} is not reaped");
        }
    }

    #[tokio::test]
    async fn nobody_but_root_looks_into_it_and_children_die_first() {
        let guest = PidOne::start().await;
        let mut start =
            shell("a", "cat /proc/1/environ 2>&1 >/dev/null; ls /proc/1/fd 2>&1 >/dev/null");
        start.user = Some("nobody".into());
        let ran = read_all(guest.guest.exec(&start).await.unwrap()).await;
        assert_eq!(ran.stdout.matches("Permission denied").count(), 2, "{}", ran.stdout);
        let script = "cat /proc/1/oom_score_adj /proc/self/oom_score_adj";
        let scores = guest.run("b", script).await;
        let scores: Vec<i32> = scores.lines().map(|line| line.parse().unwrap()).collect();
        assert!(scores[1] > scores[0], "{scores:?}");
    }

    #[tokio::test]
    async fn a_cgroup_ends_what_escaped_its_session() {
        let guest = PidOne::start().await;
        // Two forks and a session of its own: nothing but the cgroup knows whose it is.
        let daemon = "setsid sh -c 'setsid sleep 300 & exit 0'; sleep 300";
        let argv = ["/bin/sh", "-c", daemon].map(str::to_owned).to_vec();
        let start = ExecStart { id: "a".into(), argv, detached: true, ..ExecStart::default() };
        let frames = guest.guest.exec(&start).await.unwrap();
        let procs = guest.cgroup_from_outside("x-1/cgroup.procs");
        let inside = || fs::read_to_string(&procs).unwrap_or_default();
        wait_for(|| inside().lines().count() == 3).await;
        let pids: Vec<String> = inside().lines().map(str::to_owned).collect();
        guest.guest.exec_kill("a").await.unwrap();
        wait_for(|| !pids.iter().any(|pid| is_alive(pid))).await;
        assert_eq!(read_all(frames).await.end.exit_code, 137);
        // A cgroup that was killed is not used again; one whose command ended by itself is.
        wait_for(|| inside().is_empty()).await;
        let script = "grep -o 'x-[0-9]*' /proc/self/cgroup | tail -1";
        assert_eq!(guest.run("b", script).await, "x-2\n");
        // That is after its answer, so a command that comes at once may come too soon.
        let mut commands = 0;
        while guest.run(&format!("c{commands}"), script).await != "x-2\n" {
            commands += 1;
            assert!(commands < 100, "it is never used again");
        }
    }

    #[tokio::test]
    async fn sigterm_ends_it() {
        let mut guest = PidOne::start().await;
        guest.guest.health().await.unwrap();
        let children = format!("/proc/{0}/task/{0}/children", guest.unshare.id());
        let inner = fs::read_to_string(children).unwrap();
        let pid = rustix::process::Pid::from_raw(inner.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let ended = guest.unshare.wait().unwrap();
        assert!(ended.success(), "{ended:?}");
    }
}
