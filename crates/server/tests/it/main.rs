//! The contract, row by row, against a running server: real TCP on a free port, the engine on the
//! in-memory driver, a real database in a directory of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot unwrap fails")]

#[path = "../../../store/tests/it/again.rs"]
mod again;
mod agents;
mod auth;
mod billing;
mod catalogue;
mod client;
#[path = "../../../store/tests/it/cluster.rs"]
mod cluster;
mod code;
mod commands;
mod contract;
mod create;
mod deadlines;
mod events;
mod files;
mod front;
mod harness;
mod idempotency;
mod journal;
mod keys;
mod lifecycle;
mod logs;
mod mail;
mod oidc;
mod on_postgres;
mod oneshot;
mod openapi;
mod organisations;
mod persistence;
mod pools;
mod ports;
mod quotas;
mod relay;
mod secrets;
mod session_log;
mod session_socket;
mod sessions;
mod sign_in;
mod sql;
mod stripe;
mod talk;
mod tenancy;
mod tls;
mod tunnel;
mod turns;
mod usage;
mod vendor;
mod wire;
mod workspaces;
