//! A real browser of this machine, without a window.

use std::process::{Child, Command, Stdio};

/// Neither its own sandbox (this is root, in a container perhaps) nor any traffic of its own.
pub(super) const FLAGS: &[&str] = &[
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
];

/// Shows a page until it is dropped.
pub(super) struct Browser {
    child: Child,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub(super) fn open(url: &str) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let child = command(&profile)
            .args(["--remote-debugging-port=0", url])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, _profile: profile }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its whole group: it is many processes, and their parent may be gone before them.
        let group = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}

/// The page as it is once it has loaded.
#[track_caller]
pub(super) fn page(url: &str) -> String {
    let profile = tempfile::tempdir().unwrap();
    let output = command(&profile).args(["--dump-dom", url]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn command(profile: &tempfile::TempDir) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("chromium");
    command
        .args(FLAGS)
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .env("HOME", profile.path())
        .process_group(0);
    command
}
