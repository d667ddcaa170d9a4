//! What running costs. Amounts are whole cents; what is less than one is kept in millionths of a cent until
//! it is.

use serde::{Deserialize, Serialize};

/// In one cent.
pub const MICROCENTS: i64 = 1_000_000;

/// In millionths of a cent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prices {
    /// Of processor time that was used.
    pub cpu_second: u32,
    /// Of a sandbox with compute, whatever it does.
    pub sandbox_second: u32,
    /// Of memory that it may use.
    pub memory_gib_second: u32,
    /// Of disk that it may use.
    pub disk_gib_second: u32,
}

/// A stretch of running that was not counted before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stretch {
    pub running_usec: u64,
    pub cpu_usec: u64,
    pub memory_mib: u64,
    pub disk_gb: u64,
}

impl Prices {
    /// In millionths of a cent, rounded down.
    pub fn of(&self, stretch: Stretch) -> i64 {
        let Stretch { running_usec, cpu_usec, memory_mib, disk_gb } = stretch;
        let running = u128::from(running_usec);
        let by_second = u128::from(cpu_usec) * u128::from(self.cpu_second)
            + running * u128::from(self.sandbox_second)
            + running * u128::from(disk_gb) * u128::from(self.disk_gib_second);
        let by_memory = running * u128::from(memory_mib) * u128::from(self.memory_gib_second);
        let total = (by_second + by_memory / 1024) / 1_000_000;
        i64::try_from(total).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_its_price() {
        let prices = Prices {
            cpu_second: 1,
            sandbox_second: 10,
            memory_gib_second: 100,
            disk_gib_second: 1000,
        };
        let hour = Stretch { running_usec: 3_600_000_000, ..Stretch::default() };
        assert_eq!(prices.of(Stretch::default()), 0);
        assert_eq!(prices.of(hour), 36_000);
        assert_eq!(prices.of(Stretch { cpu_usec: 1_800_000_000, ..hour }), 36_000 + 1_800);
        assert_eq!(prices.of(Stretch { memory_mib: 512, ..hour }), 36_000 + 180_000);
        assert_eq!(prices.of(Stretch { disk_gb: 5, ..hour }), 36_000 + 18_000_000);
        assert_eq!(prices.of(Stretch { running_usec: 999_999, ..Stretch::default() }), 9);
    }

    #[test]
    fn nothing_overflows() {
        let dear = Prices {
            cpu_second: u32::MAX,
            sandbox_second: u32::MAX,
            memory_gib_second: u32::MAX,
            disk_gib_second: u32::MAX,
        };
        let all = u64::MAX / 4;
        let stretch =
            Stretch { running_usec: all, cpu_usec: all, memory_mib: 1 << 20, disk_gb: 1 << 20 };
        assert!(dear.of(stretch) > 0);
    }
}
