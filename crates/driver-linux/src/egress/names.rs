//! The names that a sandbox has asked for, and the addresses of 198.18.0.0/15 that stand for them.
//!
//! An address is a function of the name (and of collisions), so that a program which keeps one over
//! a restart of the server still reaches the same host: names that a policy spells out are entered
//! again at once, others when they are next asked for. An address that stands for nothing is
//! refused, it never falls back to anything.
//!
//! Bounded: when a sandbox has asked for [`NAMES_MAX`] names, the one that was used least recently
//! loses its address. An open connection keeps its name regardless.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;

use model::agent::RELAY;
use model::{Policy, Target};

use keeper::egress::NAMES_BASE;

/// Names that one sandbox may have at a time; thirty-two times fewer than addresses.
pub(super) const NAMES_MAX: usize = 4096;

/// 198.18.0.1 to 198.19.255.254.
const ADDRESSES: u32 = (1 << 17) - 2;

#[derive(Debug, Default)]
pub(super) struct Names {
    by_name: HashMap<Arc<str>, Entry>,
    by_address: HashMap<u32, Arc<str>>,
    /// When each address was last used, oldest first. The clock only counts uses.
    by_use: BTreeMap<u64, u32>,
    clock: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    address: u32,
    used: u64,
}

impl Names {
    /// Whether an address is one that could stand for a name.
    pub(super) fn covers(address: Ipv4Addr) -> bool {
        u32::from(address) & !((1 << 17) - 1) == u32::from(NAMES_BASE)
    }

    /// Enters the names that the policy spells out, so that their addresses stand from the start.
    pub(super) fn enter(&mut self, policy: &Policy) {
        for rule in policy.rules.iter().take(NAMES_MAX / 2) {
            if let Target::Host(host) = &rule.to {
                self.address(host);
            }
        }
    }

    /// The address that stands for `name`, which is lower case and without a final dot.
    pub(super) fn address(&mut self, name: &str) -> Ipv4Addr {
        if let Some(entry) = self.by_name.get(name).copied() {
            self.touch(name, entry);
            return ip(entry.address);
        }
        if self.by_name.len() >= NAMES_MAX {
            self.forget_oldest();
        }
        let address = self.free_address(name);
        let name: Arc<str> = name.into();
        self.clock += 1;
        self.by_use.insert(self.clock, address);
        self.by_address.insert(address, Arc::clone(&name));
        self.by_name.insert(name, Entry { address, used: self.clock });
        ip(address)
    }

    /// The name that an address stands for.
    pub(super) fn name(&mut self, address: Ipv4Addr) -> Option<Arc<str>> {
        let name = Arc::clone(self.by_address.get(&u32::from(address))?);
        let entry = self.by_name.get(&name).copied()?;
        self.touch(&name, entry);
        Some(name)
    }

    fn touch(&mut self, name: &str, entry: Entry) {
        self.clock += 1;
        self.by_use.remove(&entry.used);
        self.by_use.insert(self.clock, entry.address);
        if let Some(entry) = self.by_name.get_mut(name) {
            entry.used = self.clock;
        }
    }

    fn forget_oldest(&mut self) {
        let Some((_, address)) = self.by_use.pop_first() else { return };
        if let Some(name) = self.by_address.remove(&address) {
            self.by_name.remove(&name);
        }
    }

    fn free_address(&self, name: &str) -> u32 {
        let mut index = spread(name);
        loop {
            let address = u32::from(NAMES_BASE) + 1 + index;
            // The model relay has one of them for itself.
            if address != u32::from(*RELAY.ip()) && !self.by_address.contains_key(&address) {
                return address;
            }
            index = (index + 1) % ADDRESSES;
        }
    }
}

/// FNV-1a: the same in every release, which the standard library's hasher does not promise.
fn spread(name: &str) -> u32 {
    let hash = name
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash % ADDRESSES
}

fn ip(address: u32) -> Ipv4Addr {
    Ipv4Addr::from(address)
}

#[cfg(test)]
mod tests;
