//! The agent daemon: a mock session at full speed with 1, 10 and 100 readers, and what it costs to
//! have it and a session of it idle.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::clock::{Stopwatch, pause};
use super::http::Http;
use super::process;
use super::report::{Finding, Report};

/// Messages to the mock agent, and the events of each.
const TURNS: u64 = 300;
const EVENTS_A_TURN: u64 = 69;
/// Of a new session.
const EVENTS_AT_FIRST: u64 = 5;
const IDLE_SESSIONS: u64 = 100;
const WAIT: Duration = Duration::from_secs(120);

struct Daemon {
    process: Child,
    address: SocketAddr,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(super) fn run(binary: &Path, dir: &Path, report: &mut Report) -> anyhow::Result<()> {
    let daemon = Daemon::start(binary, dir)?;
    let mut http = Http::tcp(daemon.address, None)?;
    let alone = daemon.kib("VmRSS")?;
    for n in 0..IDLE_SESSIONS {
        create(&mut http, &format!("idle{n}"))?;
    }
    let with_sessions = daemon.kib("VmRSS")?;
    let each = with_sessions.saturating_sub(alone) / IDLE_SESSIONS;
    report.find(Finding {
        what: "agent daemon: resident memory, idle".into(),
        measured: format!("{:.1} MiB", mib(alone)),
        compared: format!("one more idle session: {each} KiB"),
        promise: "≤ 16 MiB; ≤ 64 KiB a session",
        met: alone <= 16 * 1024 && each <= 64,
    });
    for readers in [1, 10, 100] {
        fan_out(&daemon, &mut http, readers, report)?;
    }
    Ok(())
}

fn fan_out(
    daemon: &Daemon,
    http: &mut Http,
    readers: u64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let session = format!("busy{readers}");
    create(http, &session)?;
    let events = TURNS * EVENTS_A_TURN;
    let last = EVENTS_AT_FIRST + events;
    let address = daemon.address;
    let following: Vec<_> = (0..readers)
        .map(|_| follow(address, &session).map(|stream| thread::spawn(move || read(stream, last))))
        .collect::<anyhow::Result<_>>()?;
    let before = daemon.cpu()?;
    let watch = Stopwatch::start();
    for _ in 0..TURNS {
        say_demo(http, &session)?;
    }
    for reader in following {
        let seen = reader.join().map_err(|_| anyhow::anyhow!("a reader gave up"))??;
        ensure!(seen == events, "a reader saw {seen} of {events} events");
    }
    let took = watch.time();
    let cpu = daemon.cpu()?.saturating_sub(before);
    let per_second = events as f64 / took.as_secs_f64();
    let cpu_ms = cpu.as_secs_f64() * 1e6 / events as f64;
    // The daemon has one thread; what else the machine does is not its work.
    let frames_a_core = (events * readers) as f64 / cpu.as_secs_f64();
    let peak_kib = daemon.kib("VmHWM")?;
    report.find(Finding {
        what: format!("agent events to {readers} readers at once"),
        measured: format!(
            "{per_second:.0} events/s, each to every reader; {cpu_ms:.1} ms of CPU a thousand events"
        ),
        compared: format!(
            "{frames_a_core:.0} frames/s of one core; memory at most {:.1} MiB",
            mib(peak_kib)
        ),
        promise: "none lost; ≥ 20,000 frames/s of one core; ≤ 64 MiB",
        met: frames_a_core >= 20_000.0 && peak_kib <= 64 * 1024,
    });
    Ok(())
}

fn create(http: &mut Http, session: &str) -> anyhow::Result<()> {
    http.call("POST", &format!("/v1/sessions/{session}"), &json!({ "agent": "mock" })).map(drop)
}

/// Only so many messages wait in a session; the next one is tried again.
fn say_demo(http: &mut Http, session: &str) -> anyhow::Result<()> {
    let path = format!("/v1/sessions/{session}/messages");
    let watch = Stopwatch::start();
    loop {
        match http.call("POST", &path, &json!({ "message": "demo" })) {
            Ok(_) => return Ok(()),
            Err(error) if watch.time() > WAIT => return Err(error),
            Err(_) => pause(Duration::from_millis(1)),
        }
    }
}

fn follow(address: SocketAddr, session: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).context("connect a reader")?;
    stream.set_read_timeout(Some(WAIT))?;
    let path = format!("/v1/sessions/{session}/events/sse?offset={EVENTS_AT_FIRST}");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n")?;
    Ok(stream)
}

/// How many events come until the one with the last number.
fn read(mut stream: TcpStream, last: u64) -> anyhow::Result<u64> {
    let (mut block, mut kept, mut seen) = (vec![0; 256 << 10], Vec::new(), 0);
    loop {
        let count = stream.read(&mut block)?;
        if count == 0 {
            bail!("the stream ended after {seen} events");
        }
        kept.extend_from_slice(&block[..count]);
        let Some(end) = kept.iter().rposition(|byte| *byte == b'\n') else { continue };
        for line in kept[..end].split(|byte| *byte == b'\n') {
            let Some(id) = line.strip_prefix(b"id: ") else { continue };
            seen += 1;
            if std::str::from_utf8(id)?.trim().parse::<u64>()? == last {
                return Ok(seen);
            }
        }
        kept.drain(..=end);
    }
}

impl Daemon {
    fn start(binary: &Path, dir: &Path) -> anyhow::Result<Self> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let process = Command::new(binary)
            .args(["agents", "server", "--no-token", "--mock-delay-ms", "0"])
            .args(["--log-level", "warn", "--port", &port.to_string(), "--data-dir"])
            .arg(dir)
            .stdin(Stdio::null())
            .spawn()
            .context("start the agent daemon")?;
        let daemon = Self { process, address };
        let watch = Stopwatch::start();
        while !daemon.is_well() {
            ensure!(watch.time() < WAIT, "the agent daemon does not answer");
            pause(Duration::from_millis(10));
        }
        Ok(daemon)
    }

    fn is_well(&self) -> bool {
        let asked = Http::tcp(self.address, None)
            .and_then(|mut http| http.call("GET", "/v1/health", &Value::Null));
        asked.is_ok()
    }

    fn kib(&self, field: &str) -> anyhow::Result<u64> {
        process::kib(self.process.id(), field)
    }

    fn cpu(&self) -> anyhow::Result<Duration> {
        process::cpu(self.process.id())
    }
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
