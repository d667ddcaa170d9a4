//! A command: what starts it, and what comes back.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What to run. `argv[0]` is looked up in the command's `PATH` unless it has a slash.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExecStart {
    /// Made by the host, 1 to 64 of `[A-Za-z0-9_-]`; unique among the commands the guest remembers.
    pub id: String,
    pub argv: Vec<String>,
    /// The sandbox's working directory when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Added to the sandbox's environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The sandbox's user when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// All of the standard input; it is empty when absent.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "base64_bytes")]
    pub stdin: Option<Vec<u8>>,
    /// The whole tree is killed when this has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Not detached: the whole tree is killed when the connection that started it closes.
    #[serde(default)]
    pub detached: bool,
}

/// What a guest is asked for at a restart of the host's server: commands that run without a connection, and
/// whether its agent daemon runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Commands {
    pub detached: Vec<String>,
    /// An older guest does not say; then a turn that runs keeps its sandbox in use no longer.
    #[serde(default)]
    pub agents: bool,
}

/// Where a piece of output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// One thing that happened to a command. Offsets count the bytes of both streams together, in the
/// order in which they came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecFrame {
    Output {
        stream: OutputStream,
        /// Of the first of `bytes`.
        offset: u64,
        bytes: Bytes,
    },
    /// The reader was too late: what came before `offset` is not kept any more.
    Gap { offset: u64 },
    /// Nothing happened for a while; the command still runs.
    Keepalive,
    /// The last frame.
    End(ExecEnd),
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    /// 128 + n when signal n ended it.
    pub exit_code: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    #[serde(default)]
    pub timed_out: bool,
    #[serde(default)]
    pub duration_ms: u64,
    /// Of both streams together, whether kept or not.
    #[serde(default)]
    pub total_bytes: u64,
}

/// Bytes as base64, because JSON has no bytes.
mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.as_ref().map(|bytes| STANDARD.encode(bytes)).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        STANDARD.decode(text).map(Some).map_err(serde::de::Error::custom)
    }
}
