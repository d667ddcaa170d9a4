//! The sandbox of these tests: user, network and mount namespaces of their own, held by a process
//! that ends when its standard input closes, so also when the test is killed.
#![expect(clippy::unwrap_used, reason = "test support: a failure fails the test")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use driver_linux::egress::{
    Access, Egress, EgressConfig, EgressHandle, Resolver, Sockets, Steering, open_in_current_netns,
};
use model::{Policy, SandboxId};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Every test has a process of its own.
static BY_NFTABLES: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// From now on in this test, connections are steered as for an ordinary user.
pub(super) fn steer_by_nftables() {
    BY_NFTABLES.store(true, std::sync::atomic::Ordering::Relaxed);
}

pub(super) struct Inside {
    holder: Holder,
    /// The keeper's.
    sockets: Option<Sockets>,
    egress: Egress,
    handle: Option<EgressHandle>,
}

pub(super) struct Holder {
    child: Child,
    _files: tempfile::TempDir,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: i32,
    out: String,
    pub(super) err: String,
}

impl Answer {
    #[track_caller]
    pub(super) fn good(&self) -> &str {
        assert_eq!(self.code, 0, "{self:?}");
        &self.out
    }

    /// `curl` was connected and then reset, or reset so early that it calls that a failed connect.
    pub(super) fn was_refused(&self) -> bool {
        [7, 56].contains(&self.code)
    }
}

impl Inside {
    pub(super) async fn new(rules: &[&str]) -> Self {
        Self::with_connections(rules, 64).await
    }

    pub(super) async fn with_connections(rules: &[&str], connections_max_each: usize) -> Self {
        let holder = tokio::task::spawn_blocking(Holder::new).await.unwrap();
        let sockets = holder.open_sockets();
        let config = EgressConfig {
            resolver: Resolver::fixed(hosts()),
            connections_max_each,
            ..EgressConfig::default()
        };
        let egress = Egress::new(config, TaskTracker::new(), CancellationToken::new());
        let mut inside = Self { holder, sockets: Some(sockets), egress, handle: None };
        inside.serve(rules);
        inside
    }

    pub(super) fn serve(&mut self, rules: &[&str]) {
        let id = SandboxId::generate();
        let sockets = self.sockets.as_ref().unwrap().duplicate().unwrap();
        self.handle = Some(self.egress.serve(id, sockets, policy(rules)).unwrap());
    }

    pub(super) async fn stop_serving(&mut self) {
        self.handle.take().unwrap().close().await;
    }

    pub(super) fn make_sockets_again(&mut self) {
        self.sockets = None;
        self.sockets = Some(self.holder.open_sockets());
    }

    pub(super) fn set_policy(&self, rules: &[&str]) {
        self.handle.as_ref().unwrap().set_policy(policy(rules));
    }

