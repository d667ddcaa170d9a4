//! The agent daemon: one HTTP API in front of every coding agent, for one machine or one sandbox.
//!
//! Read `adapter.rs` for what an agent is, `recorder.rs` for where its events go, and `agents/` for
//! the programs that are known.

pub mod adapter;
pub mod agents;
pub mod api;
pub mod conversion;
mod daemon;
pub mod error;
pub mod host;
mod http;
pub mod install;
mod log;
mod openapi;
pub mod process;
pub mod recorder;
mod secrets;
mod sequencer;
mod serve;
mod session;
mod task;

pub use self::adapter::{Adapter, AgentSession};
pub use self::agents::deictic_main;
pub use self::conversion::{Conversion, Item, Raw};
pub use self::error::{Error, Result};
pub use self::host::Host;
pub use self::http::{Cors, Token};
pub use self::openapi::openapi;
pub use self::recorder::Recorder;
pub use self::secrets::{Change, Secrets};
pub use self::serve::{Config, serve};
pub use self::task::TaskPlace;
