//! Sessions: events of about 300 bytes from an agent through the log to a WebSocket, as fast as one core of the
//! server takes them and a thousand a second; and what it costs to have sessions with a client each and nothing
//! to do. The agent is the mock one, in real sandboxes; the limit is the same WebSocket library alone, with
//! nothing behind it, in the same run.

mod socket;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};

use self::socket::{Received, Socket, raw};
use super::clock::{Stopwatch, micros_since_1970, pause};
use super::crowd::available_kib;
use super::http::Http;
use super::ours::Server;
use super::peers;
use super::report::{Finding, Report};
use super::samples::{Samples, ms};

/// At full speed.
const EVENTS: u64 = 100_000;
/// At a rate.
const PACED: u64 = 10_000;
const RATE: u64 = 1_000;
const BUNDLE: &str = "bench";
/// Between two rounds in which idle clients answer pings.
const TEND_EVERY: usize = 25;

struct Session {
    id: String,
    path: String,
    token: String,
}

pub(super) fn run(
    binary: &Path,
    data: &Path,
    idle_sessions: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    peers::run(
        Command::new(binary).args(["template", "build", "standard", "--data-dir"]).arg(data),
    )?;
    let server = Server::start(binary, data, &[])?;
    let mut http = server.client()?;
    let values = json!({ "LLM_API_KEY": "of-nobody" });
    http.call("POST", "/v1/tenants/me/secrets", &json!({ "name": BUNDLE, "values": values }))?;
    let user = http.call("GET", "/v1/tenants/me", &Value::Null)?;
    let user = user["tenant_id"].as_str().context("nobody is asked for")?.to_owned();
    let address = server.address();
    rates(&server, &mut http, (address, &user), report).context("events")?;
    idle(&server, &mut http, (address, &user), idle_sessions, report).context("idle sessions")
}

fn rates(
    server: &Server,
    http: &mut Http,
    (address, user): (SocketAddr, &str),
    report: &mut Report,
) -> anyhow::Result<()> {
    let session = Session::create(http, user)?;
    let mut socket = session.connect(address)?;
    // Caches, and what is compiled or opened on first use.
    flood(&mut socket, &format!("flood {PACED}"), PACED)?;

    let cores = pin(server.pid(), 0)?;
    let before = server.cpu()?;
    let fast = flood(&mut socket, &format!("flood {EVENTS}"), EVENTS)?;
    let cpu = server.cpu()?.saturating_sub(before);
    let bytes = fast.bytes / EVENTS;
    let limit = raw(EVENTS, usize::try_from(bytes)?)?;
    let ours = per_second(EVENTS, fast.took);
    report.find(Finding {
        what: format!("session events of {bytes} bytes, agent → log → WebSocket"),
        measured: format!(
            "{ours:.0}/s, the server on one of {cores} cores; {:.0} ms of CPU a thousand; none lost, none twice",
            cpu.as_secs_f64() * 1e6 / EVENTS as f64
        ),
        compared: format!("the WebSocket library alone: {:.0}/s", per_second(EVENTS, limit)),
        promise: "≥ 20,000/s on one core; none lost, none twice",
        met: ours >= 20_000.0,
    });

    let paced = flood(&mut socket, &format!("flood {PACED} {RATE}"), PACED)?;
    let mut late = Samples::default();
    late.extend(paced.late);
    report.find(Finding {
        what: format!("session events at {RATE}/s: from the agent to the client"),
        measured: format!("p50 {} ms, p99 {} ms", ms(late.median()), ms(late.p99())),
        compared: "the server on one core".into(),
        promise: "p99 ≤ 10 ms",
        met: late.p99() <= Duration::from_millis(10),
    });
    unpin(server.pid(), cores)?;
    // What is read again has what was seen; the end of the last turn may have come since.
    let logged = session.connect(address)?.replay(socket.last())?;
    ensure!(logged >= socket.last(), "the log ends at {logged}, the client saw {}", socket.last());
    drop(socket);
    session.delete(http)
}

/// What came of a flood, each piece once and in its order.
struct Flood {
    took: Duration,
    bytes: u64,
    /// From when a piece was made until it was received.
    late: Vec<Duration>,
}

fn flood(socket: &mut Socket, message: &str, count: u64) -> anyhow::Result<Flood> {
    let watch = Stopwatch::start();
    let from = socket.last();
    socket.say(message)?;
    let mut received = Vec::with_capacity(usize::try_from(count)?);
    let mut pieces = 0;
    while pieces < count {
        let one = socket.next(micros_since_1970)?;
        pieces += u64::from(one.is_piece());
        received.push(one);
    }
    let took = watch.time();
    check(&received, from, count)?;
    socket.seen(from + received.len() as u64);
    let of_pieces = || received.iter().filter(|one| one.is_piece());
    Ok(Flood {
        took,
        bytes: of_pieces().map(|one| one.text.len() as u64).sum(),
        late: of_pieces().filter_map(Received::late).collect(),
    })
}

