//! The daemon as its clients see it: over HTTP, on a loopback port.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod connections;
mod daemon;
mod deictic;
mod golden;
mod hosted;
mod openapi;
mod programs;
mod sessions;
