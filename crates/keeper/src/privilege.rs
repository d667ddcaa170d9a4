//! What this process may do to the host: it is root of it, or root of a user namespace only.
//!
//! An ordinary user who starts `bastide run` or `bastide serve` becomes root of a user namespace
//! first (see `enter`), with mounts of its own. From there on the same code runs as for root; what
//! differs is said by [`Privilege`]:
//!
//! ```text
//!                     root of the host              root of a user namespace
//!  ids                65,536 of its own a sandbox   those of the namespace, the same for all
//!  on the disk        mapped at each mount          as they are: one canonical range
//!  limits             control groups                those that were delegated, else rlimits
//!  disk limit         btrfs, loop                   none
//!  steering           BPF                           transparent proxy by nftables
//! ```

use std::fmt::Write as _;
use std::fs;

use crate::egress::Steering;

mod enter;
mod report;
mod subids;

pub use enter::enter;
pub use report::{Weakness, weaknesses};

/// What the ids of this process are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// Root of the host.
    Host,
    /// Root of a user namespace that has the ids from 0 up to this many.
    Namespace { ids: u32 },
}

/// The ids that a template's files may belong to.
const CANONICAL: u32 = 65_536;
/// Without this many there is no account `user`, and one id has to do for everybody.
const USEFUL: u32 = 1_001;

impl Privilege {
    /// Of this process, as the kernel says it. Meaningful after `enter`.
    pub fn current() -> Self {
        Self::of_map(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default())
    }

    fn of_map(map: &str) -> Self {
        let mut ids = 0u32;
        for line in map.lines() {
            let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
            let (Some(Ok(inside)), Some(Ok(outside)), Some(Ok(count))) =
                (numbers.next(), numbers.next(), numbers.next())
            else {
                break;
            };
            if (inside, outside, count) == (0, 0, u32::MAX) {
                return Self::Host;
            }
            if inside != ids {
                break;
            }
            ids = ids.saturating_add(count);
        }
        Self::Namespace { ids: if ids < USEFUL { 1 } else { ids } }
    }

    /// Whether sandboxes have one id, 0, for every account.
    pub fn has_one_id(self) -> bool {
        self == Self::Namespace { ids: 1 }
    }

    /// What an id of a template is on the disk.
    pub fn on_disk(self, id: u32) -> u32 {
        if self.has_one_id() { 0 } else { id }
    }

    /// What brings connections of a sandbox to us.
    pub fn steering(self) -> Steering {
        match self {
            Self::Host => Steering::Bpf,
            Self::Namespace { .. } => Steering::Nftables,
        }
    }

    /// The id map of a sandbox whose range begins at `base`; `own` is this process's of the same kind.
    pub fn map_of_sandbox(self, base: u32, own: &str) -> String {
        match self {
            Self::Host => format!("0 {base} {CANONICAL}"),
            Self::Namespace { ids } => identity(own, ids.min(CANONICAL)),
        }
    }
}

/// Every id below `end` as itself. A line of a map must lie within one line of the map above it.
fn identity(own: &str, end: u32) -> String {
    let mut map = String::new();
    for line in own.lines() {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let (Some(Ok(inside)), Some(Ok(count))) = (numbers.next(), numbers.nth(1)) else {
            continue;
        };
        let count = count.min(end.saturating_sub(inside));
        if count > 0 {
            let _ = writeln!(map, "{inside} {inside} {count}");
        }
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_of_the_process_says_what_it_is() {
        #[track_caller]
        fn check(map: &str, expected: Privilege) {
            assert_eq!(Privilege::of_map(map), expected, "{map}");
        }
        check("         0          0 4294967295\n", Privilege::Host);
        check("0 1000 1\n", Privilege::Namespace { ids: 1 });
        check("0 1000 1\n1 100000 65536\n", Privilege::Namespace { ids: 65_537 });
        check("0 1000 1\n1 100000 500\n", Privilege::Namespace { ids: 1 });
        check("0 1000 1\n5 100000 65536\n", Privilege::Namespace { ids: 1 });
        check("", Privilege::Namespace { ids: 1 });
    }

    #[test]
    fn a_sandbox_of_one_id_has_no_other_on_the_disk() {
        let one = Privilege::Namespace { ids: 1 };
        assert_eq!((one.on_disk(1000), one.map_of_sandbox(7, "0 50 1\n")), (0, "0 0 1\n".into()));
        let many = Privilege::Namespace { ids: 70_001 };
        let own = "  0 50 1\n 1 100000 60000\n 60001 200000 10000\n";
        assert_eq!(many.on_disk(1000), 1000);
        assert_eq!(many.map_of_sandbox(7, own), "0 0 1\n1 1 60000\n60001 60001 5535\n");
        assert_eq!(Privilege::Host.map_of_sandbox(7, "0 0 4294967295"), "0 7 65536");
    }
}
