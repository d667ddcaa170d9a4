//! The only unsafe code of the guest: making a child the vfork way, and promises about
//! descriptors. Everything else goes through rustix.

mod adopt;
mod spawn;
mod watched;

pub use self::adopt::adopt_fd;
pub(crate) use self::spawn::{Child, Credentials, SpawnError, Step, spawn};
pub(crate) use self::watched::watched;
