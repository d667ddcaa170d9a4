//! Many sandboxes of ours: a hundred at once, thousands one after the other, hundreds that idle, and
//! all of them over a crash of the server.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Context, bail};

use super::clock::{Stopwatch, pause};
use super::ours::{Server, create, exec, remove};
use super::report::{Finding, Report};
use super::samples::{Samples, ms};

const TEMPLATE: &str = "host";

/// A cold burst.
pub(super) fn burst(server: &Server, count: usize, report: &mut Report) -> anyhow::Result<()> {
    let (times, failed) = burst_times(server, count, report)?;
    let all = times.p99();
    report.find(Finding {
        what: format!("{count} creates at once, cold, each with an exec"),
        measured: format!("all in {} ms, {} of {count} succeed", ms(all), count - failed),
        compared: format!("median {} ms", ms(times.median())),
        promise: "all in ≤ 600 ms; 100 of 100",
        met: failed == 0 && all <= Duration::from_millis(600),
    });
    Ok(())
}

/// `count` clients that all create at the same moment: how long each took, and how many failed.
pub(super) fn burst_times(
    server: &Server,
    count: usize,
    report: &mut Report,
) -> anyhow::Result<(Samples, usize)> {
    let start = Barrier::new(count);
    let results: Vec<anyhow::Result<(String, Duration)>> = std::thread::scope(|scope| {
        let begin = |_| scope.spawn(|| create_at(server, &start));
        let clients: Vec<_> = (0..count).map(begin).collect();
        clients.into_iter().map(joined).collect()
    });
    let (mut times, mut failed, mut http) = (Samples::default(), 0, server.client()?);
    for result in results {
        match result {
            Ok((id, time)) => {
                times.push(Some(time));
                remove(&mut http, &id)?;
            }
            Err(error) => {
                failed += 1;
                report.skip("one of the burst", &error);
            }
        }
    }
    Ok((times, failed))
}

fn create_at(server: &Server, start: &Barrier) -> anyhow::Result<(String, Duration)> {
    let client = server.client();
    start.wait();
    let mut http = client?;
    let watch = Stopwatch::start();
    let id = create(&mut http, TEMPLATE)?;
    exec(&mut http, &id)?;
    Ok((id, watch.time()))
}

fn joined<T>(client: std::thread::ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    client.join().unwrap_or_else(|_| bail!("a client panicked"))
}

/// Creates and destroys `count` sandboxes over four connections, and looks at what is left.
pub(super) fn sustained(server: &Server, count: usize, report: &mut Report) -> anyhow::Result<()> {
    const CLIENTS: usize = 4;
    let cycles = |each: usize| -> anyhow::Result<()> {
        std::thread::scope(|scope| {
            let start = |_| scope.spawn(|| create_and_remove(server, each));
            let clients: Vec<_> = (0..CLIENTS).map(start).collect();
            clients.into_iter().try_for_each(joined)
        })
    };
    // Once before counting, so that what is made on first use is there.
    cycles(5)?;
    let before = Holdings::settled(server)?;
    let watch = Stopwatch::start();
    cycles(count / CLIENTS)?;
    let took = watch.time();
    let after = Holdings::settled(server)?;
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    let rate = count as f64 / took.as_secs_f64();
    let grew = after.grew_beyond(&before);
    report.find(Finding {
        what: format!("create + destroy, sustained, {count} of them over {CLIENTS} connections"),
        measured: format!("{rate:.0}/s; left over: {}", grew.as_deref().unwrap_or("nothing")),
        compared: format!("{before} before, {after} after"),
        promise: "≥ 200/s, nothing grows",
        met: rate >= 200.0 && grew.is_none(),
    });
    Ok(())
}

fn create_and_remove(server: &Server, count: usize) -> anyhow::Result<()> {
    let mut http = server.client()?;
    for _ in 0..count {
        let id = create(&mut http, TEMPLATE)?;
        remove(&mut http, &id)?;
    }
    Ok(())
}

/// What a leak would show in.
struct Holdings {
    mounts: usize,
    cgroups: usize,
    descriptors: usize,
    processes: usize,
}

impl Holdings {
    /// After time for what is torn down behind the answer.
    fn settled(server: &Server) -> anyhow::Result<Self> {
        pause(Duration::from_secs(3));
        let own = server.data().display().to_string();
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let cgroups = super::leftovers::cgroups(server.data());
        Ok(Self {
            mounts: mounts.lines().filter(|line| line.contains(&own)).count(),
            cgroups: cgroups.iter().map(|dir| directories_below(dir)).sum(),
            descriptors: fs::read_dir(format!("/proc/{}/fd", server.pid()))?.count(),
            processes: cgroups.iter().map(|dir| processes_below(dir)).sum(),
        })
    }

