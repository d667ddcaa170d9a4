//! A tool server that is a program: it speaks on its standard input and output, has a process group of its own,
//! and ends with the session.

use std::collections::BTreeMap;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::tools::Workplace;

/// Dropping it kills it and what it started.
#[derive(Debug)]
pub(super) struct Program {
    child: Child,
}

impl Program {
    pub(super) fn start(
        command: &[String],
        env: &BTreeMap<String, String>,
        workplace: &Workplace,
    ) -> Result<(Self, (ChildStdout, ChildStdin)), String> {
        let (program, arguments) = command.split_first().ok_or("command: it is empty")?;
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(workplace.environment.now())
            .envs(env)
            .current_dir(&workplace.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start {program}: {error}"))?;
        let pipes = child.stdout.take().zip(child.stdin.take()).ok_or("it has no pipes")?;
        Ok((Self { child }, pipes))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It is not reaped yet, so that the number is still its own.
        let group = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
