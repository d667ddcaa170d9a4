//! The sockets through which a sandbox reaches the outside: made once per launch, inside its
//! network namespace, and then kept by the keeper, so that a restarted server gets them again.
//!
//! Order matters: the route comes first (it makes any address bindable), steering last.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

mod netlink;
mod steer;
mod sys;
mod tproxy;

/// Where a sandbox's resolver asks. `/etc/resolv.conf` names it.
pub const NAMESERVER: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Names that a sandbox resolves get addresses of this range (RFC 2544: never used on the
/// internet), prefix length 15.
pub const NAMES_BASE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);

/// Where the steered listener itself is bound: an address that no program uses, so that all of
/// 127.0.0.1 but port 53 stays free for the sandbox's own servers.
pub const LISTENER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 19, 255, 255), 1);

/// Connections and queries that wait while the server restarts, or is busy.
const BACKLOG: i32 = 512;

/// Everything that must stay open for a sandbox to reach the outside. Pass all four to the keeper
/// by `SCM_RIGHTS`; the server needs duplicates of the first three. When the last holder closes
/// them, every way out is shut.
#[derive(Debug)]
pub struct Sockets {
    /// Listening; every TCP connection to an address outside 127.0.0.0/8 arrives here.
    pub tcp: OwnedFd,
    /// 127.0.0.1:53.
    pub dns_udp: OwnedFd,
    /// 127.0.0.1:53, listening.
    pub dns_tcp: OwnedFd,
    /// What steers: the BPF link, or the socket that asked nftables. Never used, only kept.
    pub link: OwnedFd,
}

impl Sockets {
    /// A second set of descriptors of the same sockets.
    pub fn duplicate(&self) -> io::Result<Self> {
        Ok(Self {
            tcp: self.tcp.try_clone()?,
            dns_udp: self.dns_udp.try_clone()?,
            dns_tcp: self.dns_tcp.try_clone()?,
            link: self.link.try_clone()?,
        })
    }

    /// In the order in which they travel by `SCM_RIGHTS`.
    pub fn into_array(self) -> [OwnedFd; 4] {
        [self.tcp, self.dns_udp, self.dns_tcp, self.link]
    }

    pub fn from_array([tcp, dns_udp, dns_tcp, link]: [OwnedFd; 4]) -> Self {
        Self { tcp, dns_udp, dns_tcp, link }
    }
}

/// How connections come to the listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steering {
    /// Needs rights over the host.
    Bpf,
    /// Needs rights over the network namespace only.
    Nftables,
}

/// Makes the current network namespace a dead end whose only exits are the sockets returned.
///
/// The caller has entered the namespace (and not its user namespace: loading a BPF program needs
/// `CAP_BPF` and `CAP_NET_ADMIN` in the first one). The calling thread's namespace is used.
pub fn open_in_current_netns(steering: Steering) -> Result<Sockets, OpenError> {
    let namespace = std::fs::File::open(Path::new("/proc/thread-self/ns/net"))
        .context("open the network namespace")
        .map_err(OpenError::SetUp)?;
    netlink::make_everything_local().map_err(OpenError::SetUp)?;
    let (tcp, dns_udp, dns_tcp) = bind_all().map_err(OpenError::SetUp)?;
    let link = match steering {
        Steering::Bpf => {
            steer::steer(tcp.as_fd(), namespace.as_fd()).map_err(OpenError::Steering)?
        }
        Steering::Nftables => sys::make_transparent(tcp.as_fd())
            .context("make the listener transparent")
            .and_then(|()| tproxy::steer(LISTENER))
            .map_err(OpenError::Rules)?,
    };
    Ok(Sockets { tcp, dns_udp, dns_tcp, link })
}

/// Why a namespace could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("prepare the sandbox's network")]
    SetUp(#[source] anyhow::Error),
    /// The kernel is older than 5.9, or this process lacks `CAP_BPF` or `CAP_NET_ADMIN`. A sandbox can
    /// still run with the policy `none`.
    #[error("steer the sandbox's connections: needs kernel 5.9, CAP_BPF and CAP_NET_ADMIN")]
    Steering(#[source] anyhow::Error),
    /// The kernel has no nftables with `tproxy`, or the module cannot be loaded.
    #[error(
        "steer the sandbox's connections: needs nftables with tproxy (modules nf_tables and nft_tproxy)"
    )]
    Rules(#[source] anyhow::Error),
}

fn bind_all() -> Result<(OwnedFd, OwnedFd, OwnedFd)> {
    let nameserver = SocketAddrV4::new(NAMESERVER, 53);
    let tcp = bound(SocketType::STREAM, LISTENER)?;
    listen(&tcp, BACKLOG).context("listen for connections")?;
    let dns_udp = bound(SocketType::DGRAM, nameserver)?;
    let dns_tcp = bound(SocketType::STREAM, nameserver)?;
    listen(&dns_tcp, BACKLOG).context("listen for queries")?;
    Ok((tcp, dns_udp, dns_tcp))
}

fn bound(kind: SocketType, address: SocketAddrV4) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, kind, flags, None).context("open a socket")?;
    bind(&socket, &address).with_context(|| format!("bind {address}"))?;
    Ok(socket)
}
