//! Every TCP connection of a sandbox to the outside: who is it for, may it, and then carry it.
//!
//! ```text
//! accept -> target -> policy -> resolve -> check addresses -> dial -> head -> copy -> end
//!              |         |         |             |             |       |       |
//!              +---------+---------+-------------+-------------+-------+-------+--> reset, logged
//! ```
//!
//! The program's own connection is established before any of this (the kernel does it), so a
//! refusal shows as a reset right after it. A policy that changes, or the end of the sandbox, is
//! noticed at every step.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use driver::RelayConnection;
use model::agent::RELAY;
use model::{Policy, Verdict};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::sleep;

use super::Inner;
use super::dial::{Lookups, Target, dial};
use super::log::Record;
use super::logged::Logged;
use super::names::Names;
use super::pace::Pace;
use super::relay::Relay;

/// Of one sandbox; more than that wait to be accepted.
const CONNECTIONS_PER_SECOND: u32 = 1000;

/// Accepts for as long as the socket works. Connections beyond the limits wait in the kernel.
pub(super) async fn serve(inner: Arc<Inner>, listener: TcpListener) {
    let own = Arc::new(Semaphore::new(inner.shared.config.connections_max_each));
    let mut pace = Pace::per_second(CONNECTIONS_PER_SECOND);
    loop {
        pace.step().await;
        let Some(permits) = permits(&own, &inner.shared.connections).await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptors left, or the connection is gone already.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let connection = connection(Arc::clone(&inner), stream, permits);
        inner.tasks.spawn(connection);
    }
}

/// Room for one more connection: of this sandbox, and of all.
async fn permits(own: &Arc<Semaphore>, all: &Arc<Semaphore>) -> Option<[OwnedSemaphorePermit; 2]> {
    let own = Arc::clone(own).acquire_owned().await.ok()?;
    let all = Arc::clone(all).acquire_owned().await.ok()?;
    Some([own, all])
}

async fn connection(inner: Arc<Inner>, stream: TcpStream, permits: [OwnedSemaphorePermit; 2]) {
    let Ok(SocketAddr::V4(wanted)) = stream.local_addr() else { return };
    if wanted == RELAY {
        return hand_over(&inner, stream, permits).await;
    }
    // Until both ends are done, the end of this value is a reset.
    let _ = stream.set_zero_linger();
    let port = wanted.port();
    let Some(target) = inner.target(wanted) else {
        let record = inner.log.begin(wanted.ip().to_string(), port);
        return inner.log.end(&record, Verdict::UnknownAddress);
    };
    let shown = match &target {
        Target::Name(name) => name.to_string(),
        Target::Address(address) => address.to_string(),
    };
    let record = inner.log.begin(shown, port);
    let wish = Wish { target, port, record: Arc::clone(&record) };
    let mut policies = inner.policies();
    // One look for both branches, so that no change falls between them.
    let policy = Arc::clone(&policies.borrow_and_update());
    let verdict = tokio::select! {
        () = inner.closed() => Verdict::Closed,
        () = wish.revoked(policies) => Verdict::PolicyChanged,
        verdict = wish.carry(&inner, stream, &policy) => verdict,
    };
    inner.log.end(&record, verdict);
    drop(permits);
}

/// To the model relay, which says whether this sandbox has one.
async fn hand_over(inner: &Inner, stream: TcpStream, permits: [OwnedSemaphorePermit; 2]) {
    let stream = Logged::new(&inner.log, stream);
    let Some(relays) = &inner.shared.config.relays else {
        return stream.refuse();
    };
    let _ = stream.set_nodelay();
    let hold = Box::new(permits);
    let connection = RelayConnection { sandbox: inner.sandbox, stream: Box::new(stream), hold };
    tokio::select! {
        () = inner.closed() => {}
        // Nobody serves it any more: it ends here.
        _ = relays.send(connection) => {}
    }
}

/// A connection that a program wants.
struct Wish {
    target: Target,
    port: u16,
    record: Arc<Record>,
}

impl Wish {
    async fn carry(&self, inner: &Inner, inside: TcpStream, policy: &Policy) -> Verdict {
        let config = &inner.shared.config;
        if !self.target.is_allowed(policy, self.port) {
            return Verdict::NotAllowed;
        }
        let tell = |address| self.record.dialled(address);
        let lookups = Lookups { resolver: &config.resolver, own: &inner.lookups };
        let outside = match dial(lookups, policy, &self.target, self.port, tell).await {
            Ok(outside) => outside,
            Err(verdict) => return verdict,
        };
        // Where everything public is allowed, it does not matter which host a head names.
        let name = match &self.target {
            Target::Name(name) if !policy.is_open(self.port) => Some(&**name),
            Target::Name(_) | Target::Address(_) => None,
        };
        Relay::new(inside, outside, &self.record).run(name, config.idle_max).await
    }

    /// Ends when the policy has changed so that this connection would no longer be made.
    async fn revoked(&self, mut policies: watch::Receiver<Arc<Policy>>) {
        while policies.changed().await.is_ok() {
            let policy = Arc::clone(&policies.borrow_and_update());
            let allowed = match self.record.address() {
                Some(address) => self.target.is_allowed_at(&policy, address, self.port),
                None => self.target.is_allowed(&policy, self.port),
            };
            if !allowed {
                return;
            }
        }
        // Nobody can change it any more.
        std::future::pending().await
    }
}

impl Inner {
    /// Whom a connection to `wanted` is for; `None` when that is nobody.
    fn target(&self, wanted: std::net::SocketAddrV4) -> Option<Target> {
        let address = *wanted.ip();
        // Never steered here. But a rule may list the host's 127.0.0.1, and that is not this one.
        if address.is_loopback() {
            return None;
        }
        if Names::covers(address) {
            return self.name_of(address).map(Target::Name);
        }
        Some(Target::Address(IpAddr::V4(address)))
    }
}
