//! A blocking command: it ends with its client (ruling 18).

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use guest_proto::{ExecEnd, ExecFrame, ExecFrames, ExecStart, GuestError, OutputStream as Wire};
use model::{Error, ExecId, Result, SandboxRef};

use crate::guest::{Life, Running, ended, failed};
use crate::{Caller, Engine};

/// The most output that a blocking exec answers.
const OUTPUT_MAX: usize = 8 << 20;
/// The most standard input; it travels in one message.
const STDIN_MAX: usize = 8 << 20;

/// How long past its timeout a command is waited for.
const TIMEOUT_GRACE: Duration = Duration::from_secs(10);

/// A command to run inside.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Command {
    pub argv: Vec<String>,
    /// The template's working directory when absent.
    pub cwd: Option<String>,
    /// Added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// The template's user when absent.
    pub user: Option<String>,
    pub stdin: Option<Vec<u8>>,
    pub timeout: Option<Duration>,
}

/// The answer of a blocking exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutcome {
    /// Both streams, interleaved as they came.
    pub output: Bytes,
    pub stdout: Bytes,
    pub stderr: Bytes,
    pub exit_code: i32,
    pub duration_ms: u64,
    pub timed_out: bool,
    /// More than 8 MiB came; what is here is the beginning.
    pub truncated: bool,
}

impl Command {
    /// What 000's `command` string means.
    pub fn shell(text: impl Into<String>) -> Self {
        let argv = vec!["/bin/sh".into(), "-c".into(), text.into()];
        Self { argv, ..Self::default() }
    }

    pub(crate) fn into_start(self, id: &ExecId, detached: bool) -> Result<ExecStart> {
        if self.argv.first().is_none_or(String::is_empty) {
            return Err(Error::invalid("command", "must not be empty"));
        }
        if self.argv.iter().any(|argument| argument.contains('\0')) {
            return Err(Error::invalid("command", "must not contain a NUL byte"));
        }
        if self.stdin.as_ref().is_some_and(|stdin| stdin.len() > STDIN_MAX) {
            return Err(Error::invalid("stdin", format!("at most {STDIN_MAX} bytes")));
        }
        model::reserved::check_env("env", &self.env)?;
        let timeout_ms = self.timeout.map(|t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX));
        Ok(ExecStart {
            id: id.as_str().to_owned(),
            argv: self.argv,
            cwd: self.cwd,
            env: self.env,
            user: self.user,
            stdin: self.stdin,
            timeout_ms,
            detached,
        })
    }
}

impl Engine {
    /// Runs a command to its end. Dropping the future kills everything it started.
    pub async fn exec(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        command: Command,
    ) -> Result<ExecOutcome> {
        let start = command.into_start(&ExecId::generate(), false)?;
        let Running { guest, life, guard, cell: _cell } = self.core.use_guest(caller, sandbox)?;
        self.core.counters.count(&self.core.counters.execs);
        let mut life = life;
        let begun = match without_shell(&start) {
            // What a shell would have said to a program that does not start, the shell says.
            Some(direct) => match guest.exec(&direct).await {
                Ok(frames) => Ok(frames),
                Err(_) => guest.exec(&start).await,
            },
            None => guest.exec(&start).await,
        };
        let outcome = match begun {
            Ok(frames) => within(start.timeout_ms, collect(frames, &mut life)).await,
            Err(error) => Err(command_failed(error, &mut life).await),
        };
        drop(guard);
        outcome
    }
}

/// The same command without the shell, where the shell would only run a program by its path: no
/// expansion, no quoting, no variable, no builtin. It saves starting one program to start another.
fn without_shell(start: &ExecStart) -> Option<ExecStart> {
    let [shell, flag, text] = start.argv.as_slice() else { return None };
    let plain = |c: u8| c.is_ascii_alphanumeric() || b" /._-+,:@%".contains(&c);
    let is_simple = text.starts_with('/') && text.bytes().all(plain);
    if shell != "/bin/sh" || flag != "-c" || !is_simple {
        return None;
    }
    let argv = text.split_ascii_whitespace().map(str::to_owned).collect();
    Some(ExecStart { argv, ..start.clone() })
}

