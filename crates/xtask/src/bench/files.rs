//! A large file into a sandbox and out again, each beside a plain copy from where it comes to where it goes:
//! from the data directory's file system to that of the sandboxes' disks, and back.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::bail;

use super::clock::Stopwatch;
use super::http::PIECE_BYTES;
use super::ours::{Server, create, remove};
use super::report::{Finding, Report};
use super::samples::{Samples, ms, times};

const BYTES: u64 = 256 << 20;
const PATH: &str = "/workspace/large";

pub(super) fn run(server: &Server, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let source = server.data().join("bench-source");
    make(&source)?;
    let mut http = server.client()?;
    let id = create(&mut http, "host")?;
    let path = format!("/v1/sandboxes/{id}/files?path={PATH}");
    let (mut up, mut down) = <([Samples; 2], [Samples; 2])>::default();
    let (out, disks) = (source.with_extension("out"), server.data().join("pool"));
    let inside = if disks.is_dir() { disks } else { server.data().to_owned() }.join("bench-copy");
    let memory = resident_kib(server.pid())?;
    for _ in 0..rounds {
        let watch = Stopwatch::start();
        http.upload(&path, BYTES, &mut File::open(&source)?)?;
        up[0].push(Some(watch.time()));
        up[1].push(Some(copy(&source, &inside)?));
        let watch = Stopwatch::start();
        let got = http.download(&path, &mut File::create(&out)?)?;
        down[0].push(Some(watch.time()));
        if got != BYTES || std::fs::metadata(&out)?.len() != BYTES {
            bail!("downloaded {got} bytes of {BYTES}");
        }
        std::fs::remove_file(&out)?;
        down[1].push(Some(copy(&inside, &out)?));
        std::fs::remove_file(&inside)?;
        std::fs::remove_file(&out)?;
    }
    let grown = resident_kib(server.pid())?.saturating_sub(memory);
    std::fs::remove_file(&source)?;
    remove(&mut http, &id)?;
    for (what, [samples, copy]) in [("upload", up), ("download", down)] {
        let share = 100.0 * times(copy.median(), samples.median());
        report.find(Finding {
            what: format!("file {what}, 256 MiB"),
            measured: format!("{} ms, {:.0} MiB/s", ms(samples.median()), rate(samples.median())),
            compared: format!(
                "{share:.0} % of a copy ({:.0} MiB/s); server grew {} KiB",
                rate(copy.median()),
                grown
            ),
            promise: "≥ 50 % of a copy, in constant memory",
            met: share >= 50.0 && grown < 64 << 10,
        });
    }
    Ok(())
}

/// In pieces of the same size; nothing that the kernel could shorten to no copy at all.
fn copy(from: &Path, to: &Path) -> anyhow::Result<Duration> {
    let watch = Stopwatch::start();
    let (mut from, mut to) = (File::open(from)?, File::create(to)?);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(watch.time()),
            count => to.write_all(&piece[..count])?,
        }
    }
}

fn make(path: &Path) -> anyhow::Result<()> {
    let mut random = File::open("/dev/urandom")?.take(1 << 20);
    let mut block = Vec::new();
    random.read_to_end(&mut block)?;
    let mut file = File::create(path)?;
    for _ in 0..BYTES >> 20 {
        file.write_all(&block)?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "256 MiB")]
fn rate(time: Duration) -> f64 {
    (BYTES >> 20) as f64 / time.as_secs_f64()
}

fn resident_kib(pid: u32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0))
}
