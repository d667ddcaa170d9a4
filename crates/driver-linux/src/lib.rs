//! Sandboxes on one Linux host: namespaces, control groups, an idmapped overlay, a disk pool and
//! egress without a network device. This is the server's half: disks, specs, adoption, collection
//! ([`LinuxDriver`]), templates and what egress serves. What outlives the server is [`keeper`].

pub mod doctor;
pub mod egress;
pub mod template;

mod guest_binary;
mod linux;
mod lock_file;
mod oneshot;
mod pool;
mod sys;
mod usage;

pub use keeper::privilege::{Privilege, Weakness, enter, weaknesses};
pub use linux::{Fence, ImageSettings, LinuxConfig, LinuxDriver, LinuxView, make_data_dir};
pub use oneshot::{OneShot, OneShotConfig};
pub use pool::{DiskConfig, DiskKind};

use keeper::{cgroup, incarnation, launcher, plan, privilege, run_record};