    /// The access log once `count` entries of it have ended.
    pub(super) async fn ended(&self, count: usize) -> Vec<Access> {
        for _ in 0..200 {
            let log = self.handle.as_ref().unwrap().log();
            if log.iter().filter(|access| access.duration_ms.is_some()).count() >= count {
                return log;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not {count} ended: {:?}", self.handle.as_ref().unwrap().log());
    }

    pub(super) async fn run(&self, command: &str) -> Answer {
        self.holder.run_within(Duration::from_secs(15), command).await
    }

    pub(super) async fn run_within(&self, limit: Duration, command: &str) -> Answer {
        self.holder.run_within(limit, command).await
    }

    pub(super) fn start(&self, command: &str) -> JoinHandle<Answer> {
        let command = self.holder.command(Duration::from_secs(15), command);
        TaskTracker::new().spawn(finish(command))
    }

    /// A program that has a connection open and tells how it ends.
    pub(super) async fn hold_open(&self, name: &str, port: u16) -> Live {
        let script = format!(
            "python3 -c 'import socket\n\
             s = socket.create_connection((\"{name}\", {port}), 15)\n\
             s.recv(100); print(\"open\", flush=True)\n\
             try: print(s.recv(100))\n\
             except OSError as e: print(type(e).__name__)'"
        );
        let mut command = self.holder.command(Duration::from_secs(20), &script);
        let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        let mut open = [0; 5];
        out.read_exact(&mut open).await.unwrap();
        assert_eq!(&open, b"open\n");
        Live { _child: child, out }
    }

    pub(super) async fn close(self) {
        self.shut().await;
    }

    /// Closes everything but the namespace.
    pub(super) async fn shut(mut self) -> Holder {
        self.stop_serving().await;
        drop(self.sockets);
        self.holder
    }
}

pub(super) struct Live {
    _child: tokio::process::Child,
    out: tokio::process::ChildStdout,
}

impl Live {
    pub(super) async fn ended_within(&mut self, limit: Duration) -> Option<String> {
        let mut text = String::new();
        let read = self.out.read_to_string(&mut text);
        let read = tokio::time::timeout(limit, read).await.ok()?;
        read.unwrap();
        Some(text)
    }
}

impl Holder {
    fn new() -> Self {
        let files = tempfile::tempdir().unwrap();
        let resolv = files.path().join("resolv.conf");
        writeln!(File::create(&resolv).unwrap(), "nameserver 127.0.0.1").unwrap();
        let script = "mount --bind \"$0\" /etc/resolv.conf && echo ready && exec cat";
        let mut child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--net", "--mount", "sh", "-c", script])
            .arg(&resolv)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let holder = Self { child, _files: files };
        assert_eq!(line, "ready\n");
        holder
    }

    /// As the launcher does it: from a thread that has entered only the network namespace.
    fn open_sockets(&self) -> Sockets {
        let namespace = File::open(format!("/proc/{}/ns/net", self.child.id())).unwrap();
        let nftables = BY_NFTABLES.load(std::sync::atomic::Ordering::Relaxed);
        let steering = if nftables { Steering::Nftables } else { Steering::Bpf };
        let opener = std::thread::spawn(move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).unwrap();
            open_in_current_netns(steering).unwrap()
        });
        opener.join().unwrap()
    }

    pub(super) async fn run_within(&self, limit: Duration, command: &str) -> Answer {
        finish(self.command(limit, command)).await
    }

    fn command(&self, limit: Duration, command: &str) -> tokio::process::Command {
        let pid = self.child.id().to_string();
        let limit = format!("{}", limit.as_secs_f64());
        let mut nsenter = tokio::process::Command::new("nsenter");
        nsenter
            .args(["--target", &pid, "--user", "--net", "--mount", "timeout", &limit])
            .args(["bash", "-c", command])
            .stdin(Stdio::null());
        nsenter
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn finish(mut command: tokio::process::Command) -> Answer {
    let output = command.kill_on_drop(true).output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Answer {
        code: output.status.code().unwrap_or(-1),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

fn policy(rules: &[&str]) -> Policy {
    Policy::parse(&rules.iter().map(|rule| (*rule).to_owned()).collect::<Vec<_>>()).unwrap()
}

/// What the internet's DNS says in these tests.
fn hosts() -> BTreeMap<String, Vec<IpAddr>> {
    let own = super::outside::own_address();
    [
        ("allowed.test", "127.0.0.1"),
        ("evil.test", "127.0.0.1"),
        ("a.below.test", "127.0.0.1"),
        ("loopback.rebind.test", "127.0.0.1"),
        ("private.rebind.test", "10.0.0.1"),
        ("metadata.rebind.test", "169.254.169.254"),
        ("mapped.rebind.test", "::ffff:127.0.0.1"),
        ("ula.rebind.test", "fd00:ec2::254"),
        ("host.rebind.test", own.as_str()),
    ]
    .map(|(name, address)| (name.to_owned(), vec![address.parse().unwrap()]))
    .into()
}