/// Nothing is lost, nothing comes twice: neither by the server's numbers nor by the agent's.
fn check(received: &[Received], from: u64, count: u64) -> anyhow::Result<()> {
    let (mut sequence, mut piece) = (from, 0);
    for one in received {
        sequence += 1;
        let (seen, number) = one.numbers()?;
        ensure!(seen == sequence, "after event {} comes {seen}", sequence - 1);
        if let Some(number) = number {
            piece += 1;
            ensure!(number == piece, "after piece {} comes {number}", piece - 1);
        }
    }
    ensure!(piece == count, "{piece} of {count} pieces came");
    Ok(())
}

fn idle(
    server: &Server,
    http: &mut Http,
    (address, user): (SocketAddr, &str),
    count: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    pause(Duration::from_secs(2));
    let (before, own_before) = (available_kib()?, server.kib("VmRSS")?);
    let mut all: Vec<(Session, Socket)> = Vec::new();
    let mut made = Samples::default();
    for number in 0..count {
        let watch = Stopwatch::start();
        let session = Session::create(http, user)?;
        made.push(Some(watch.time()));
        let socket = session.connect(address)?;
        all.push((session, socket));
        if number % TEND_EVERY == 0 {
            for (_, socket) in &mut all {
                socket.tend()?;
            }
        }
    }
    pause(Duration::from_secs(5));
    for (_, socket) in &mut all {
        socket.tend()?;
    }
    let each = before.saturating_sub(available_kib()?) / count.max(1) as u64;
    let own = server.kib("VmRSS")?.saturating_sub(own_before) / count.max(1) as u64;
    let mut times = Samples::default();
    for (_, socket) in &mut all {
        let watch = Stopwatch::start();
        socket.say("echo x")?;
        socket.next(micros_since_1970)?;
        times.extend([watch.time()]);
    }
    report.find(Finding {
        what: format!("idle sessions with a client each: fall of MemAvailable each, at {count}"),
        measured: format!(
            "{:.2} MiB with sandbox, agent daemon and mock agent; {own} KiB of it in the server",
            each as f64 / 1024.0
        ),
        compared: format!(
            "made in {} ms (p50; p99 {}), agent started; each answers, p50 {} ms",
            ms(made.median()),
            ms(made.p99()),
            ms(times.median())
        ),
        promise: "each answers",
        met: true,
    });
    for (session, socket) in all {
        drop(socket);
        session.delete(http)?;
    }
    Ok(())
}

impl Session {
    fn create(http: &mut Http, user: &str) -> anyhow::Result<Self> {
        let body = json!({
            "agent": { "kind": "mock" }, "template": "standard", "secrets": [BUNDLE], "user_id": user,
            "llm": { "vendor": "anthropic" }, "ttl_seconds": 7200,
        });
        let made = http.call("POST", "/v1/sessions", &body)?;
        let text = |name: &str| made[name].as_str().map(str::to_owned).context("no such field");
        let (id, token) = (text("chat_session_id")?, text("jwt")?);
        Ok(Self { path: format!("/v1/sessions/{id}/ws"), id, token })
    }

    fn connect(&self, address: SocketAddr) -> anyhow::Result<Socket> {
        Socket::connect(address, &self.path, &self.token)
    }

    fn delete(&self, http: &mut Http) -> anyhow::Result<()> {
        http.call("DELETE", &format!("/v1/sessions/{}", self.id), &Value::Null).map(drop)
    }
}

/// All threads of a process run on this core; how many there are.
fn pin(process: u32, core: usize) -> anyhow::Result<usize> {
    let mut one = CpuSet::new();
    one.set(core);
    let cores = sched_getaffinity(None)?.count();
    on(process, &one)?;
    Ok(usize::try_from(cores)?)
}

fn unpin(process: u32, cores: usize) -> anyhow::Result<()> {
    let mut all = CpuSet::new();
    (0..cores).for_each(|core| all.set(core));
    on(process, &all)
}

fn on(process: u32, cores: &CpuSet) -> anyhow::Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
        let id = thread.file_name().to_str().and_then(|id| id.parse().ok());
        if let Some(thread) = id.and_then(Pid::from_raw) {
            // One that has just ended has no place to be.
            let _ = sched_setaffinity(Some(thread), cores);
        }
    }
    Ok(())
}

fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64().max(1e-9)
}
