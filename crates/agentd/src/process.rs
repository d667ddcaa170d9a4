//! An agent's program: its lines or bytes, its standard error, and its end. It runs in a process group of its
//! own; ending it ends everything that it started, also what left the group, which is found by a
//! variable in its environment.

pub(crate) mod orphans;
mod stderr;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use self::orphans::Ours;
use self::stderr::Stderr;
use crate::host::Host;

/// A longer line of an agent is dropped.
const LINE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// How long an agent may take to read a line from us.
const WRITE_MAX: Duration = Duration::from_secs(30);

/// How long what is killed may take to be gone.
const KILL_MAX: Duration = Duration::from_secs(5);

/// The variable by which what an agent started is known.
pub(crate) const MARK: &str = "BASTIDE_AGENT_PROCESS";

/// What to start.
#[derive(Debug, Clone)]
pub struct Launch {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    /// Beside what the host lets through.
    pub env: BTreeMap<OsString, OsString>,
    pub directory: PathBuf,
}

/// A started program. Dropping it kills it and all that it started.
#[derive(Debug)]
pub struct AgentProcess {
    child: Child,
    ours: Ours,
    pid: Option<Pid>,
    mark: String,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// Of a line that has begun; here, so that a wait for it can be given up.
    partial: Vec<u8>,
    skipping: bool,
    /// `None` where it goes to a file.
    stderr: Option<Stderr>,
}

/// What comes of a program whose lines do not matter.
#[derive(Debug)]
pub(crate) enum Printed {
    Bytes(Vec<u8>),
    Exited(ExitStatus),
}

/// What a program printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// Without its end. What is not UTF-8 in it is replaced.
    Text(String),
    /// Longer than any line may be.
    TooLong,
}

impl AgentProcess {
    pub fn start(host: &Host, launch: &Launch) -> io::Result<Self> {
        Self::begin(host, launch, Stdio::piped())
    }

    /// With its standard error in a file.
    pub(crate) fn start_logged(host: &Host, launch: &Launch, log: File) -> io::Result<Self> {
        Self::begin(host, launch, Stdio::from(log))
    }

    fn begin(host: &Host, launch: &Launch, stderr: Stdio) -> io::Result<Self> {
        let mark = uuid::Uuid::new_v4().to_string();
        let mut command = Command::new(&launch.program);
        command
            .args(&launch.arguments)
            .env_clear()
            .envs(&host.environment)
            .envs(&launch.env)
            .env(MARK, &mark)
            .current_dir(&launch.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .process_group(0)
            .kill_on_drop(true);
        let (mut child, ours) = orphans::spawn(&mut command)?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("it is piped");
        let stderr = child.stderr.take();
        Ok(Self {
            child,
            ours,
            pid,
            mark,
            stdin,
            stdout: BufReader::with_capacity(64 * 1024, stdout),
            partial: Vec::new(),
            skipping: false,
            stderr: stderr.map(|pipe| Stderr::follow(pipe, &host.tasks)),
        })
    }

    /// The next line; `None` at the end. Nothing is lost if the wait is given up.
    pub async fn next_line(&mut self) -> io::Result<Option<Line>> {
        loop {
            let block = self.stdout.fill_buf().await?;
            if block.is_empty() {
                return Ok(self.take_line().filter(|line| *line != Line::Text(String::new())));
            }
            let end = block.iter().position(|byte| *byte == b'\n');
            let taken = end.unwrap_or(block.len());
            if !self.skipping {
                self.partial.extend_from_slice(&block[..taken]);
            }
            self.stdout.consume(taken + usize::from(end.is_some()));
            if self.partial.len() > LINE_BYTES_MAX {
                self.partial = Vec::new();
                self.skipping = true;
            }
            if end.is_some() {
                return Ok(self.take_line());
            }
        }
    }

    fn take_line(&mut self) -> Option<Line> {
        if std::mem::take(&mut self.skipping) {
            return Some(Line::TooLong);
        }
        let mut bytes = std::mem::take(&mut self.partial);
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        Some(Line::Text(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// The next that it printed, or its end, whichever comes first: what it started may go on printing.
    pub(crate) async fn next_printed(&mut self) -> io::Result<Printed> {
        tokio::select! {
            biased;
            block = self.stdout.fill_buf() => match block? {
                [] => {}
                block => {
                    let block = block.to_vec();
                    self.stdout.consume(block.len());
                    return Ok(Printed::Bytes(block));
                }
            },
            status = self.child.wait() => return Ok(Printed::Exited(status?)),
        }
        // It printed all that it will.
        Ok(Printed::Exited(self.child.wait().await?))
    }

    /// The next block that anybody printed; `None` at the end.
    pub(crate) async fn next_block(&mut self) -> io::Result<Option<Vec<u8>>> {
        let block = self.stdout.fill_buf().await?.to_vec();
        self.stdout.consume(block.len());
        Ok(Some(block).filter(|block| !block.is_empty()))
    }

    /// Gives it all that it will read. It may read as slowly as it likes.
    pub(crate) fn feed(&mut self, input: Vec<u8>, tasks: &TaskTracker) {
        let Some(mut stdin) = self.stdin.take() else { return };
        tasks.spawn(async move {
            // One that does not read ends it.
            let _ = stdin.write_all(&input).await;
        });
    }

    /// Writes a line to its standard input.
    pub async fn write_line(&mut self, line: &str) -> io::Result<()> {
        let stdin = self.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut text = Vec::with_capacity(line.len() + 1);
        text.extend_from_slice(line.as_bytes());
        text.push(b'\n');
        let write = async {
            stdin.write_all(&text).await?;
            stdin.flush().await
        };
        timeout(WRITE_MAX, write).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// The last of what it printed on standard error.
    pub fn stderr(&self) -> String {
        self.stderr.as_ref().map(Stderr::text).unwrap_or_default()
    }

    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// For the program alone; what it started is told by it.
    pub fn signal(&self, signal: Signal) {
        // It is not reaped yet, so that the number is still its own.
        if self.child.id().is_some()
            && let Some(pid) = self.pid
        {
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for the program itself; bound it.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Kills it and everything that it started, and waits until they are gone.
    pub async fn kill(&mut self) {
        let strays = self.kill_now();
        let (child, mark) = (&mut self.child, &self.mark);
        let gone = async {
            let _ = child.wait().await;
            while strays.iter().any(|pid| tree::is_alive(*pid)) || kill_marked(mark) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if timeout(KILL_MAX, gone).await.is_err() {
            tracing::warn!("processes of an agent are still there after being killed: {mark}");
        }
    }

    fn kill_now(&self) -> Vec<Pid> {
        let Some(pid) = self.pid else { return Vec::new() };
        let mut strays = Vec::new();
        if self.child.id().is_some() {
            strays = tree::descendants(pid);
            let _ = kill_process_group(pid, Signal::KILL);
        }
        for stray in &strays {
            let _ = kill_process(*stray, Signal::KILL);
        }
        kill_marked(&self.mark);
        orphans::kill_if_last(self.ours.id());
        strays
    }
}

fn kill_marked(mark: &str) -> usize {
    let marked = tree::marked(mark);
    for pid in &marked {
        let _ = kill_process(*pid, Signal::KILL);
    }
    marked.len()
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.kill_now();
    }
}
