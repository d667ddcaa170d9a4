//! The command line from outside: its help texts as a contract, and the binary itself, alone and
//! with a real server.

#[cfg(test)]
mod agents;
#[cfg(test)]
#[path = "../../../store/tests/it/cluster.rs"]
mod cluster;
#[cfg(test)]
mod help;
#[cfg(test)]
#[path = "../../../xtask/src/demo/instance.rs"]
mod instance;
#[cfg(test)]
#[path = "../../../agentd/tests/it/programs/model.rs"]
mod model;
#[cfg(test)]
mod needs_root;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod usage;

// For the scripted model, whose file is another crate's.
#[cfg(test)]
use axum as _;
