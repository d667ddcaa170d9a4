//! Running commands: `POST …/exec`, `POST …/exec/stream`, `GET …/exec/{exec_id}` (000, ruling 18).

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::reserved::check_env;
use model::{EndReason, Error};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::files::check_path;

/// One argument of a program is at most this long on Linux.
const COMMAND_BYTES_MAX: usize = 128 * 1024 - 1;
/// A day: the longest that a command may ask for.
const TIMEOUT_SECONDS_MAX: u64 = 24 * 3600;

/// A command for the sandbox's shell.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "command": "echo hello && ls /workspace" }))]
pub struct ExecRequest {
    /// Required: given to `/bin/sh -c`.
    #[schema(required, value_type = String)]
    pub command: Option<String>,
    /// Where it runs, absolute. Default: the template's working directory.
    pub cwd: Option<String>,
    /// Added to the sandbox's environment.
    pub env: Option<BTreeMap<String, String>>,
    /// What the command reads; without it, nothing.
    pub stdin: Option<String>,
    /// The command and everything it started are killed after this long; 1 to 86400.
    #[schema(minimum = 1, maximum = 86400)]
    pub timeout_seconds: Option<u64>,
    /// The account it runs as. Default: the template's user.
    pub user: Option<String>,
}

/// A command that passed every check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedExec {
    pub command: String,
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub stdin: Option<Vec<u8>>,
    pub timeout: Option<Duration>,
    pub user: Option<String>,
}

/// A command that ended; a non-zero `exit_code` is still status 200.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "output": "hello\ntotal 0\n",
    "stdout": "hello\ntotal 0\n",
    "stderr": "",
    "exit_code": 0,
    "duration_ms": 3,
    "truncated": false,
    "timed_out": false
}))]
pub struct ExecResponse {
    /// Both streams, interleaved as they came.
    pub output: String,
    pub stdout: String,
    pub stderr: String,
    /// 128 + n for a command that was ended by signal n.
    pub exit_code: i32,
    pub duration_ms: u64,
    /// There was more output than 8 MiB; what is here is its beginning.
    pub truncated: bool,
    /// It was killed because `timeout_seconds` had passed.
    pub timed_out: bool,
}

/// The first event of `exec/stream`: `event: started`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecStarted {
    pub exec_id: String,
}

/// `event: output`. Its `id` is the offset of the next byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecOutput {
    pub stream: OutputStream,
    /// Of its first byte, in both streams together.
    pub offset: u64,
    /// The output, when these bytes are UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The output, when they are not (or a character is cut in two).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// `event: gap`: what came before `offset` is no longer kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecGap {
    pub offset: u64,
}

/// `event: exit`: the last one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecExit {
    pub exit_code: i32,
    pub timed_out: bool,
    pub duration_ms: u64,
    pub total_bytes: u64,
}

/// `event: error`: the last one, when the sandbox ended before the command did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecLost {
    /// Why the sandbox ended: `idle`, `oom`, `exited`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub reason: Option<EndReason>,
    pub detail: String,
}

impl ExecRequest {
    pub fn check(self) -> Result<CheckedExec, Error> {
        let Some(command) = self.command.filter(|command| !command.trim().is_empty()) else {
            return Err(Error::invalid("command", "required: the command to run, not empty"));
        };
        if command.len() > COMMAND_BYTES_MAX || command.contains('\0') {
            let detail = format!(
                "at most {COMMAND_BYTES_MAX} bytes and no NUL byte; upload a script instead"
            );
            return Err(Error::invalid("command", detail));
        }
        if let Some(cwd) = &self.cwd {
            check_path("cwd", cwd)?;
        }
        let env = self.env.unwrap_or_default();
        check_env("env", &env)?;
        let timeout = match self.timeout_seconds {
            Some(seconds) if !(1..=TIMEOUT_SECONDS_MAX).contains(&seconds) => {
                let detail = format!("must be 1 to {TIMEOUT_SECONDS_MAX}");
                return Err(Error::invalid("timeout_seconds", detail));
            }
            seconds => seconds.map(Duration::from_secs),
        };
        if let Some(user) = &self.user {
            check_user(user)?;
        }
        let stdin = self.stdin.map(String::into_bytes);
        Ok(CheckedExec { command, cwd: self.cwd, env, stdin, timeout, user: self.user })
    }
}

impl ExecOutput {
    pub fn new(stream: OutputStream, offset: u64, bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { stream, offset, data: Some(text.to_owned()), data_base64: None },
            Err(_) => {
                Self { stream, offset, data: None, data_base64: Some(STANDARD.encode(bytes)) }
            }
        }
    }
}

fn check_user(user: &str) -> Result<(), Error> {
    let good = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-' | b'.');
    if user.is_empty() || user.len() > 32 || !user.bytes().all(good) || user.starts_with('-') {
        return Err(Error::invalid("user", format!("not the name of an account: {user:?}")));
    }
    Ok(())
}
