//! The use cases of Bastide: make, use, stop and end sandboxes. Knows no HTTP and no SQL.
//!
//! One task per sandbox owns its phase and publishes it with a generation number; calls that only
//! use a running sandbox (exec, files, tunnels) read what was published and speak to its guest
//! directly, so that they wait for nobody.

mod activity;
mod clock;
mod config;
mod engine;
mod events;
mod exec;
mod files;
mod view;

pub use activity::{Attachment, Notice};
pub use clock::Clock;
pub use config::{Ceiling, EngineConfig, Pool};
pub use engine::Engine;
pub use events::{EventStream, Told};
pub use exec::{Command, ExecEvent, ExecExit, ExecOutcome, ExecOutput, OutputStream};
pub use files::{ByteStream, Download, LogTail, Logs, Tunnel};
pub use store::{EventId, StoredEvent};
pub use view::{Caller, CancelReason, Cancelled, Created, Idempotency, Listing, Sandbox, Snapshot};
