//! Code mode: a call of each tool, beside the same call with Node in the sandbox; then 50 at once.

use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::clock::{Stopwatch, pause};
use super::http::Http;
use super::ours::Server;
use super::report::{Finding, Report};
use super::samples::{Samples, ms, times};

/// Calls at once.
const CROWD: usize = 50;
const LIMIT: &str = "100";
/// A burst of them is made while others wait; the rest is made cold.
const WARM: &str = "4";

const SEARCH: &str = "async () => Object.entries(spec.paths).filter(([path, ops]) => \
    path.includes('exec') && ops.post).map(([path]) => path)";
const READ: &str = "async () => (await api.request({ path: '/v1/sandboxes' })).data.length";

/// One engine, and what it took.
struct Engine {
    name: &'static str,
    server: Server,
    search: Samples,
    read: Samples,
}

pub(super) fn run(
    binary: &Path,
    data: &Path,
    rounds: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let engine = |name: &'static str, settings: &[&str]| -> anyhow::Result<Engine> {
        let common = ["--code-warm", WARM, "--code-calls-at-once", LIMIT];
        let server = Server::start(binary, &data.join(name), &[&common, settings].concat())?;
        Ok(Engine { name, server, search: Samples::default(), read: Samples::default() })
    };
    let node = ["--code-runtime", "node", "--code-template", "host"];
    let mut engines = [engine("quickjs", &[])?, engine("node", &node)?];
    for round in 0..=rounds {
        for engine in &mut engines {
            let mut http = engine.server.client()?;
            for (tool, code, times) in
                [("search", SEARCH, &mut engine.search), ("execute_read", READ, &mut engine.read)]
            {
                let watch = Stopwatch::start();
                call(&mut http, tool, code).with_context(|| engine.name)?;
                times.push((round > 0).then(|| watch.time()));
                // For what it tears down behind its answer, and the pool.
                pause(Duration::from_millis(100));
            }
        }
    }
    let [ours, node] = &engines;
    for (tool, our, their) in [
        ("search", &ours.search, &node.search),
        ("execute_read with one request", &ours.read, &node.read),
    ] {
        report.find(Finding {
            what: format!("code mode: {tool}"),
            measured: format!("p50 {} ms, p99 {} ms", ms(our.median()), ms(our.p99())),
            compared: format!(
                "{:.1}× faster than Node in the sandbox ({} ms)",
                times(their.median(), our.median()),
                ms(their.median())
            ),
            promise: "p50 ≤ 15 ms",
            met: our.median() <= Duration::from_millis(15),
        });
    }
    crowd(&ours.server, report)
}

fn crowd(server: &Server, report: &mut Report) -> anyhow::Result<()> {
    let start = Barrier::new(CROWD);
    let before = available_kib()?;
    let watch = Stopwatch::start();
    let results: Vec<anyhow::Result<Duration>> = std::thread::scope(|scope| {
        let one = || -> anyhow::Result<Duration> {
            let client = server.client();
            start.wait();
            let watch = Stopwatch::start();
            call(&mut client?, "execute_read", "async () => { await sleep(1500); return 1 }")?;
            Ok(watch.time())
        };
        let calls: Vec<_> = (0..CROWD).map(|_| scope.spawn(one)).collect();
        // While all of them wait.
        pause(Duration::from_millis(1200));
        let held = before.saturating_sub(available_kib().unwrap_or(before));
        report.find(Finding {
            what: format!("code mode: memory of one of {CROWD} calls"),
            measured: format!("{:.1} MiB", held as f64 / 1024.0 / CROWD as f64),
            compared: "fall of MemAvailable".into(),
            promise: "for orientation",
            met: true,
        });
        let joined = |call: std::thread::ScopedJoinHandle<'_, anyhow::Result<Duration>>| {
            call.join().unwrap_or_else(|_| bail!("a client panicked"))
        };
        calls.into_iter().map(joined).collect()
    });
    let whole = watch.time();
    let failed = results.iter().filter(|result| result.is_err()).count();
    let mut took = Samples::default();
    for time in results.into_iter().filter_map(Result::ok) {
        took.push(Some(time.saturating_sub(Duration::from_millis(1500))));
    }
    report.find(Finding {
        what: format!("code mode: {CROWD} calls at once"),
        measured: format!("p99 {} ms beyond their sleep, {failed} fail", ms(took.p99())),
        compared: format!("all in {} ms", ms(whole)),
        promise: "50 of 50",
        met: failed == 0,
    });
    Ok(())
}

fn call(http: &mut Http, tool: &str, code: &str) -> anyhow::Result<()> {
    let params = json!({ "name": tool, "arguments": { "code": code } });
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let answer: Value = http.call("POST", "/mcp", &message)?;
    ensure!(answer["result"]["isError"] == false, "{answer}");
    Ok(())
}

fn available_kib() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
    let value = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    Ok(value.context("no MemAvailable")?.parse()?)
}
