//! The table of agents, in the order of the contract. One module each; the names of other programs'
//! messages appear nowhere else.

mod amp;
mod apply;
mod claude;
pub(crate) mod codex;
mod decoded;
#[cfg(test)]
mod fuzz;
mod health;
mod launch;
mod mock;
mod opencode;
mod questions;
#[cfg(test)]
mod recordings;
mod servers;

use std::sync::Arc;

use crate::adapter::Adapter;

/// Every agent that there is.
pub fn all() -> Vec<Arc<dyn Adapter>> {
    vec![
        Arc::new(claude::Claude),
        Arc::new(codex::Codex::default()),
        Arc::new(opencode::Opencode::default()),
        Arc::new(amp::Amp),
        Arc::new(mock::Mock),
    ]
}
