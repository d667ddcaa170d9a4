//! Settings of the pool.

use crate::privilege::Privilege;

/// Which kind of pool to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DiskKind {
    /// The first of these that this host can have.
    #[default]
    Auto,
    Btrfs,
    Image,
    Plain,
}

/// Settings of the pool.
#[derive(Debug, Clone, Copy)]
pub struct DiskConfig {
    pub kind: DiskKind,
    /// Size of the loop file, which is sparse; four fifths of the free space when absent.
    pub pool_gb: Option<u64>,
    /// What the host keeps free: below that nothing is created, and where the pool can see to it nobody
    /// inside gets more room.
    pub reserve_bytes: u64,
    /// How fast each sandbox may read and write. `None` is as fast as the disk.
    pub bytes_per_second: Option<u64>,
    /// How often.
    pub operations_per_second: Option<u64>,
}

impl Default for DiskConfig {
    fn default() -> Self {
        Self {
            kind: DiskKind::Auto,
            pool_gb: None,
            reserve_bytes: 1 << 30,
            bytes_per_second: None,
            operations_per_second: None,
        }
    }
}

impl DiskConfig {
    /// Loop devices and the mounts of block devices are the host's.
    pub(crate) fn allowed(self, privilege: Privilege) -> Self {
        match privilege {
            Privilege::Host => self,
            Privilege::Namespace { .. } => Self { kind: DiskKind::Plain, ..self },
        }
    }
}
