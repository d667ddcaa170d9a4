//! The agent as those who start it see it: lines in, lines out, with a model of our own on loopback that
//! speaks the four vendors' formats and checks what it is sent.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod alone;
mod context;
mod crew;
mod faults;
mod mcp;
mod model;
mod permissions;
mod resume;
mod talk;
mod vendors;
mod work;
