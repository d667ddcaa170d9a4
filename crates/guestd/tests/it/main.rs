//! The guest over a real Unix socket, with real processes, as the user of the test.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod commands;
mod guest;
