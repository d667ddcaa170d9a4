//! `cargo xtask bench`: the promises of DESIGN.md section 3, measured side by side with what a user
//! would pick instead, interleaved in one run. Ratios decide; absolute numbers are for orientation.
//!
//! Everything it starts it ends, by pid; everything it makes is in one temporary directory. What
//! cannot run here is named with the reason, and the rest is measured.

mod agents;
mod auth;
mod clock;
mod code;
mod crowd;
mod curves;
mod deictic;
mod files;
mod floor;
mod host;
mod http;
mod leftovers;
mod ours;
mod peers;
mod process;
mod report;
mod samples;
mod sessions;
mod tree;
mod warm;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use crate::say;
use floor::Floor;
use ours::{Ours, Server};
use peers::{Bubblewrap, Contender, Docker, Oci};
use report::{Finding, Report, Times};
use samples::{Samples, ms, times};

pub(crate) use floor::serve as serve_floor;
pub(crate) use peers::serve_runner;

/// Measure the promises beside bubblewrap, crun, runc and Docker
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Fewer rounds: a minute instead of ten
    #[arg(long)]
    quick: bool,
    /// The full counts: 10,000 cycles and 1,000 idle sandboxes
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Build the template `standard` first, and measure it too
    #[arg(long)]
    standard: bool,
    /// Also measure with 10 to 1,000 live sandboxes and bursts of 1 to 100, and draw that into a file
    #[arg(long, value_name = "SVG")]
    plot: Option<PathBuf>,
    /// Measure the agent daemon alone
    #[arg(long)]
    agents: bool,
    /// Measure sessions alone: builds the template `standard` first
    #[arg(long)]
    sessions: bool,
    /// Measure the loop of our own agent alone, beside claude and codex
    #[arg(long)]
    deictic: bool,
    /// Measure code mode alone, beside Node
    #[arg(long)]
    code: bool,
    /// Where those are: DIR/bin/claude, DIR/bin/codex
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Measure this program instead of building one
    #[arg(long, value_name = "FILE")]
    bastide: Option<PathBuf>,
    /// Where to make the temporary directory: the disk that is measured
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

struct Sizes {
    rounds: usize,
    burst: usize,
    cycles: usize,
    idle: usize,
    copies: usize,
}

impl BenchArgs {
    fn sizes(&self) -> Sizes {
        match (self.quick, self.full) {
            (true, _) => Sizes { rounds: 15, burst: 100, cycles: 200, idle: 50, copies: 1 },
            (_, true) => Sizes { rounds: 200, burst: 100, cycles: 10_000, idle: 1000, copies: 5 },
            (false, false) => Sizes { rounds: 60, burst: 100, cycles: 2000, idle: 200, copies: 3 },
        }
    }
}

pub(crate) fn run(root: &Path, args: &BenchArgs) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("bench needs root: it makes namespaces, mounts and cgroups");
    }
    let binary = match &args.bastide {
        Some(binary) => binary.clone(),
        None => build(root)?,
    };
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let work = tempfile::Builder::new().prefix("bastide-bench").tempdir_in(parent)?;
    // A sandbox's own user must be able to pass through.
    tree::open_to_all(work.path())?;
    let mut report = Report::default();
    if args.standard {
        peers::run(
            Command::new(&binary)
                .args(["template", "build", "standard", "--data-dir"])
                .arg(work.path().join("data")),
        )?;
    }
    report.facts = host::facts(root, work.path());
    if args.deictic {
        let programs = args.programs.clone().unwrap_or_else(|| root.join("target/tmp/agents"));
        deictic::run(&binary, &programs, &work.path().join("deictic"), &mut report)?;
    } else if args.sessions {
        sessions::run(&binary, &work.path().join("data"), args.sizes().idle, &mut report)?;
    } else if args.code {
        code::run(&binary, &work.path().join("code"), args.sizes().rounds, &mut report)?;
    } else if args.agents {
        agents::run(&binary, &work.path().join("agents"), &mut report)?;
    } else {
        measure(work.path(), &binary, args, &mut report)?;
    }
    if args.json {
        say::line(&serde_json::to_string_pretty(&report.json())?);
    } else {
        report.print();
    }
    Ok(())
}

fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--package", "cli", "--bin", "bastide"])
        .current_dir(root)
        .status()?;
    if !built.success() {
        bail!("cannot build bastide");
    }
    Ok(root.join("target/release/bastide"))
}

fn measure(
    work: &Path,
    binary: &Path,
    args: &BenchArgs,
    report: &mut Report,
) -> anyhow::Result<()> {
    let sizes = args.sizes();
    let rootfs = work.join("rootfs");
    tree::make_rootfs(&rootfs).context("make a root file system")?;
    let data = work.join("data");
    std::fs::create_dir_all(data.join("run"))?;
    // Asks the keeper to say what each step of a launch costs.
    std::fs::write(data.join("run/trace-launch"), "")?;
    let mut server = match Server::start(binary, &data, &[]) {
        Ok(server) => Some(server),
        Err(error) => {
            report.skip("bastide", &error);
            None
        }
    };
    side_by_side(&rootfs, work, server.as_ref(), sizes.rounds, report)?;
    promises(report);
    if let Some(server) = &mut server {
        if let Some(file) = &args.plot
            && let Err(error) = curves::run(server, (&rootfs, work), file, report)
        {
            report.skip("the curves", &error);
        }
        alone(server, &sizes, report);
        report.steps = steps(&data);
    }
    drop(server.take());
    if let Err(error) = warm::run(binary, &work.join("warm"), sizes.rounds, report) {
        report.skip("the warm pool", &error);
    }
    if let Err(error) = agents::run(binary, &work.join("agents"), report) {
        report.skip("the agent daemon", &error);
    }
    if let Err(error) = code::run(binary, &work.join("code"), sizes.rounds, report) {
        report.skip("code mode", &error);
    }
    Ok(())
}

/// Rows that need no peer. One that fails is named, and the others go on.
fn alone(server: &mut Server, sizes: &Sizes, report: &mut Report) {
    if let Err(error) = auth::run(server, report) {
        report.skip("knowing who calls", &error);
    }
    if let Err(error) = crowd::burst(server, sizes.burst, report) {
        report.skip("the burst", &error);
    }
    if let Err(error) = crowd::sustained(server, sizes.cycles, report) {
        report.skip("sustained create and destroy", &error);
    }
    if let Err(error) = crowd::idle(server, sizes.idle, report) {
        report.skip("idle sandboxes", &error);
    }
    // Last: a gigabyte on its way to the disk makes every flush wait.
    if let Err(error) = files::run(server, sizes.copies, report) {
        report.skip("files", &error);
    }
}

/// Every contender in turn, `rounds` times, so that what the machine does meanwhile hits all alike.
fn side_by_side(
    rootfs: &Path,
    work: &Path,
    server: Option<&Server>,
    rounds: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    let mut add = |name: &str, made: anyhow::Result<Box<dyn Contender>>| match made {
        Ok(contender) => contenders.push(contender),
        Err(error) => report.skip(name, &error),
    };
    add("floor", Floor::start(rootfs, work).map(boxed));
    if let Some(server) = server {
        add("ours, template host", Ours::new(server, OURS, "host").map(boxed));
        let unlike = Ours::unlike_the_last(server, "ours (another size)");
        add("ours, each of another size", unlike.map(boxed));
        add("ours, template standard", Ours::new(server, "ours (standard)", "standard").map(boxed));
    }
    add("bubblewrap", Bubblewrap::new(rootfs).map(boxed));
    add("crun", Oci::new("crun", rootfs, work).map(boxed));
    add("runc", Oci::new("runc", rootfs, work).map(boxed));
    add("Docker", Docker::new(rootfs, work).map(boxed));
    let mut all: Vec<Times> = contenders
        .iter()
        .map(|contender| Times { name: contender.name(), ..Times::default() })
        .collect();
    for round in 0..=rounds {
        for (contender, times) in contenders.iter_mut().zip(&mut all) {
            let cycle = contender.cycle().with_context(|| contender.name())?;
            // What one tears down behind its answer is not the next one's to wait for.
            clock::pause(Duration::from_millis(100));
            // The first round is for caches.
            if round > 0 {
                times.create.push(cycle.create);
                times.first.push(cycle.first);
                times.exec.push(cycle.exec);
                times.pause.push(cycle.pause);
                times.resume.push(cycle.resume);
                times.whole.push(Some(cycle.whole));
            }
        }
    }
    report.times = all;
    Ok(())
}

