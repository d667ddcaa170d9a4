//! `bastide serve` as an ordinary user.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::user::{Ids, UID, User, pause};
use crate::instance::Instance;

#[test]
fn a_server_and_its_keeper_may_be_killed() {
    for ids in [Ids::Range, Ids::One] {
        let user = User::new(ids);
        let mut instance = user.instance();
        instance.start().unwrap();
        let create =
            ["sandbox", "create", "--template", "host", "--name", "box", "--tier", "persistent"];
        instance.bastide(&create).unwrap();
        let exec = |instance: &Instance, command: &str| {
            instance.bastide(&["sandbox", "exec", "box", "--", command]).unwrap()
        };
        let script = "nohup sleep 1000 >/dev/null 2>&1 & echo $! > /workspace/pid; id -un";
        let expected = if ids == Ids::Range { "user\n" } else { "root\n" };
        assert_eq!(exec(&instance, script), expected);
        for (server, keeper) in [(true, false), (false, true), (true, true)] {
            if server {
                instance.kill_server().unwrap();
            }
            if keeper {
                instance.end_keeper().unwrap();
            }
            if server {
                instance.start().unwrap();
            }
            let alive = "tr '\\0' ' ' < /proc/$(cat /workspace/pid)/cmdline";
            assert_eq!(
                exec(&instance, alive).trim_end(),
                "sleep 1000",
                "{ids:?} {server} {keeper}"
            );
        }
        // Egress is asked for late, of a keeper that did not see the launch.
        open_policy(&instance);
        exec(&instance, "getent hosts example.com | grep -q ^198.1");
        instance.bastide(&["sandbox", "stop", "box"]).unwrap();
        instance.bastide(&["sandbox", "start", "box"]).unwrap();
        exec(&instance, "test -s /workspace/pid && ! kill -0 $(cat /workspace/pid)");
        let file = user.dir.path().join("home/file");
        fs::write(&file, "bytes").unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        instance.bastide(&["sandbox", "cp", file.to_str().unwrap(), "box:/workspace/f"]).unwrap();
        assert_eq!(exec(&instance, "cat /workspace/f; mkdir -p d/e; chmod 0 d"), "bytes");
        let paused = instance.exit_code(&["sandbox", "pause", "box"]).unwrap();
        assert_ne!(paused, 0, "without a control group there is no pause");
        instance.bastide(&["sandbox", "rm", "box"]).unwrap();
        let pool = instance.files().unwrap().with_file_name("data").join("pool");
        for _ in 0..500 {
            if fs::read_dir(&pool).unwrap().flatten().all(|e| e.file_name() == ".plain") {
                break;
            }
            pause();
        }
        let left: Vec<_> = fs::read_dir(&pool).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, [".plain"], "{ids:?}");
        instance.finish().unwrap();
    }
}

fn url(instance: &Instance) -> String {
    let client = instance.command(&["sandbox"]);
    let mut variables = client.get_envs();
    let (_, url) = variables.find(|(name, _)| *name == "BASTIDE_SERVER").unwrap();
    url.unwrap().to_str().unwrap().to_owned()
}

fn open_policy(instance: &Instance) {
    let data = instance.files().unwrap().with_file_name("data");
    let key = fs::read_to_string(data.join("operator.key")).unwrap();
    let status = Command::new("curl")
        .args(["-sSf", "-o", "/dev/null", "-X", "PATCH", "-d", r#"{"policy": "open"}"#])
        .args(["-H", &format!("Authorization: Bearer {}", key.trim())])
        .args(["-H", "Content-Type: application/json"])
        .arg(format!("{}/v1/sandboxes/box", url(instance)))
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_delegated_group_gives_pause_and_ends_what_leaves_its_session() {
    let user = User::new(Ids::Range);
    let group = Delegated::new();
    let inner = user.dir.path().join("inner");
    let joined = format!("set -e\necho 0 > {}/cgroup.procs\n", group.0.display());
    fs::write(&inner, fs::read_to_string(&inner).unwrap().replace("set -e\n", &joined)).unwrap();
    let mut instance = user.instance();
    instance.start().unwrap();
    instance.bastide(&["sandbox", "create", "--template", "host", "--name", "box"]).unwrap();
    instance.bastide(&["sandbox", "pause", "box"]).unwrap();
    assert_eq!(instance.json(&["sandbox", "get", "box"]).unwrap()["state"], "paused");
    instance.bastide(&["sandbox", "resume", "box"]).unwrap();
    // Out of its session and without a parent: only its control group says whose it is.
    let beat = "cd /workspace; while :; do date +%s%N > next; mv next beat; sleep 0.05; done";
    let leave = format!("setsid sh -c '({beat}) & echo' & sleep 100");
    let killed = ["sandbox", "exec", "box", "--timeout", "1", "--", &leave];
    assert_eq!(instance.exit_code(&killed).unwrap(), 137);
    let gone = "a=$(cat beat); sleep 0.5; test -n \"$a\" && test \"$a\" = \"$(cat beat)\"";
    instance.bastide(&["sandbox", "exec", "box", "--", gone]).unwrap();
    instance.bastide(&["sandbox", "rm", "box"]).unwrap();
    instance.finish().unwrap();
}

/// A control group that an administrator gave to the user.
struct Delegated(PathBuf);

impl Delegated {
    fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
        let name = format!("ordinary-{}", std::process::id());
        let path = Path::new(line.split(' ').nth(4).unwrap()).join(name);
        fs::create_dir(&path).unwrap();
        for file in ["", "cgroup.procs", "cgroup.subtree_control"] {
            chown(path.join(file), Some(UID), Some(UID)).unwrap();
        }
        Self(path)
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        for _ in 0..500 {
            remove(&self.0);
            if !self.0.exists() {
                return;
            }
            pause();
        }
        assert!(std::thread::panicking(), "the delegated group does not go");
    }
}

fn remove(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}
