//! What was measured, and on what.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use super::clock::Stopwatch;
use super::samples::{Samples, ms};

pub(super) fn facts(root: &Path, data: &Path) -> Vec<(&'static str, String)> {
    let fsync = match fsync(data) {
        Ok(samples) => {
            format!("{} / {} ms (median / p99)", ms(samples.median()), ms(samples.p99()))
        }
        Err(error) => error.to_string(),
    };
    vec![
        (
            "commit",
            said(Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(root)),
        ),
        ("kernel", said(Command::new("uname").arg("-sr"))),
        ("processors", said(&mut Command::new("nproc"))),
        ("memory", first_line("/proc/meminfo")),
        ("load before", first_line("/proc/loadavg")),
        ("fsync of 4 KiB", fsync),
    ]
}

fn said(command: &mut Command) -> String {
    match command.output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(error) => error.to_string(),
    }
}

fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn fsync(dir: &Path) -> std::io::Result<Samples> {
    let path = dir.join("bench-fsync");
    let mut file = File::create(&path)?;
    let mut samples = Samples::default();
    for _ in 0..50 {
        let watch = Stopwatch::start();
        file.write_all(&[7; 4096])?;
        file.sync_all()?;
        samples.push(Some(watch.time()));
    }
    std::fs::remove_file(path)?;
    Ok(samples)
}
