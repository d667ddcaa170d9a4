//! Sandboxes on one Linux host: namespaces, control groups, an idmapped overlay, a disk pool and
//! egress without a network device. The only `unsafe` code of the host side is in its `sys` files.
//!
//! - [`LinuxDriver`] is the server's half: disks, specs, adoption, collection.
//! - [`keeper`] is a process of its own that outlives the server; it forks a `launcher` for each
//!   launch.

pub mod doctor;
pub mod egress;
pub mod keeper;
pub mod template;

mod cgroup;
mod guest_binary;
mod incarnation;
mod launcher;
mod linux;
mod lock_file;
mod oneshot;
mod plan;
mod pool;
mod privilege;
mod run_record;
mod seccomp;
mod sys;

pub use linux::{Fence, ImageSettings, LinuxConfig, LinuxDriver, LinuxView};
pub use oneshot::{OneShot, OneShotConfig};
pub use pool::{DiskConfig, DiskKind};
pub use privilege::{Privilege, Weakness, enter, weaknesses};
