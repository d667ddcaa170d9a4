//! A real `PostgreSQL` for tests: in a directory of its own, on a unix socket, run by nobody, ended with
//! the test that started it even if that is killed.

#![expect(clippy::disallowed_methods, reason = "waits for another process, in no runtime")]

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const NOBODY: &str = "65534";

pub(crate) struct Cluster {
    dir: TempDir,
    postgres: Child,
    port: String,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| Vec::new())
    }

    /// With more settings, and files that the server can read.
    pub(crate) fn start_with(prepare: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let nobody = Some(NOBODY.parse().unwrap());
        if rustix::process::geteuid().is_root() {
            chown(dir.path(), nobody, nobody).unwrap();
        }
        let path = dir.path().to_str().unwrap();
        let data = format!("{path}/data");
        let made = as_nobody("initdb")
            .args(["-D", &data, "-U", "bastide", "-A", "trust", "-E", "UTF8", "--no-locale"])
            .args(["--no-sync", "--no-instructions"])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let more = prepare(dir.path());
        for file in std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path()) {
            if rustix::process::geteuid().is_root() {
                chown(file, nobody, nobody).unwrap();
            }
        }
        let postgres = as_nobody("postgres")
            .args(["-D", &data, "-k", path, "-c", "listen_addresses=", "-c", "fsync=off"])
            .args(["-c", "max_connections=300", "-c", "shared_buffers=32MB"])
            .args(more.iter().flat_map(|setting| ["-c", setting]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let port = more.iter().find_map(|setting| setting.strip_prefix("port="));
        let port = port.unwrap_or("5432").to_owned();
        let cluster = Self { dir, postgres, port };
        cluster.wait_until_ready();
        cluster
    }

    /// The directory of its socket.
    pub(crate) fn socket(&self) -> &Path {
        self.dir.path()
    }

    fn wait_until_ready(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        let is_ready = || {
            let asked = program("pg_isready")
                .args(["-q", "-p", &self.port, "-h"])
                .arg(self.socket())
                .status();
            asked.unwrap().success()
        };
        while !is_ready() {
            assert!(Instant::now() < until, "PostgreSQL does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.postgres);
        // Ends connections and itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let _ = self.postgres.wait();
    }
}

/// The URL of an empty database of that name in the cluster at `socket`, made when it is absent.
pub(crate) fn database(socket: &Path, name: &str) -> String {
    let made = program("psql")
        .args(["-q", "-U", "bastide", "-d", "postgres", "-h"])
        .arg(socket)
        .args(["-c", &format!("CREATE DATABASE \"{name}\"")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success() || said.contains("already exists"), "{said}");
    format!("postgresql://bastide@/{name}?host={}", socket.display())
}

/// `PostgreSQL` refuses to run as root. What is started ends with us.
fn as_nobody(name: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT"]);
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    }
    command.arg(path_of(name)).current_dir("/");
    command
}

fn program(name: &str) -> Command {
    Command::new(path_of(name))
}

/// On Debian the server's programs are in a directory for each version.
fn path_of(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<_> = versions.map(|dir| dir.path().join("bin").join(name)).collect();
    found.sort();
    found.retain(|path| path.exists());
    found.pop().unwrap_or_else(|| PathBuf::from(name))
}
