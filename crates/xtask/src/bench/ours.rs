//! `bastide serve`, started for the benchmark on a directory of its own and spoken to over HTTP.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::clock::{Stopwatch, wait_until};
use super::http::Http;
use super::leftovers::leave_nothing;
use super::peers::{Contender, Cycle};
use super::process;
use crate::say;

const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// Longer than the server's own `drain_seconds`.
const ENDS_WITHIN: Duration = Duration::from_secs(40);

pub(super) struct Server {
    binary: PathBuf,
    data: PathBuf,
    settings: Vec<String>,
    child: Child,
    address: SocketAddr,
    key: String,
}

impl Server {
    pub(super) fn start(binary: &Path, data: &Path, settings: &[&str]) -> anyhow::Result<Self> {
        fs::create_dir_all(data)?;
        let free = TcpListener::bind("127.0.0.1:0")?;
        let address = free.local_addr()?;
        drop(free);
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let child = spawn(binary, data, address, &settings)?;
        let (binary, data) = (binary.to_owned(), data.to_owned());
        let mut server = Self { binary, data, settings, child, address, key: String::new() };
        server.wait()?;
        let key = fs::read_to_string(server.data.join("operator.key"));
        server.key = key.context("read the operator's key")?.trim().to_owned();
        Ok(server)
    }

    pub(super) fn client(&self) -> anyhow::Result<Http> {
        Http::tcp(self.address, Some(&self.key))
    }

    /// As somebody else, or nobody.
    pub(super) fn client_with(&self, key: Option<&str>) -> anyhow::Result<Http> {
        Http::tcp(self.address, key)
    }

    /// Its process, to look at what it holds.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A line of its status.
    pub(super) fn kib(&self, field: &str) -> anyhow::Result<u64> {
        process::kib(self.pid(), field)
    }

    /// What it has used of processors.
    pub(super) fn cpu(&self) -> anyhow::Result<Duration> {
        process::cpu(self.pid())
    }

    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    /// Kills the server, not the keeper, and starts the next one on the same directory and address.
    pub(super) fn crash_and_restart(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.child = spawn(&self.binary, &self.data, self.address, &self.settings)?;
        self.wait()
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let address = self.address;
        let child = &mut self.child;
        let mut ended = None;
        let up = wait_until(STARTS_WITHIN, || {
            ended = child.try_wait().ok().flatten();
            ended.is_some() || answers(address)
        });
        if let Some(status) = ended {
            bail!("bastide serve ended with {status}: {}", last_lines(&self.data));
        }
        if !up {
            bail!("bastide serve does not answer: {}", last_lines(&self.data));
        }
        Ok(())
    }

    /// Processes that belong to the data directory: the keeper, and what it holds.
    fn keepers(&self) -> Vec<Pid> {
        let own = self.data.display().to_string();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("keeper") && line.contains(&own)
        })
        .filter_map(Pid::from_raw)
        .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let child = &mut self.child;
        if !wait_until(ENDS_WITHIN, || child.try_wait().is_ok_and(|status| status.is_some())) {
            say::error("bastide serve did not end: killed");
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        for keeper in self.keepers() {
            let _ = kill_process(keeper, Signal::TERM);
        }
        if !wait_until(Duration::from_secs(5), || self.keepers().is_empty()) {
            for keeper in self.keepers() {
                let _ = kill_process(keeper, Signal::KILL);
            }
        }
        leave_nothing(&self.data);
    }
}

fn spawn(
    binary: &Path,
    data: &Path,
    address: SocketAddr,
    settings: &[String],
) -> anyhow::Result<Child> {
    let log = fs::File::options().create(true).append(true).open(data.join("bench.log"))?;
    Command::new(binary)
        .args(["serve", "--listen", &address.to_string(), "--data-dir"])
        .arg(data)
        .args(["--log-level", "warn"])
        .args(settings)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("start {}", binary.display()))
}

fn answers(address: SocketAddr) -> bool {
    Http::tcp(address, None).and_then(|mut http| http.is_good("/healthz")).unwrap_or(false)
}

fn last_lines(data: &Path) -> String {
    let text = fs::read_to_string(data.join("bench.log")).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(3).collect();
    lines.join(" / ")
}

/// One template of ours, over one kept connection.
pub(super) struct Ours {
    name: &'static str,
    http: Http,
    template: &'static str,
    standing: String,
    /// How many were made so far, each of another size than those before it, if that is what is measured: nothing
    /// that was made in advance fits it.
    unlike: Option<u32>,
}

impl Ours {
    pub(super) fn unlike_the_last(server: &Server, name: &'static str) -> anyhow::Result<Self> {
        let mut ours = Self::new(server, name, "host")?;
        ours.unlike = Some(0);
        Ok(ours)
    }

    fn body(&mut self) -> Value {
        let mut body = wanted(self.template);
        if let Some(made) = &mut self.unlike {
            *made += 1;
            body["memory_mib"] = json!(256 + *made % 64);
            body["disk_gb"] = json!(1 + *made % 5);
        }
        body
    }

    pub(super) fn new(
        server: &Server,
        name: &'static str,
        template: &'static str,
    ) -> anyhow::Result<Self> {
        let mut http = server.client()?;
        let standing = create(&mut http, template)?;
        exec(&mut http, &standing)?;
        Ok(Self { name, http, template, standing, unlike: None })
    }
}

impl Contender for Ours {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cycle(&mut self) -> anyhow::Result<Cycle> {
        let body = self.body();
        let http = &mut self.http;
        let watch = Stopwatch::start();
        let id = create_as(http, &body)?;
        let created = watch.time();
        exec(http, &id)?;
        let first = watch.time();
        remove(http, &id)?;
        let whole = watch.time();
        let mut timed = |what: fn(&mut Http, &str) -> anyhow::Result<()>| {
            let watch = Stopwatch::start();
            what(http, &self.standing).map(|()| Some(watch.time()))
        };
        let exec = timed(exec)?;
        let pause = timed(|http, id| post(http, id, "pause"))?;
        let resume = timed(|http, id| post(http, id, "resume"))?;
        Ok(Cycle { create: Some(created), first: Some(first), exec, pause, resume, whole })
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Err(error) = remove(&mut self.http, &self.standing) {
            say::error(&format!("{error:#}"));
        }
    }
}

pub(super) fn create(http: &mut Http, template: &str) -> anyhow::Result<String> {
    create_as(http, &wanted(template))
}

fn wanted(template: &str) -> Value {
    json!({ "template": template, "idle_timeout_seconds": 3600 })
}

fn create_as(http: &mut Http, body: &Value) -> anyhow::Result<String> {
    let answer = http.call("POST", "/v1/sandboxes", body)?;
    Ok(answer["id"].as_str().context("no id in the answer")?.to_owned())
}

pub(super) fn exec(http: &mut Http, id: &str) -> anyhow::Result<()> {
    let body = json!({ "command": "/bin/true" });
    let answer = http.call("POST", &format!("/v1/sandboxes/{id}/exec"), &body)?;
    if answer["exit_code"] != 0 {
        bail!("/bin/true in {id}: {answer}");
    }
    Ok(())
}

pub(super) fn remove(http: &mut Http, id: &str) -> anyhow::Result<()> {
    http.call("DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null).map(drop)
}

fn post(http: &mut Http, id: &str, what: &str) -> anyhow::Result<()> {
    http.call("POST", &format!("/v1/sandboxes/{id}/{what}"), &Value::Null).map(drop)
}