const OURS: &str = "ours (host)";

fn boxed(contender: impl Contender + 'static) -> Box<dyn Contender> {
    Box::new(contender)
}

/// The promises that compare: (row, the other, which time, at most this many times theirs).
fn promises(report: &mut Report) {
    type Pick = fn(&Times) -> &Samples;
    const FIRST: Pick = |times| &times.first;
    const WHOLE: Pick = |times| &times.whole;
    const EXEC: Pick = |times| &times.exec;
    let rows: [(&str, &str, Pick, f64, &str); 8] = [
        ("cold create → first exec", "floor", FIRST, 2.0, "≤ 2× the floor"),
        ("create, exec, destroy", "bubblewrap", WHOLE, 1.5, "≤ 1.5× bubblewrap"),
        ("create, exec, destroy", "crun", WHOLE, 1.0, "faster than crun"),
        ("create, exec, destroy", "runc", WHOLE, 1.0 / 5.0, "≥ 5× faster than runc"),
        ("create, exec, destroy", "docker API", WHOLE, 1.0 / 40.0, "≥ 40× faster than Docker"),
        ("exec of /bin/true", "crun", EXEC, 1.0 / 5.0, "≥ 5× faster than crun exec"),
        ("exec of /bin/true", "runc", EXEC, 1.0 / 15.0, "≥ 15× faster than runc exec"),
        ("exec of /bin/true", "docker API", EXEC, 1.0 / 50.0, "≥ 50× faster than Docker"),
    ];
    let by_name = |name: &str| report.times.iter().find(|times| times.name == name);
    let mut found = Vec::new();
    let Some(ours) = by_name(OURS) else { return };
    for (what, other, pick, at_most, promise) in rows {
        let Some(theirs) = by_name(other) else { continue };
        let (our, their) = (pick(ours).median(), pick(theirs).median());
        let ratio = times(our, their);
        let shown = if ratio > 1.0 {
            format!("{ratio:.2}× {other} ({} ms)", ms(their))
        } else {
            format!("{:.1}× faster than {other} ({} ms)", 1.0 / ratio, ms(their))
        };
        found.push(Finding {
            what: what.into(),
            measured: format!("{} ms", ms(our)),
            compared: shown,
            promise,
            met: ratio <= at_most,
        });
    }
    found.push(limit("cold create → first exec", &ours.first, (6, 25), "p50 ≤ 6 ms, p99 ≤ 25 ms"));
    found.push(limit("exec of /bin/true", &ours.exec, (1, u64::MAX), "p50 ≤ 1 ms"));
    found.push(limit("pause", &ours.pause, (u64::MAX, 5), "p99 ≤ 5 ms"));
    found.push(limit("resume", &ours.resume, (u64::MAX, 5), "p99 ≤ 5 ms"));
    found.into_iter().for_each(|finding| report.find(finding));
}

/// A promise in milliseconds: of the median, and of the 99th percentile.
fn limit(what: &str, samples: &Samples, ms_max: (u64, u64), promise: &'static str) -> Finding {
    let met = samples.median().as_micros() <= u128::from(ms_max.0) * 1000
        && samples.p99().as_micros() <= u128::from(ms_max.1) * 1000;
    let measured = format!("p50 {} ms, p99 {} ms", ms(samples.median()), ms(samples.p99()));
    Finding { what: what.into(), measured, compared: "for orientation".into(), promise, met }
}

/// The last launch that the keeper told about.
fn steps(data: &Path) -> Vec<String> {
    let mut logs = vec![data.join("bench.log"), data.join("keeper.log")];
    logs.push(data.join("run/keeper.log"));
    let text = logs.iter().filter_map(|log| std::fs::read_to_string(log).ok());
    let text: String = text.collect();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("launch")).collect();
    lines.iter().rev().take(20).rev().map(|line| (*line).to_owned()).collect()
}
