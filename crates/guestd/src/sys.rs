//! The only unsafe code of the guest: making a child the vfork way, promises about descriptors, and
//! options of the allocator. Everything else goes through rustix.

mod adopt;
mod clone;
mod memory;
mod spawn;
mod watched;

pub use self::adopt::adopt_fd;
#[cfg(target_env = "gnu")]
pub use self::memory::keep_memory_small;
pub(crate) use self::spawn::{
    Child, ChildCgroup, Credentials, SpawnError, Step, get_ready_to_spawn, spawn,
};
pub(crate) use self::watched::watched;
