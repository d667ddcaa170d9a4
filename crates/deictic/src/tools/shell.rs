//! Running a command. It has a process group of its own and a mark in its environment; when it takes
//! too long, or nobody wants it any more, all of it is killed at once: also what left the group.
//!
//! What a command leaves running on purpose (`server &`) goes on after it ended well.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::output::Output;
use super::{End, Outcome, Workplace};
use crate::voice::new_id;

/// The variable by which what a command started is known.
const MARK: &str = "DEICTIC_COMMAND";

/// After its shell ended: what is in the pipe is read, but what was left running is not waited for.
const LEFTOVER_WAIT: Duration = Duration::from_millis(100);

/// How long what is killed may take to be gone.
const GONE_WAIT: Duration = Duration::from_secs(2);

pub(super) async fn run(
    command: &str,
    workplace: &Workplace,
    wait: Duration,
    cancel: &CancellationToken,
) -> Outcome {
    let mut running = match Running::start(command, workplace) {
        Ok(running) => running,
        Err(error) => return Outcome::of_io("cannot start a shell", &error),
    };
    let ended = tokio::select! {
        ended = running.follow(Instant::now() + wait) => ended,
        () = cancel.cancelled() => Ended::Cancelled,
    };
    if !matches!(ended, Ended::Exited(_)) {
        running.kill();
    }
    let output = std::mem::take(&mut running.output).text();
    let result = match ended {
        Ended::Exited(status) => exited(status, output),
        Ended::Late => Outcome {
            output: format!("{output}\n[killed: it took longer than {} s]", wait.as_secs_f32()),
            end: End::TimedOut,
            file: None,
        },
        Ended::Cancelled => Outcome::failed(format!("{output}\n[killed: interrupted]")),
        Ended::Broken(error) => Outcome::of_io("cannot read what it prints", &error),
    };
    // Who interrupts does not wait for it.
    if !cancel.is_cancelled() {
        let _ = timeout(GONE_WAIT, running.child.wait()).await;
    }
    result
}

enum Ended {
    Exited(ExitStatus),
    Late,
    Cancelled,
    Broken(std::io::Error),
}

fn exited(status: ExitStatus, output: String) -> Outcome {
    let end = match (status.code(), status.signal()) {
        (Some(0), _) => return Outcome::fine(output),
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    };
    let line = if output.is_empty() || output.ends_with('\n') { "" } else { "\n" };
    Outcome::failed(format!("{output}{line}[{end}]"))
}

/// Dropping it kills it.
struct Running {
    child: Child,
    group: Option<Pid>,
    mark: String,
    pipe: pipe::Receiver,
    output: Output,
    over: bool,
}

impl Running {
    fn start(command: &str, workplace: &Workplace) -> std::io::Result<Self> {
        // One pipe for both, so that what is printed stays in its order.
        let (sender, pipe) = pipe::pipe()?;
        let out = sender.into_blocking_fd()?;
        let errors = out.try_clone()?;
        let mark = new_id();
        let child = Command::new("/bin/sh")
            .arg("-c")
            .arg(command)
            .env_clear()
            .envs(workplace.environment.now())
            .env(MARK, &mark)
            .current_dir(&workplace.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::from(out))
            .stderr(Stdio::from(errors))
            .process_group(0)
            .spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Self { child, group, mark, pipe, output: Output::default(), over: false })
    }

    async fn follow(&mut self, until: Instant) -> Ended {
        let mut block = vec![0; 16 * 1024];
        let mut status = None;
        let mut until = until;
        loop {
            let read = tokio::select! {
                read = self.pipe.read(&mut block) => read,
                ended = self.child.wait(), if status.is_none() => {
                    match ended {
                        Ok(ended) => status = Some(ended),
                        Err(error) => return Ended::Broken(error),
                    }
                    until = until.min(Instant::now() + LEFTOVER_WAIT);
                    continue;
                }
                () = tokio::time::sleep_until(until) => return self.ended(status),
            };
            match read {
                Ok(0) if status.is_some() => return self.ended(status),
                // It closed its output and goes on.
                Ok(0) => {
                    let ended = tokio::time::timeout_at(until, self.child.wait()).await;
                    return self.ended(ended.ok().and_then(Result::ok));
                }
                Ok(count) => self.output.push(&block[..count]),
                Err(error) => return Ended::Broken(error),
            }
        }
    }

    fn ended(&mut self, status: Option<ExitStatus>) -> Ended {
        self.over = status.is_some();
        status.map_or(Ended::Late, Ended::Exited)
    }

    fn kill(&mut self) {
        self.over = true;
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        kill_marked(&self.mark);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.over {
            self.kill();
        }
    }
}

/// What carries the mark, whatever group it is in. Twice, because it may have forked meanwhile.
fn kill_marked(mark: &str) {
    let wanted = format!("{MARK}={mark}");
    for _ in 0..2 {
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(pid) = pid.and_then(Pid::from_raw) else { continue };
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes()) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}
