//! A data directory on a disk of its own that fills up, or takes no writes, under a running server: what
//! callers are told, that nothing is half made, and that it goes on without a restart.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::pause;
use super::town::{Answer, Asker};
use crate::instance::Instance;

/// Longer than a sweep, and than anything that one does.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server whose data directory is a small disk.
struct Town {
    instance: Option<Instance>,
    asker: Asker,
}

/// Where its sandboxes have their disks.
enum Pool {
    Btrfs,
    Plain,
}

impl Town {
    /// With one running, persistent sandbox called `box`.
    fn found(pool: &Pool) -> Self {
        let mut instance = Instance::new(Path::new(env!("CARGO_BIN_EXE_bastide"))).unwrap();
        for (name, value) in [("SWEEP_SECONDS", "1"), ("DISK_RESERVE_MIB", "32")] {
            instance.settings.push((format!("BASTIDE_{name}"), value.into()));
        }
        let data = instance.data();
        let image = data.with_extension("img");
        // Sparse: what fills it are blocks that nobody writes.
        fs::File::create(&image).unwrap().set_len(1 << 30).unwrap();
        let image = image.to_str().unwrap();
        sh("mkfs.ext4", &["-q", "-m", "0", "-O", "^has_journal", image]);
        fs::create_dir(&data).unwrap();
        // The device goes with its last mount.
        sh("mount", &["-o", "loop", image, data.to_str().unwrap()]);
        if matches!(pool, Pool::Plain) {
            fs::create_dir(data.join("pool")).unwrap();
            fs::write(data.join("pool/.plain"), "").unwrap();
        }
        let asker = Asker { port: 0, key: String::new() };
        let mut town = Self { instance: Some(instance), asker };
        town.start();
        town.made("box", "persistent");
        town
    }

    fn start(&mut self) {
        let instance = self.instance.as_mut().unwrap();
        let url = instance.start().unwrap();
        let key = fs::read_to_string(instance.data().join("operator.key")).unwrap();
        let port = url.rsplit(':').next().unwrap().parse().unwrap();
        self.asker = Asker { port, key: key.trim().to_owned() };
    }

    fn data(&self) -> PathBuf {
        self.instance.as_ref().unwrap().data()
    }

    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.asker.ask(method, path, body).unwrap()
    }

    fn create(&self, name: &str, tier: &str) -> Answer {
        let body = serde_json::json!({ "template": "host", "name": name, "tier": tier });
        self.ask("POST", "/v1/sandboxes", &body.to_string())
    }

    #[track_caller]
    fn made(&self, name: &str, tier: &str) {
        let made = self.create(name, tier);
        assert_eq!(made.status, 201, "{made:?}");
    }

    /// Waits until a sandbox can be made, and makes it.
    #[track_caller]
    fn made_in_time(&self, name: &str) {
        self.until("a sandbox can be made", || {
            let made = self.create(name, "ephemeral");
            // 500 is an error of the disk before the kernel gave it up.
            assert!([201, 500, 503, 507].contains(&made.status), "{made:?}");
            made.status == 201
        });
    }

    #[track_caller]
    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let begin = SystemTime::now();
        while !holds() {
            let late = begin.elapsed().unwrap() > PATIENCE;
            assert!(!late, "never {what}: {:?}", self.ask("GET", "/v1/sandboxes", ""));
            pause();
        }
    }

    fn state(&self, name: &str) -> String {
        let seen = self.ask("GET", &format!("/v1/sandboxes/{name}"), "");
        seen.body["state"].as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    fn exec(&self, name: &str, command: &str) -> String {
        self.asker.exec(name, command).unwrap()
    }

    /// Names of what is below the data directory.
    fn names(&self, dir: &str) -> Vec<String> {
        let entries = fs::read_dir(self.data().join(dir)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        // Disks of sandboxes to come are nobody's.
        let mut names: Vec<_> = names.filter(|name| !name.starts_with(".blank-")).collect();
        names.sort();
        names
    }

    /// Until not one byte more goes on the disk.
    fn fill(&self) {
        let data = self.data();
        for (step, name) in [(64 << 20, "ballast"), (1 << 20, "ballast.1"), (4096, "ballast.2")] {
            let file = fs::File::options().create(true).append(true).open(data.join(name)).unwrap();
            let mut end = file.metadata().unwrap().len();
            while rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), end, step)
                .is_ok()
            {
                end += step;
            }
        }
    }

    fn make_room(&self) {
        for name in ["ballast", "ballast.1", "ballast.2"] {
            fs::remove_file(self.data().join(name)).unwrap();
        }
    }

    /// Removes every sandbox, and sees that the server ends well and nothing is left.
    fn end(mut self) {
        for sandbox in self.ask("GET", "/v1/sandboxes", "").body.as_array().unwrap() {
            if sandbox["state"] != "destroyed" {
                let path = format!("/v1/sandboxes/{}", sandbox["id"].as_str().unwrap());
                assert_eq!(self.ask("DELETE", &path, "").status, 200);
            }
        }
        self.until("the disks are gone", || self.names("pool").iter().all(|name| name == ".plain"));
        self.instance.take().unwrap().finish().unwrap();
    }
}

#[track_caller]
fn sh(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {told}");
}

/// A problem with this status and code, and a hint for the operator.
#[track_caller]
fn check_refusal(answer: &Answer, status: u16, code: &str) {
    let problem = &answer.body;
    assert_eq!((answer.status, problem["code"].as_str()), (status, Some(code)), "{answer:?}");
    assert!(problem["detail"].as_str().unwrap().contains("\nhint: "), "{answer:?}");
    assert!(answer.head.contains("application/problem+json"), "{answer:?}");
}

