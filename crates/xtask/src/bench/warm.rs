//! The same creates from a warm pool: a server of its own that keeps sandboxes ready.

use std::path::Path;
use std::time::Duration;

use super::clock::{Stopwatch, pause};
use super::crowd::burst_times;
use super::ours::{Server, create, exec, remove};
use super::report::{Finding, Report};
use super::samples::{Samples, ms};

/// Enough for a burst of a hundred.
const READY: usize = 110;

pub(super) fn run(
    binary: &Path,
    data: &Path,
    rounds: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let setting = format!("{{ host = {READY} }}");
    let server = Server::start(binary, data, &["--warm", &setting])?;
    filled();
    let mut http = server.client()?;
    let mut times = Samples::default();
    for round in 0..=rounds {
        let watch = Stopwatch::start();
        let id = create(&mut http, "host")?;
        exec(&mut http, &id)?;
        times.push((round > 0).then(|| watch.time()));
        remove(&mut http, &id)?;
        pause(Duration::from_millis(100));
    }
    report.find(Finding {
        what: "create → first exec, from the warm pool".into(),
        measured: format!("p50 {} ms, p99 {} ms", ms(times.median()), ms(times.p99())),
        compared: format!("min {} ms", ms(times.min())),
        promise: "p50 ≤ 1.5 ms",
        met: times.median() <= Duration::from_micros(1500),
    });
    filled();
    let (times, failed) = burst_times(&server, 100, report)?;
    report.find(Finding {
        what: "100 creates at once, warm, each with an exec".into(),
        measured: format!("p99 {} ms, {} of 100 succeed", ms(times.p99()), 100 - failed),
        compared: format!("median {} ms", ms(times.median())),
        promise: "p99 ≤ 150 ms; 100 of 100",
        met: failed == 0 && times.p99() <= Duration::from_millis(150),
    });
    Ok(())
}

/// Twice what filling takes when it takes 20 ms each.
fn filled() {
    pause(Duration::from_millis(40) * u32::try_from(READY).unwrap_or(0));
}
