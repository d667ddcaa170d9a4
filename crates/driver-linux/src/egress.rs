//! How a sandbox reaches the outside, and how it does not.
//!
//! Its network namespace has no interface but loopback, and every IPv4 address is local there. So
//! whatever a program connects to, the connection ends at a socket of ours; we look up what it was
//! for, ask the policy, and dial from the host. No route leads out, hence nothing that we do not
//! carry gets out: no UDP, no IPv6, no raw packets, no DNS.
//!
//! ```text
//!   in the sandbox's network namespace          |  on the host
//!   program -- DNS --> 127.0.0.1:53             |   dns: names -> 198.18.0.0/15, nothing looked up
//!           -- TCP --> anywhere --(steer)--> tcp|   proxy: policy -> resolve -> check -> dial -> copy
//!           -- TCP/UDP --> 127.0.0.0/8          |   (its own servers, untouched)
//!           -- UDP, IPv6, raw --> nowhere       |
//! ```
//!
//! One address is the model relay's: a connection to it is handed to whoever serves that, and reaches
//! nothing by itself.
//!
//! [`open_in_current_netns`] makes the sockets, once per launch, in the sandbox's namespace. Their
//! keeper holds them. [`Egress::serve`] serves them in the server, and again in the next one:
//! connections and queries that come in between wait in the kernel.

mod dial;
mod dns;
mod head;
mod log;
mod logged;
mod names;
mod pace;
mod proxy;
mod relay;
mod requests;

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use driver::RelayConnection;
use model::{Policy, SandboxId};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub(crate) use dial::is_own;
pub use dial::{LookupError, Resolver};
pub use keeper::egress::{NAMESERVER, OpenError, Sockets, Steering, open_in_current_netns};
pub(crate) use log::read as read_log;
pub use model::{Access, Verdict};

use log::AccessLog;
use names::Names;

/// Limits and the resolver, for all sandboxes of a server.
#[derive(Debug)]
pub struct EgressConfig {
    pub resolver: Resolver,
    /// Open connections of one sandbox; more wait.
    pub connections_max_each: usize,
    /// Open connections of all sandboxes; each takes two descriptors of the server.
    pub connections_max: usize,
    /// A connection on which nothing moves for this long is cut.
    pub idle_max: Duration,
    /// Entries of a sandbox's access log in memory; the oldest go first.
    pub log_entries_max: usize,
    /// Where each sandbox has a directory of its own, by its bare id, which holds the rest of them.
    pub log_dir: Option<PathBuf>,
    /// Who serves connections to the model relay; without anybody they are reset.
    pub relays: Option<mpsc::Sender<RelayConnection>>,
}

impl Default for EgressConfig {
    fn default() -> Self {
        Self {
            resolver: Resolver::system(),
            connections_max_each: 256,
            connections_max: 4096,
            idle_max: Duration::from_secs(2 * 3600),
            log_entries_max: 256,
            log_dir: None,
            relays: None,
        }
    }
}

/// Carries the traffic of every sandbox of a server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Egress {
    shared: Arc<Shared>,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

#[derive(Debug)]
struct Shared {
    config: EgressConfig,
    connections: Arc<Semaphore>,
}

impl Egress {
    /// Tasks run on `tasks` and end with `cancel`.
    pub fn new(config: EgressConfig, tasks: TaskTracker, cancel: CancellationToken) -> Self {
        let connections = Arc::new(Semaphore::new(config.connections_max));
        Self { shared: Arc::new(Shared { config, connections }), tasks, cancel }
    }

