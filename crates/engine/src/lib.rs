//! The use cases of Bastide: make, use, stop and end sandboxes. Knows no HTTP and no SQL.
//!
//! One task per sandbox (`machine`) owns its phase and publishes it with a generation number;
//! calls that only use a running sandbox (exec, files, tunnels) read what was published and speak
//! to its guest directly, so that they wait for nobody.
//!
//! What is kept where: what exists is asked of the drivers, what must be unique or remembered is in
//! the store, and `registry` is an index of both that is built anew at every start (`adopt`).

mod activity;
mod adopt;
mod agents;
mod clock;
mod config;
mod core;
mod create;
mod engine;
mod errand;
mod events;
mod exec;
mod exec_stream;
mod files;
mod follow;
mod guest;
mod machine;
mod meter;
mod orphans;
mod owed;
mod pool;
mod registry;
mod resolve;
mod sweep;
mod view;
mod workspace;

pub use activity::{Attachment, Notice};
pub use agents::{AgentStatus, FoundAgents};
pub use clock::Clock;
pub use config::{Ceiling, EngineConfig, Pool};
pub use driver::RelayConnection;
pub use engine::Engine;
pub use errand::{Errand, Server};
pub use events::{EventStream, Told};
pub use exec::{Command, ExecOutcome};
pub use exec_stream::{ExecEvent, ExecExit, ExecOutput, OutputStream};
pub use files::{AGENT_LOG, ByteStream, Download, LogTail, Logs, Tunnel};
pub use follow::Followed;
pub use meter::Credit;
pub use store::{EventId, StoredEvent};
pub use view::{Caller, CancelReason, Cancelled, Created, Idempotency, Listing, Sandbox, Snapshot};
