//! The front door: HTTP in front of the engine.
//!
//! Settings, authentication, routes, the `OpenAPI` document that follows from them, metrics, logs and
//! the graceful end. Only this crate knows HTTP status codes; it decides nothing about sandboxes.

mod accounts;
mod app;
mod audit;
mod auth;
mod body;
mod code;
pub mod config;
mod database;
mod docs;
mod forward;
mod front;
mod https;
mod lease;
mod limits;
mod listen;
pub mod log;
mod metrics;
mod money;
mod oneshot;
mod openapi;
mod operator;
mod order;
mod persistence;
mod preview;
mod rate;
mod refusal;
mod relay;
mod retention;
mod roster;
mod routes;
mod sessions;
mod signing_key;
mod sizes;
mod sse;
mod stripe;
mod target;
mod tls;
mod turns;
mod upstream;

pub use config::Config;
pub use database::open_store;
pub use lease::{Lease, Lock};
pub use listen::{Server, bind, bind_rt, serve, signalled};
pub use openapi::document;
pub use operator::{OPERATOR_KEY_FILE, ensure_operator_key};
pub use persistence::contract as persistence_contract;
pub use roster::{ServerEntry, servers};
