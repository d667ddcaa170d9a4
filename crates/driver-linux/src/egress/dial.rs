//! From a name to a connection: resolve on the host, check every address, dial only checked ones.
//!
//! The address that was checked is the address that is dialled, so a name that resolves differently
//! the next time (DNS rebinding) gains nothing.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use model::{Policy, Verdict, is_public};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

/// Until a connection stands, resolution included.
const DIAL_MAX: Duration = Duration::from_secs(15);
/// Per address, while there are others to try.
const ATTEMPT_MAX: Duration = Duration::from_secs(4);
/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 8;
/// Lookups in flight for all sandboxes: each holds a thread until the system's resolver answers.
const LOOKUPS_MAX: usize = 32;
/// Of one sandbox: names whose servers never answer must not keep the others from theirs.
pub(super) const LOOKUPS_MAX_EACH: usize = 4;

/// How names are resolved.
#[derive(Debug)]
pub struct Resolver {
    hosts: BTreeMap<String, Vec<IpAddr>>,
    system: bool,
    lookups: Arc<Semaphore>,
    /// For those that the control plane does itself.
    tenants: Arc<Semaphore>,
}

impl Resolver {
    /// As this host does.
    pub fn system() -> Self {
        Self::with_hosts(BTreeMap::new())
    }

    /// As this host does, after a look at the operator's own entries. They do not allow anything:
    /// a private address must be listed by a rule of the policy as well.
    pub fn with_hosts(hosts: BTreeMap<String, Vec<IpAddr>>) -> Self {
        let room = |count| Arc::new(Semaphore::new(count));
        Self { hosts, system: true, lookups: room(LOOKUPS_MAX), tenants: room(LOOKUPS_MAX / 2) }
    }

    /// These names and no others.
    pub fn fixed(hosts: BTreeMap<String, Vec<IpAddr>>) -> Self {
        Self { system: false, ..Self::with_hosts(hosts) }
    }

    /// The addresses of a host that the control plane may dial for a tenant: all of them public, and none
    /// this host's own. With `anywhere`, because the operator said so, whichever there are.
    pub async fn addresses(&self, host: &str, anywhere: bool) -> Result<Vec<IpAddr>, LookupError> {
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
        let found = match literal {
            Some(address) => vec![address],
            None => {
                let name = host.trim_end_matches('.').to_ascii_lowercase();
                let found = timeout(DIAL_MAX, self.resolve(&name, &self.tenants));
                found.await.ok().flatten().unwrap_or_default()
            }
        };
        if found.is_empty() {
            return Err(LookupError::Unresolved);
        }
        let found: Vec<IpAddr> = found.into_iter().map(|address| address.to_canonical()).collect();
        let may = |address: &IpAddr| is_public(*address) && !is_own(*address);
        if !anywhere && !found.iter().all(may) {
            return Err(LookupError::NotPublic);
        }
        Ok(found)
    }

    async fn resolve(&self, name: &str, own: &Arc<Semaphore>) -> Option<Vec<IpAddr>> {
        if let Some(addresses) = self.hosts.get(name) {
            return Some(addresses.clone());
        }
        if !self.system {
            return None;
        }
        let own = Arc::clone(own).acquire_owned().await.ok()?;
        let permit = (own, Arc::clone(&self.lookups).acquire_owned().await.ok()?);
        let name = name.to_owned();
        // The permit stays with the thread, which outlives a caller that gave up.
        let lookup = tokio::task::spawn_blocking(move || {
            let found = (name.as_str(), 0).to_socket_addrs().ok();
            drop(permit);
            found.map(|addresses| addresses.map(|address| address.ip()).collect())
        });
        lookup.await.ok().flatten()
    }
}

/// Why a host is not dialled for a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    #[error("its host name does not resolve")]
    Unresolved,
    #[error("its host name must resolve to public addresses only")]
    NotPublic,
}

/// What a sandbox wants to reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Name(Arc<str>),
    Address(IpAddr),
}

impl Target {
    /// Whether the policy lets anybody dial this at all.
    pub(super) fn is_allowed(&self, policy: &Policy, port: u16) -> bool {
        match self {
            Self::Name(name) => policy.allows(name, port),
            Self::Address(address) => policy.allows_address(*address, port),
        }
    }

    /// Whether the policy lets this be dialled at `address`.
    pub(super) fn is_allowed_at(&self, policy: &Policy, address: IpAddr, port: u16) -> bool {
        self.is_allowed(policy, port) && may_dial(policy, address, port)
    }
}

/// Where names are looked up, and how many of them one sandbox may have looked up at a time.
#[derive(Clone, Copy)]
pub(super) struct Lookups<'a> {
    pub(super) resolver: &'a Resolver,
    pub(super) own: &'a Arc<Semaphore>,
}

/// Connects; tells `dialled` the address before the first packet leaves.
pub(super) async fn dial(
    lookups: Lookups<'_>,
    policy: &Policy,
    target: &Target,
    port: u16,
    dialled: impl Fn(IpAddr),
) -> Result<TcpStream, Verdict> {
    let deadline = Instant::now() + DIAL_MAX;
    let addresses = match target {
        Target::Address(address) => vec![*address],
        Target::Name(name) => timeout_at(deadline, lookups.resolver.resolve(name, lookups.own))
            .await
            .ok()
            .flatten()
            .filter(|addresses| !addresses.is_empty())
            .ok_or(Verdict::Unresolved)?,
    };
    let mut checked: Vec<IpAddr> = Vec::new();
    for address in addresses.into_iter().map(|address| address.to_canonical()) {
        if may_dial(policy, address, port) && !checked.contains(&address) {
            checked.push(address);
        }
    }
    checked.truncate(ADDRESSES_MAX);
    if checked.is_empty() {
        return Err(Verdict::NotPublic);
    }
    let last = checked.len() - 1;
    for (index, address) in checked.into_iter().enumerate() {
        dialled(address);
        let connect = TcpStream::connect(SocketAddr::new(address, port));
        let attempt = if index == last { DIAL_MAX } else { ATTEMPT_MAX };
        let answer = timeout_at(deadline, timeout(attempt, connect)).await;
        if let Ok(Ok(Ok(stream))) = answer {
            return Ok(stream);
        }
    }
    Err(Verdict::Unreachable)
}

/// Public and not this host itself, or written down by the operator.
fn may_dial(policy: &Policy, address: IpAddr, port: u16) -> bool {
    policy.lists_address(address, port) || (is_public(address) && !is_own(address))
}

/// Whether an address belongs to this host: services of the control plane may listen on its public
/// ones, behind a firewall that traffic from the host itself does not pass. The kernel picks such
/// an address as the source towards itself; nothing is sent.
pub(crate) fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = std::net::UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_own_addresses_are_known_and_others_are_not() {
        for own in ["127.0.0.1", "::1"] {
            assert!(is_own(own.parse().unwrap()), "{own}");
        }
        for other in ["1.1.1.1", "2606:4700:4700::1111"] {
            assert!(!is_own(other.parse().unwrap()), "{other}");
        }
    }
}
