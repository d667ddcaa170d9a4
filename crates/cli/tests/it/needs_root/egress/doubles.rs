//! What plays the internet: real servers on this machine's loopback, which the operator lists.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

const START_WAIT: Duration = Duration::from_secs(30);

pub(super) struct Doubles {
    dir: tempfile::TempDir,
    running: Vec<Child>,
    pub(super) http: u16,
    pub(super) https: u16,
    pub(super) ssh: u16,
    pub(super) postgres: u16,
    pub(super) git: u16,
}

impl Doubles {
    pub(super) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let [http, https, ssh, postgres, git] = free_ports();
        let mut doubles = Self { dir, running: Vec::new(), http, https, ssh, postgres, git };
        doubles.certificates();
        doubles.repository();
        let script = doubles.put("web.py", include_str!("web.py"));
        let root = doubles.path("www");
        for (port, tls) in [(http, "plain"), (https, "tls")] {
            let port = port.to_string();
            doubles.run(
                Command::new("python3")
                    .arg(&script)
                    .args([&port, tls])
                    .arg(doubles.path(""))
                    .arg(&root),
            );
        }
        doubles.sshd();
        doubles.postgres();
        doubles.git_daemon();
        for port in [http, https, ssh, postgres, git] {
            listens(port);
        }
        doubles
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    fn put(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// A authority of its own, and what it says about `web.test`.
    fn certificates(&self) {
        self.put("ext", "subjectAltName=DNS:web.test,DNS:db.test\n");
        let script = "set -e\n\
            openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
              -subj /CN=double-ca -keyout ca.key -out ca.pem\n\
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=web.test \
              -keyout key.pem -out csr.pem\n\
            openssl x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
              -extfile ext -out cert.pem\n\
            keytool -importcert -noprompt -alias ca -file ca.pem -keystore trust.p12 -storepass secret";
        self.shell(script);
    }

    /// A repository that plain file servers serve, and `sshd` does.
    fn repository(&self) {
        let script = "set -e\n\
            git init -q -b main work && cd work\n\
            echo hello > file && git add file\n\
            git -c user.name=a -c user.email=a@b commit -q -m first\n\
            cd .. && mkdir www && git clone -q --bare work www/repo.git\n\
            git -C www/repo.git update-server-info";
        self.shell(script);
    }

    fn sshd(&mut self) {
        self.shell(
            "ssh-keygen -q -t ed25519 -N '' -f host && ssh-keygen -q -t ed25519 -N '' -f user",
        );
        fs::copy(self.path("user.pub"), self.path("authorized")).unwrap();
        // Where it leaves its privileges; packages make it at boot.
        fs::create_dir_all("/run/sshd").unwrap();
        let dir = self.dir.path().display();
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {}\nHostKey {dir}/host\nAuthorizedKeysFile {dir}/authorized\n\
             PermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\nPidFile none\n",
            self.ssh
        );
        let config = self.put("sshd_config", &config);
        self.run(Command::new("/usr/sbin/sshd").args(["-D", "-e", "-f"]).arg(config));
    }

    /// Git's own protocol, in one process: nothing of it outlives it.
    fn git_daemon(&mut self) {
        let base = self.path("www");
        let mut program = Command::new("git").arg("--exec-path").output().unwrap().stdout;
        program.truncate(program.trim_ascii_end().len());
        let program = Path::new(std::str::from_utf8(&program).unwrap()).join("git-daemon");
        self.run(
            Command::new(program)
                .args(["--export-all", "--listen=127.0.0.1", "--reuseaddr"])
                .arg(format!("--port={}", self.git))
                .arg(format!("--base-path={}", base.display())),
        );
    }

    fn postgres(&mut self) {
        let bin = fs::read_dir("/usr/lib/postgresql").unwrap().flatten().next().unwrap();
        let bin = bin.path().join("bin");
        let data = self.path("pg");
        fs::create_dir(&data).unwrap();
        let id = |flag: &str| -> u32 {
            let output = Command::new("id").args([flag, "postgres"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
        };
        let (user, group) = (id("-u"), id("-g"));
        for name in ["pg.key", "pg.crt"] {
            let from = if name == "pg.key" { "key.pem" } else { "cert.pem" };
            fs::copy(self.path(from), self.path(name)).unwrap();
            chown(self.path(name), Some(user), Some(group)).unwrap();
            fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
        chown(&data, Some(user), Some(group)).unwrap();
        let as_user = |program: &str| {
            let mut command = Command::new("setpriv");
            command
                .args([
                    format!("--reuid={user}"),
                    format!("--regid={group}"),
                    "--clear-groups".into(),
                ])
                .arg(bin.join(program))
                .current_dir(&data);
            command
        };
        let made = as_user("initdb")
            .args(["--no-sync", "-A", "trust", "-U", "me", "-D"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let (key, cert) = (self.path("pg.key"), self.path("pg.crt"));
        let settings = [
            format!("port={}", self.postgres),
            "listen_addresses=127.0.0.1".into(),
            "unix_socket_directories=".into(),
            "fsync=off".into(),
            "ssl=on".into(),
            format!("ssl_key_file={}", key.display()),
            format!("ssl_cert_file={}", cert.display()),
        ];
        let mut command = as_user("postgres");
        command.arg("-D").arg(&data);
        for setting in settings {
            command.args(["-c", &setting]);
        }
        self.run(&mut command);
    }

    #[track_caller]
    fn shell(&self, script: &str) {
        let output = Command::new("sh").args(["-c", script]).current_dir(self.dir.path()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn run(&mut self, command: &mut Command) {
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.running.push(child.spawn().unwrap());
    }
}

impl Drop for Doubles {
    fn drop(&mut self) {
        for child in &mut self.running {
            // Asked first: a database ends its own children then.
            let pid = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
            let _ = child.wait();
        }
    }
}

fn free_ports<const N: usize>() -> [u16; N] {
    let held: Vec<TcpListener> =
        (0..N).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    std::array::from_fn(|index| held[index].local_addr().unwrap().port())
}

#[track_caller]
fn listens(port: u16) {
    let begin = SystemTime::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begin.elapsed().unwrap() < START_WAIT, "nothing listens on {port}");
        std::thread::yield_now();
    }
}

/// Where a file of the doubles is put inside.
pub(super) fn inside(name: &str) -> String {
    format!("/workspace/{}", Path::new(name).file_name().unwrap().to_str().unwrap())
}