    /// Serves the sockets of one sandbox until its handle is closed or dropped. Needs a runtime.
    pub fn serve(
        &self,
        sandbox: SandboxId,
        sockets: Sockets,
        policy: Policy,
    ) -> io::Result<EgressHandle> {
        let Sockets { tcp, dns_udp, dns_tcp, link } = sockets;
        let tcp = std::net::TcpListener::from(tcp);
        let dns_udp = std::net::UdpSocket::from(dns_udp);
        let dns_tcp = std::net::TcpListener::from(dns_tcp);
        tcp.set_nonblocking(true)?;
        dns_udp.set_nonblocking(true)?;
        dns_tcp.set_nonblocking(true)?;
        let tcp = TcpListener::from_std(tcp)?;
        let dns_udp = UdpSocket::from_std(dns_udp)?;
        let dns_tcp = TcpListener::from_std(dns_tcp)?;

        let mut names = Names::default();
        names.enter(&policy);
        let cancel = self.cancel.child_token();
        let log_dir = self.shared.config.log_dir.as_ref().map(|dir| dir.join(sandbox.bare()));
        let inner = Arc::new(Inner {
            sandbox,
            shared: Arc::clone(&self.shared),
            names: Mutex::new(names),
            policy: watch::Sender::new(Arc::new(policy)),
            log: Arc::new(AccessLog::new(sandbox, self.shared.config.log_entries_max, log_dir)),
            lookups: Arc::new(Semaphore::new(dial::LOOKUPS_MAX_EACH)),
            tasks: TaskTracker::new(),
            cancel: cancel.clone(),
        });
        let done = CancellationToken::new();
        let told = done.clone().drop_guard();
        let served = Arc::clone(&inner);
        self.tasks.spawn(async move {
            tokio::select! {
                () = served.cancel.cancelled() => {}
                () = proxy::serve(Arc::clone(&served), tcp) => {}
                () = dns::serve_udp(Arc::clone(&served), dns_udp) => {}
                () = dns::serve_tcp(Arc::clone(&served), dns_tcp) => {}
                () = served.log.write_out() => {}
            }
            served.tasks.close();
            served.tasks.wait().await;
            served.log.flush().await;
            drop(link);
            drop(told);
        });
        Ok(EgressHandle { inner, done, _cancel: cancel.drop_guard() })
    }
}

/// The way out of one sandbox. Dropping it shuts the way, without waiting.
#[derive(Debug)]
pub struct EgressHandle {
    inner: Arc<Inner>,
    done: CancellationToken,
    _cancel: DropGuard,
}

impl EgressHandle {
    /// From now on; connections that the new policy would not allow are cut at once.
    pub fn set_policy(&self, policy: Policy) {
        self.inner.names().enter(&policy);
        self.inner.policy.send_replace(Arc::new(policy));
    }

    /// What was reached and what was refused, oldest first.
    pub fn log(&self) -> Vec<Access> {
        self.inner.log.entries()
    }

    /// For somebody who reads the log while the way out may be shut.
    pub(crate) fn reader(&self) -> LogReader {
        LogReader(Arc::clone(&self.inner))
    }

    /// Shuts the way out, cuts what is open, and waits until nothing of it is left in this process.
    pub async fn close(self) {
        self.inner.cancel.cancel();
        self.done.cancelled().await;
    }
}

/// See [`EgressHandle::reader`].
#[derive(Debug)]
pub(crate) struct LogReader(Arc<Inner>);

impl LogReader {
    /// What has ended is in the file; answers what is open.
    pub(crate) async fn flushed(&self) -> Vec<Access> {
        let open = self.0.log.open();
        self.0.log.flush().await;
        open
    }
}

/// What the tasks of one sandbox share.
#[derive(Debug)]
struct Inner {
    sandbox: SandboxId,
    shared: Arc<Shared>,
    names: Mutex<Names>,
    policy: watch::Sender<Arc<Policy>>,
    log: Arc<AccessLog>,
    lookups: Arc<Semaphore>,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

impl Inner {
    fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.borrow())
    }

    fn policies(&self) -> watch::Receiver<Arc<Policy>> {
        self.policy.subscribe()
    }

    async fn closed(&self) {
        self.cancel.cancelled().await;
    }

    fn names(&self) -> std::sync::MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address that stands for a name.
    fn stand_in(&self, name: &str) -> Ipv4Addr {
        self.names().address(name)
    }

    fn name_of(&self, address: Ipv4Addr) -> Option<Arc<str>> {
        self.names().name(address)
    }
}
