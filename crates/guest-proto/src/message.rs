//! The small values of the protocol.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where a guest listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// On this machine; who may open the socket may speak.
    Unix(PathBuf),
    /// Elsewhere; the token is what `POST /init` told the guest.
    Tcp { addr: SocketAddr, token: String },
}

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    pub version: String,
    pub nonce: String,
}

/// What `POST /init` sets. What is absent stays as it was.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Init {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_workdir: Option<String>,
    /// From now on every request must carry it. Cannot be changed without naming the old one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_token: Option<String>,
    /// RFC 3339; an older one than the last is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
}

/// How much of the end of a file to answer. Both are clamped to their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    Lines(u32),
    Bytes(u64),
}

/// The end of a file. A file that does not exist is an empty one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tailed {
    /// Begins at the beginning of a line; bytes that are not UTF-8 are replaced.
    pub content: String,
    /// There is more in the file than in `content`.
    pub truncated: bool,
    pub total_bytes: u64,
}