#[test]
fn a_full_disk_refuses_what_is_new_removes_what_is_old_and_goes_on_with_room() {
    let town = Town::found(&Pool::Plain);
    town.made("old", "ephemeral");
    town.made("older", "ephemeral");
    let (sandboxes, disks) = (town.names("sandboxes"), town.names("pool"));
    town.fill();
    check_refusal(&town.create("new", "ephemeral"), 507, "disk_full");
    assert_eq!((town.names("sandboxes"), town.names("pool")), (sandboxes, disks), "half made");
    assert_eq!(town.exec("box", "echo used"), "used\n");
    // Its workspace is safe and its processes are gone, but that cannot be written down.
    let stopped = town.ask("POST", "/v1/sandboxes/box/stop", "");
    check_refusal(&stopped, 507, "disk_full");
    for name in ["old", "older"] {
        let removed = town.ask("DELETE", &format!("/v1/sandboxes/{name}"), "");
        assert_eq!(removed.status, 200, "{removed:?}");
        town.fill();
    }
    town.make_room();
    town.made("old", "ephemeral");
    assert_eq!(town.exec("old", "echo fine"), "fine\n");
    town.until("the stop is finished", || town.state("box") == "stopped");
    assert_eq!(town.ask("POST", "/v1/sandboxes/box/start", "").status, 200);
    assert_eq!(town.exec("box", "echo again"), "again\n");
    let names = ["old", "older"].map(|name| town.state(name));
    assert_eq!(names, ["running", "destroyed"]);
    town.end();
}

#[test]
fn a_read_only_data_directory_is_told_and_what_was_asked_is_done_once_it_takes_writes() {
    let town = Town::found(&Pool::Plain);
    town.made("old", "ephemeral");
    let sandboxes = town.names("sandboxes");
    let data = town.data();
    let data = data.to_str().unwrap();
    sh("mount", &["--rbind", data, data]);
    // Not while somebody of the server has a file open for writing.
    let remount = || Command::new("mount").args(["-o", "remount,bind,ro", data]).output().unwrap();
    town.until("it is read-only", || remount().status.success());
    check_refusal(&town.create("new", "ephemeral"), 503, "read_only");
    check_refusal(&town.ask("DELETE", "/v1/sandboxes/old", ""), 503, "read_only");
    assert_eq!(town.exec("box", "echo used"), "used\n");
    assert_eq!(town.names("sandboxes"), sandboxes, "half made, or half removed");
    sh("umount", &[data]);
    town.made("new", "ephemeral");
    town.until("the removal is finished", || town.state("old") == "destroyed");
    town.end();
}

#[test]
fn a_file_system_that_gave_up_is_told_and_after_its_repair_everything_is_there() {
    let mut town = Town::found(&Pool::Plain);
    town.made("old", "ephemeral");
    town.exec("box", "echo kept > /workspace/file; sync");
    let (data, image) = (town.data(), town.data().with_extension("img"));
    // As after an error of the disk; nobody may write again before a repair.
    sh("mount", &["-o", "remount,abort", data.to_str().unwrap()]);
    check_refusal(&town.create("new", "ephemeral"), 503, "read_only");
    check_refusal(&town.ask("DELETE", "/v1/sandboxes/old", ""), 503, "read_only");
    let listed = town.ask("GET", "/v1/sandboxes", "");
    assert_eq!(listed.body.as_array().unwrap().len(), 2, "{listed:?}");
    assert_eq!(town.exec("box", "cat /workspace/file"), "kept\n");
    let instance = town.instance.as_mut().unwrap();
    instance.kill_server().unwrap();
    instance.end_rest().unwrap();
    let _ = Command::new("e2fsck").args(["-p", "-f"]).arg(&image).output().unwrap();
    sh("mount", &["-o", "loop", image.to_str().unwrap(), data.to_str().unwrap()]);
    town.start();
    assert_eq!(town.state("box"), "stopped");
    assert_eq!(town.ask("POST", "/v1/sandboxes/box/start", "").status, 200);
    assert_eq!(town.exec("box", "cat /workspace/file"), "kept\n");
    town.end();
}

#[test]
fn disks_on_a_full_host_are_of_use_again_with_room() {
    let town = Town::found(&Pool::Btrfs);
    town.made("old", "ephemeral");
    town.exec("box", "echo kept > /workspace/file; sync");
    town.fill();
    // More than the pool's file has blocks for, of files and of what btrfs keeps of them.
    for _ in 0..4 {
        town.exec("box", "dd if=/dev/zero of=/workspace/more bs=1M count=32 conv=fsync 2>&1; true");
        town.exec(
            "box",
            "cd /workspace; for i in $(seq 999); do echo $i > $i; done 2>&1; sync; true",
        );
    }
    check_refusal(&town.create("new", "ephemeral"), 507, "disk_full");
    let removed = town.ask("DELETE", "/v1/sandboxes/old", "");
    assert_eq!(removed.status, 200, "{removed:?}");
    town.make_room();
    town.made_in_time("new");
    // What all may have follows what the host has, a look a second.
    let write = "echo fine > /workspace/a; sync; cat /workspace/a";
    town.until("it takes writes", || town.exec("new", write) == "fine\n");
    if town.state("box") == "stopped" {
        assert_eq!(town.ask("POST", "/v1/sandboxes/box/start", "").status, 200);
    }
    assert_eq!(town.exec("box", "cat /workspace/file"), "kept\n");
    town.end();
}

impl Drop for Town {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(instance) = &self.instance
        {
            let log = fs::read_to_string(instance.data().with_file_name("server.log"));
            let log = log.unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(40)..].join("\n");
            let _ = std::io::stderr().write_all(tail.as_bytes());
        }
    }
}
