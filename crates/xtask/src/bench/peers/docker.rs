//! Docker over its API socket: create, start, one exec, remove, as a program would do it. The daemon
//! is the benchmark's own, with a data directory and a socket of its own, and without a network.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::{Contender, Cycle, run, version};
use crate::bench::clock::{Stopwatch, wait_until};
use crate::bench::http::Http;

/// Parent of its containers' cgroups, which it leaves behind.
const CGROUP: &str = "bastide-bench-docker";

pub(crate) struct Docker {
    daemon: Child,
    socket: PathBuf,
    http: Http,
    standing: String,
}

impl Docker {
    pub(crate) fn new(rootfs: &Path, work: &Path) -> anyhow::Result<Self> {
        version("dockerd")?;
        let dir = work.join("docker");
        std::fs::create_dir_all(&dir)?;
        let socket = dir.join("docker.sock");
        let path = |name: &str| dir.join(name).display().to_string();
        let daemon = Command::new("dockerd")
            .args(["--data-root", &path("data"), "--exec-root", &path("exec")])
            .args(["--pidfile", &path("pid"), "--host", &format!("unix://{}", socket.display())])
            .arg(format!("--cgroup-parent=/{CGROUP}"))
            .args(["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-masq=false"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.join("log"))?)
            .spawn()
            .context("start dockerd")?;
        let mut daemon = Guard(Some(daemon));
        if !wait_until(Duration::from_secs(30), || Http::unix(&socket).is_ok()) {
            bail!("dockerd does not answer: {}", last_line(&dir.join("log")));
        }
        import(rootfs, &dir, &socket)?;
        let mut http = Http::unix(&socket)?;
        let standing = create(&mut http, &["/bin/sleep", "3600"])?;
        start(&mut http, &standing)?;
        let daemon = daemon.0.take().context("dockerd is gone")?;
        Ok(Self { daemon, socket, http, standing })
    }
}

impl Contender for Docker {
    fn name(&self) -> &'static str {
        "docker API"
    }

    fn cycle(&mut self) -> anyhow::Result<Cycle> {
        let watch = Stopwatch::start();
        let id = create(&mut self.http, &["/bin/sleep", "60"])?;
        start(&mut self.http, &id)?;
        let created = watch.time();
        exec(&mut self.http, &id)?;
        let first = watch.time();
        let path = format!("/containers/{id}?force=1");
        self.http.call("DELETE", &path, &Value::Null)?;
        let whole = watch.time();
        let standing = self.standing.clone();
        let watch = Stopwatch::start();
        exec(&mut self.http, &standing)?;
        let again = watch.time();
        let mut post = |what: &str| -> anyhow::Result<Duration> {
            let watch = Stopwatch::start();
            self.http.call("POST", &format!("/containers/{standing}/{what}"), &Value::Null)?;
            Ok(watch.time())
        };
        let (pause, resume) = (post("pause")?, post("unpause")?);
        Ok(Cycle {
            create: Some(created),
            first: Some(first),
            exec: Some(again),
            pause: Some(pause),
            resume: Some(resume),
            whole,
        })
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if let Ok(mut http) = Http::unix(&self.socket) {
            let path = format!("/containers/{}?force=1", self.standing);
            // What is left is ended with the daemon.
            let _ = http.call("DELETE", &path, &Value::Null);
        }
        end(&mut self.daemon);
    }
}

/// Ends the daemon unless it was taken out.
struct Guard(Option<Child>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.0 {
            end(daemon);
        }
    }
}

/// Asks first, because only then does it end its own containerd.
fn end(daemon: &mut Child) {
    if let Some(pid) = i32::try_from(daemon.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let ended = || daemon.try_wait().is_ok_and(|status| status.is_some());
    if !wait_until(Duration::from_secs(15), ended) {
        let _ = daemon.kill();
        let _ = daemon.wait();
    }
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        // Absent in most of them.
        let _ = std::fs::remove_dir(hierarchy.path().join(CGROUP));
    }
    let _ = std::fs::remove_dir(Path::new("/sys/fs/cgroup").join(CGROUP));
}

fn import(rootfs: &Path, dir: &Path, socket: &Path) -> anyhow::Result<()> {
    let archive = dir.join("rootfs.tar");
    run(Command::new("tar").arg("-C").arg(rootfs).arg("-cf").arg(&archive).arg("."))?;
    let mut http = Http::unix(socket)?;
    let length = std::fs::metadata(&archive)?.len();
    let mut file = std::fs::File::open(&archive)?;
    http.upload("/images/create?fromSrc=-&repo=bastide-bench", length, &mut file)
}

fn create(http: &mut Http, command: &[&str]) -> anyhow::Result<String> {
    let body = json!({
        "Image": "bastide-bench", "Cmd": command,
        "HostConfig": {
            "NetworkMode": "none", "Memory": 1_073_741_824_u64, "PidsLimit": 1024,
            "CpuQuota": 100_000, "CpuPeriod": 100_000,
        },
    });
    let answer = http.call("POST", "/containers/create", &body)?;
    Ok(answer["Id"].as_str().context("no id")?.to_owned())
}

fn start(http: &mut Http, id: &str) -> anyhow::Result<()> {
    http.call("POST", &format!("/containers/{id}/start"), &Value::Null).map(drop)
}

fn exec(http: &mut Http, id: &str) -> anyhow::Result<()> {
    let body = json!({ "Cmd": ["/bin/true"] });
    let answer = http.call("POST", &format!("/containers/{id}/exec"), &body)?;
    let exec = answer["Id"].as_str().context("no exec id")?.to_owned();
    // Detached: attached answers are a raw stream. Then ask until it has ended, as clients do.
    http.call("POST", &format!("/exec/{exec}/start"), &json!({ "Detach": true }))?;
    loop {
        let state = http.call("GET", &format!("/exec/{exec}/json"), &Value::Null)?;
        if state["Running"] == false && state["ExitCode"].is_number() {
            return Ok(());
        }
    }
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or_default().to_owned()
}
