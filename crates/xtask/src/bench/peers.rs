//! What a user would pick instead, and how each is measured: make a sandbox, run `/bin/true` in it,
//! destroy it, over the interface that a program would use.

mod docker;
mod oci;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use super::clock::Stopwatch;

pub(super) use docker::Docker;
pub(super) use oci::Oci;
pub(crate) use oci::serve as serve_runner;

/// One measured cycle. Parts that a contender cannot do apart are absent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cycle {
    /// Until it says that the sandbox is there.
    pub(super) create: Option<Duration>,
    /// From the start to the answer of the first command.
    pub(super) first: Option<Duration>,
    /// A further command in the same sandbox.
    pub(super) exec: Option<Duration>,
    pub(super) pause: Option<Duration>,
    pub(super) resume: Option<Duration>,
    /// Create, one command, destroy.
    pub(super) whole: Duration,
}

pub(super) trait Contender {
    fn name(&self) -> &'static str;

    fn cycle(&mut self) -> anyhow::Result<Cycle>;
}

/// `bubblewrap`: namespaces and a read-only bind; no limits, no overlay, no seccomp.
pub(super) struct Bubblewrap {
    arguments: Vec<String>,
}

impl Bubblewrap {
    pub(super) fn new(rootfs: &Path) -> anyhow::Result<Self> {
        version("bwrap")?;
        let root = rootfs.to_str().context("a path that is no text")?;
        let arguments = [
            "--unshare-all",
            "--die-with-parent",
            "--new-session",
            "--ro-bind",
            root,
            "/",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--tmpfs",
            "/tmp",
            "/bin/true",
        ];
        Ok(Self { arguments: arguments.map(str::to_owned).to_vec() })
    }
}

impl Contender for Bubblewrap {
    fn name(&self) -> &'static str {
        "bubblewrap"
    }

    fn cycle(&mut self) -> anyhow::Result<Cycle> {
        let watch = Stopwatch::start();
        run(Command::new("bwrap").args(&self.arguments))?;
        Ok(Cycle { whole: watch.time(), ..Cycle::default() })
    }
}

/// Runs to the end, quietly; an error carries what was printed.
pub(super) fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("{} ended with {}: {said}", command.get_program().display(), output.status);
    }
    Ok(())
}

/// The first line of `PROGRAM --version`; an error when there is no such program.
pub(super) fn version(program: &str) -> anyhow::Result<String> {
    let output = Command::new(program).arg("--version").output();
    let output = output.with_context(|| format!("{program} is not installed"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or_default().to_owned())
}