/// The guest keeps the time; this is for one that does not.
async fn within(
    timeout_ms: Option<u64>,
    work: impl Future<Output = Result<ExecOutcome>>,
) -> Result<ExecOutcome> {
    let Some(timeout_ms) = timeout_ms else { return work.await };
    let limit = Duration::from_millis(timeout_ms).saturating_add(TIMEOUT_GRACE);
    let late = || Error::unavailable("the sandbox did not end the command in time");
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(late()))
}

/// Why a command could not be run.
pub(crate) async fn command_failed(error: GuestError, life: &mut Life) -> Error {
    if matches!(error, GuestError::NotFound) {
        return Error::invalid("command", "no such program or directory");
    }
    if let GuestError::Invalid(detail) | GuestError::Denied(detail) = &error
        && let Some(wrong) = detail.strip_prefix("cwd ")
    {
        return Error::invalid("cwd", wrong);
    }
    failed(error, life, ("command", "command", "of that id")).await
}

async fn collect(mut frames: ExecFrames, life: &mut Life) -> Result<ExecOutcome> {
    let mut kept = Kept::default();
    loop {
        let frame = tokio::select! {
            biased;
            frame = frames.next() => frame,
            reason = life.end() => return Err(ended(reason)),
        };
        match frame {
            Some(Ok(ExecFrame::Output { stream, bytes, .. })) => kept.add(stream, &bytes),
            Some(Ok(ExecFrame::End(end))) => return Ok(kept.finish(&end)),
            Some(Ok(ExecFrame::Gap { .. })) => kept.truncated = true,
            Some(Ok(ExecFrame::Keepalive)) => {}
            Some(Err(error)) => return Err(command_failed(error, life).await),
            None => return Err(Error::unavailable("the sandbox did not say how it ended")),
        }
    }
}

#[derive(Default)]
struct Kept {
    output: BytesMut,
    stdout: BytesMut,
    stderr: BytesMut,
    truncated: bool,
}

impl Kept {
    fn add(&mut self, stream: Wire, bytes: &[u8]) {
        let room = OUTPUT_MAX - self.output.len();
        self.truncated |= bytes.len() > room;
        let bytes = &bytes[..bytes.len().min(room)];
        self.output.extend_from_slice(bytes);
        match stream {
            Wire::Stdout => self.stdout.extend_from_slice(bytes),
            Wire::Stderr => self.stderr.extend_from_slice(bytes),
        }
    }

    fn finish(self, end: &ExecEnd) -> ExecOutcome {
        ExecOutcome {
            output: self.output.freeze(),
            stdout: self.stdout.freeze(),
            stderr: self.stderr.freeze(),
            exit_code: end.exit_code,
            duration_ms: end.duration_ms,
            timed_out: end.timed_out,
            truncated: self.truncated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, direct: Option<&[&str]>) {
        let start = Command::shell(text).into_start(&ExecId::generate(), false).unwrap();
        let argv = without_shell(&start).map(|start| start.argv);
        assert_eq!(argv, direct.map(|words| words.iter().map(|w| (*w).to_owned()).collect()));
    }

    #[test]
    fn only_a_program_by_its_path_with_plain_words_needs_no_shell() {
        check("/bin/true", Some(&["/bin/true"]));
        check("/bin/ls -l  /workspace ", Some(&["/bin/ls", "-l", "/workspace"]));
        for shell in [
            "true",
            "cd /tmp",
            "/bin/echo $HOME",
            "/bin/a; /bin/b",
            "/bin/echo 'a b'",
            "/bin/echo *",
            "/bin/a && /bin/b",
            "A=b /bin/env",
            "/bin/a\n/bin/b",
            "/bin/echo ~",
        ] {
            check(shell, None);
        }
    }
}
