//! The table of agents, in the order of the contract. One module each; the names of other programs'
//! messages appear nowhere else.

mod amp;
mod apply;
mod claude;
pub(crate) mod codex;
mod decoded;
mod deictic;
#[cfg(test)]
mod fuzz;
mod health;
pub(crate) mod launch;
mod mock;
mod opencode;
mod questions;
#[cfg(test)]
mod recordings;
mod servers;
mod turn;

use std::process::ExitCode;
use std::sync::Arc;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::adapter::Adapter;

/// Every agent that there is.
pub fn all() -> Vec<Arc<dyn Adapter>> {
    vec![
        Arc::new(claude::Claude),
        Arc::new(codex::Codex::default()),
        Arc::new(opencode::Opencode::default()),
        Arc::new(amp::Amp),
        Arc::new(mock::Mock),
        // Beyond the contract.
        Arc::new(deictic::Deictic),
    ]
}

/// Our own agent as a program of its own, with the arguments after its name.
pub fn deictic_main(arguments: impl Iterator<Item = String>) -> ExitCode {
    // Keys are in its environment, and commands that it runs are not to find them.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let all = std::env::vars_os();
    let text =
        all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    ::deictic::main(arguments, text.collect())
}
