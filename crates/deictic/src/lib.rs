//! `deictic`, our own coding agent: a loop that asks a model and makes the calls that it wants, until it wants
//! none.
//!
//! Read `turn.rs` for the loop, `model.rs` for the models, `tools.rs` for what it can do, `crew.rs` for
//! several agents, and `protocol.rs` for what it says on its standard output. It knows nothing of sandboxes
//! and of the daemon that starts it, reads no environment of its own accord, and keeps nothing but
//! transcripts.

mod alone;
mod app;
mod command;
mod context;
mod crew;
mod desk;
mod fault;
mod history;
mod limits;
mod mcp;
mod meter;
mod model;
mod prompt;
pub mod protocol;
mod session;
mod stdio;
mod toolbox;
mod tools;
mod transcript;
mod turn;
mod variables;
mod voice;

pub use self::alone::run as run_alone;
pub use self::command::main;
pub use self::limits::Limits;
pub use self::model::{Environment, Vendor};
pub use self::session::Surroundings;
pub use self::stdio::serve as serve_stdio;