    /// With some slack for idle connections, and for launchers that wait.
    fn grew_beyond(&self, before: &Self) -> Option<String> {
        let grown = [
            ("mounts", self.mounts, before.mounts, 0),
            ("cgroups", self.cgroups, before.cgroups, 8),
            ("descriptors of the server", self.descriptors, before.descriptors, 16),
            ("processes", self.processes, before.processes, 8),
        ];
        let grown = grown.into_iter().filter(|(_, now, then, slack)| *now > then + slack);
        let words: Vec<String> =
            grown.map(|(what, now, then, _)| format!("{} {what}", now - then)).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

impl std::fmt::Display for Holdings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { mounts, cgroups, descriptors, processes } = self;
        write!(f, "{mounts} mounts, {cgroups} cgroups, {descriptors} fds, {processes} processes")
    }
}

fn directories_below(dir: &Path) -> usize {
    subdirectories(dir).map(|below| 1 + directories_below(&below)).sum()
}

fn processes_below(dir: &Path) -> usize {
    let here = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines().count();
    here + subdirectories(dir).map(|below| processes_below(&below)).sum::<usize>()
}

fn subdirectories(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.map(|entry| entry.path())
}

/// Memory of `count` idle sandboxes, each of which then answers; then the server is killed, and the next
/// one must answer for each of them.
pub(super) fn idle(server: &mut Server, count: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut http = server.client()?;
    // What a first one brings with it is not each one's.
    let warm = create(&mut http, TEMPLATE)?;
    pause(Duration::from_secs(2));
    let (before, charged_before) = (available_kib()?, charged_kib(server));
    let mut ids = vec![warm];
    for _ in 0..count {
        ids.push(create(&mut http, TEMPLATE)?);
    }
    pause(Duration::from_secs(2));
    let each = mib_each(available_kib()?, before, count);
    let charged = mib_each(charged_before, charged_kib(server), count);
    let mut times = Samples::default();
    for id in &ids {
        let watch = Stopwatch::start();
        exec(&mut http, id)?;
        times.push(Some(watch.time()));
    }
    report.find(Finding {
        what: format!("idle sandbox: fall of MemAvailable each, at {count}"),
        measured: format!("{each:.2} MiB; each answers an exec"),
        compared: format!("{charged:.2} MiB charged; exec p50 {} ms", ms(times.median())),
        promise: "≤ 2 MiB, each answers",
        // More free memory than before means that another program has ended meanwhile.
        met: each <= 2.0 && each > 0.0,
    });
    let restarted = restart(server, &ids, report);
    let mut http = server.client()?;
    for id in &ids {
        remove(&mut http, id)?;
    }
    restarted
}

fn restart(server: &mut Server, ids: &[String], report: &mut Report) -> anyhow::Result<()> {
    let watch = Stopwatch::start();
    server.crash_and_restart()?;
    let up = watch.time();
    let mut http = server.client()?;
    let mut lost = 0;
    for id in ids {
        if exec(&mut http, id).is_err() {
            lost += 1;
            http = server.client()?;
        }
    }
    let all = watch.time();
    // A millisecond each; a start of its own takes longer than for a few of them.
    let limit = Duration::from_millis(u64::try_from(ids.len())?.max(1000));
    report.find(Finding {
        what: format!("kill -9 of the server, start: {} sandboxes answer again", ids.len()),
        measured: format!("up in {} ms; {lost} lost", ms(up)),
        compared: format!("an exec in each, one after the other: {} ms", ms(all)),
        promise: "≤ 1 s per 1,000; none lost",
        met: lost == 0 && up <= limit,
    });
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn mib_each(fewer: u64, more: u64, count: usize) -> f64 {
    (more as f64 - fewer as f64) / count as f64 / 1024.0
}

/// What the kernel charges to all sandboxes of the server.
fn charged_kib(server: &Server) -> u64 {
    let dirs = super::leftovers::cgroups(server.data());
    let files = dirs
        .iter()
        .flat_map(|dir| ["memory.current", "memory.usage_in_bytes"].map(|file| dir.join(file)));
    let bytes = files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok());
    bytes.max().unwrap_or(0) / 1024
}

pub(super) fn available_kib() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    number.context("no MemAvailable")
}
