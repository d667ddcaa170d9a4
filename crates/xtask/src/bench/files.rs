//! A large file into a sandbox and out again, beside a plain copy on the same file system.

use std::fs::File;
use std::io::{Read, Write};
use std::time::Duration;

use anyhow::bail;

use super::clock::Stopwatch;
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
    let (mut up, mut down, mut copy) = <(Samples, Samples, Samples)>::default();
    let memory = resident_kib(server.pid())?;
    for _ in 0..rounds {
        let watch = Stopwatch::start();
        http.upload(&path, BYTES, &mut File::open(&source)?)?;
        up.push(Some(watch.time()));
        let watch = Stopwatch::start();
        let copied = source.with_extension("copy");
        std::io::copy(&mut File::open(&source)?, &mut Plain(File::create(&copied)?))?;
        copy.push(Some(watch.time()));
        let watch = Stopwatch::start();
        let got = http.download(&path, &mut File::create(&copied)?)?;
        down.push(Some(watch.time()));
        if got != BYTES || std::fs::metadata(&copied)?.len() != BYTES {
            bail!("downloaded {got} bytes of {BYTES}");
        }
        std::fs::remove_file(&copied)?;
    }
    let grown = resident_kib(server.pid())?.saturating_sub(memory);
    std::fs::remove_file(&source)?;
    remove(&mut http, &id)?;
    for (what, samples) in [("upload", up), ("download", down)] {
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

/// Keeps `io::copy` from asking the kernel to copy inside the file system, which moves no bytes.
struct Plain(File);

impl Write for Plain {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

fn make(path: &std::path::Path) -> anyhow::Result<()> {
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
