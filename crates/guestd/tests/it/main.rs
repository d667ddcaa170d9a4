//! The guest over a real Unix socket, with real processes, as the user of the test.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod archives;
mod attack_archives;
mod commands;
mod filesystem;
mod guest;
mod late;
mod pid_one;
mod processes;
mod tails_and_tunnels;
mod transfers;
mod watching;
mod whole_files;
mod wire;
