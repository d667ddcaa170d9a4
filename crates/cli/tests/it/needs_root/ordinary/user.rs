//! An ordinary user for tests, which are root: they become that user in a mount namespace of their
//! own, in which `/etc/passwd` and the two files of ranges know them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::instance::Instance;

pub(super) const UID: u32 = 47_321;

/// What the administrator gave the user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ids {
    Range,
    One,
}

/// A user of this machine, as long as the test runs.
pub(super) struct User {
    pub(super) dir: tempfile::TempDir,
}

impl User {
    pub(super) fn new(ids: Ids) -> Self {
        let dir = tempfile::Builder::new().prefix("ordinary").tempdir().unwrap();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let passwd = fs::read_to_string("/etc/passwd").unwrap();
        let home = dir.path().join("home");
        fs::create_dir(&home).unwrap();
        chown(&home, Some(UID), Some(UID)).unwrap();
        let line = format!("ordinary:x:{UID}:{UID}::{}:/bin/sh\n", home.display());
        fs::write(dir.path().join("passwd"), passwd + &line).unwrap();
        let range = if ids == Ids::Range { "ordinary:1879048192:65536\n" } else { "" };
        fs::write(dir.path().join("subid"), range).unwrap();
        let user = Self { dir };
        user.write_wrapper();
        user
    }

    /// The program as this user: every step replaces the one before, so that the pid stays.
    fn write_wrapper(&self) {
        let dir = self.dir.path().display();
        let program = Path::new(env!("CARGO_BIN_EXE_bastide")).canonicalize().unwrap();
        // Bound, because the user may have no way to where it was built.
        fs::write(self.dir.path().join("bastide-as-built"), "").unwrap();
        let inner = format!(
            "#!/bin/sh\n\
             set -e\n\
             mount --bind {dir}/passwd /etc/passwd\n\
             mount --bind {dir}/subid /etc/subuid\n\
             mount --bind {dir}/subid /etc/subgid\n\
             mount --bind {program} {dir}/bastide-as-built\n\
             export HOME={dir}/home\n\
             exec setpriv --reuid {UID} --regid {UID} --clear-groups {dir}/bastide-as-built \"$@\"\n",
            program = program.display(),
        );
        let outer = format!(
            "#!/bin/sh\n\
             for file in /etc/subuid /etc/subgid; do [ -e $file ] || : > $file; done\n\
             exec unshare --mount --propagation private {dir}/inner \"$@\"\n"
        );
        for (name, text) in [("inner", inner), ("bastide", outer)] {
            let path = self.dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        }
    }

    pub(super) fn program(&self) -> PathBuf {
        self.dir.path().join("bastide")
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command.args(arguments).env("TMPDIR", self.dir.path().join("home"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(super) fn run(&self, arguments: &[&str], input: &str) -> Output {
        let mut child = self.command(&[&["run"], arguments].concat()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    #[track_caller]
    pub(super) fn check(&self, arguments: &[&str], input: &str, expected: (i32, &str, &str)) {
        let output = self.run(arguments, input);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(
            (output.status.code(), &*out, &*err),
            (Some(expected.0), expected.1, expected.2)
        );
    }

    /// A server of this user's.
    pub(super) fn instance(&self) -> Instance {
        let instance = Instance::new(&self.program()).unwrap();
        let dir = instance.files().unwrap();
        chown(dir.parent().unwrap(), Some(UID), Some(UID)).unwrap();
        instance
    }

    /// What runs leave in their temporary directory.
    pub(super) fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("home")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("bastide-run-")).collect()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for _ in 0..500 {
            if processes(UID).is_empty() {
                break;
            }
            pause();
        }
        assert!(self.left().is_empty(), "left: {:?}", self.left());
        assert_eq!(processes(UID), Vec::<i32>::new(), "processes are left");
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Those of this user, and of the user's range.
pub(super) fn processes(uid: u32) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("Uid:")).unwrap_or_default();
        let owner: u32 = line.split_whitespace().nth(1).and_then(|id| id.parse().ok()).unwrap_or(0);
        // Those that nobody has reaped yet are not processes any more.
        let dead = status.lines().any(|line| line.starts_with("State:\tZ"));
        if dead {
            continue;
        }
        if owner == uid || (1_879_048_192..1_879_113_728).contains(&owner) {
            found.push(pid);
        }
    }
    found
}

#[expect(
    clippy::disallowed_methods,
    reason = "there is no runtime here whose thread it could block"
)]
pub(super) fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(10));
}
