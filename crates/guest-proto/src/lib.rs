//! The protocol between host and guest, both ends as a library: the [`Guest`] client that the host
//! uses, and the wire forms that the guest speaks too.
//!
//! A guest speaks HTTP/1.1. Its main language is E2B's envd protocol (Connect with JSON, and plain
//! `/files`); what that lacks lives under [`PREFIX`]: commands that can be re-attached by offset,
//! tar export and import, log tails, flushing, and tunnels to ports.
//!
//! What a guest says is untrusted input: every length that it sends is checked against a limit
//! before anything is allocated, and nothing that it says is ever a reason to panic.
//!
//! This crate deliberately knows nothing of our other crates: the host turns a [`GuestError`] into
//! its own error, the guest turns a request into processes.

mod client;
pub mod code;
pub mod envelope;
mod error;
mod exec;
pub mod frame;
pub mod handover;
mod message;
pub mod pieces;
mod tree;

pub use client::{ByteStream, ExecFrames, FileDownload, Guest, Tunnel};
pub use error::GuestError;
pub use exec::{Commands, ExecEnd, ExecFrame, ExecStart, OutputStream};
pub use message::{Address, Health, Init, Tail, Tailed};
pub use tree::{TREE_ENTRIES_MAX, TreeEntry, TreeKind};

/// What every path of our extension begins with.
pub const PREFIX: &str = "/bastide/v1/";

/// The port inside a sandbox that means the guest itself; a tunnel to it never leaves the guest.
pub const GUEST_PORT: u16 = 49983;

/// How much output of one command is kept for readers that come back (ruling 18).
pub const RING_BYTES: usize = 1 << 20;

/// The longest body of a JSON request that a guest reads.
pub const JSON_BYTES_MAX: usize = 16 << 20;

/// The most that a tail answers, whatever was asked for (the logs rules of 000).
pub const TAIL_BYTES_MAX: usize = 1 << 20;

/// The most lines that a tail answers.
pub const TAIL_LINES_MAX: u32 = 10_000;

/// Header of `/health`: the version of the guest.
pub const HEADER_VERSION: &str = "bastide-guest";

/// Header of `/health`: what the launcher gave this incarnation to prove itself with.
pub const HEADER_NONCE: &str = "bastide-nonce";

/// Header of a tail: `true` when the answer is less than the file.
pub const HEADER_TRUNCATED: &str = "bastide-truncated";

/// Header of a tail: how long the file is.
pub const HEADER_TOTAL_BYTES: &str = "bastide-total-bytes";

/// What `Upgrade:` says in a request for a tunnel.
pub const TUNNEL_UPGRADE: &str = "bastide-tunnel";

/// What the agent daemon of the sandbox wants to see as its bearer token.
/// What the agent daemon logs, a file inside. For display only.
pub const AGENTS_LOG: &str = "/tmp/bastide-agents.log";
pub const HEADER_AGENTS_TOKEN: &str = "bastide-agents-token";
