//! The model relay: programs in a sandbox speak to their model through an endpoint of the sandbox's own
//! loopback, and the key is added here, outside. So it never enters the sandbox, replacing it takes
//! effect with the next call, tokens are counted in one place, and no other host has to be open.
//!
//! ```text
//!  in the sandbox                         |  here
//!  agent ──► http://198.19.255.254:4010 ──┼─► which sandbox? (the driver knows) ─► its key, unsealed
//!            placeholder for a key        |   ─► its vendor's base URL + the path ─► streamed back, counted
//! ```
//!
//! The relay's root stands for the base URL; what a client appends to one is appended to the other. Which
//! sandbox speaks follows from where the connection comes from, never from what it says. Sessions have
//! the same: whatever keeps an [`crate::order::Order`] for a sandbox gives it a model.

mod call;
mod tokens;

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::RelayConnection;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use model::SandboxId;
use store::Store;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use vault::Vault;

use crate::limits::{HEADER_BYTES_MAX, HEADERS_MAX};
use crate::upstream::Upstream;

/// Calls of one sandbox that are answered at the same time; more are refused with 429.
const CALLS_MAX_EACH: u32 = 32;
/// Of all sandboxes; more wait.
const CALLS_MAX: usize = 1024;
/// For the head of a request, and between two requests of a connection.
const HEAD_MAX: Duration = Duration::from_secs(300);

/// Serves the relay for every sandbox of this server.
pub(crate) struct Relay {
    upstream: Arc<Upstream>,
    vault: Vault,
    store: Store,
    room: Arc<Semaphore>,
    calls: Mutex<HashMap<SandboxId, u32>>,
    tasks: TaskTracker,
}

/// A call in flight; what it takes is given back with it.
struct Call {
    relay: Arc<Relay>,
    sandbox: SandboxId,
    _room: OwnedSemaphorePermit,
}

impl Relay {
    pub(crate) fn new(
        upstream: Arc<Upstream>,
        vault: Vault,
        store: Store,
        tasks: TaskTracker,
    ) -> Self {
        let room = Arc::new(Semaphore::new(CALLS_MAX));
        Self { upstream, vault, store, room, calls: Mutex::default(), tasks }
    }

    /// Takes connections until `draining`; calls in flight then finish.
    pub(crate) fn serve(
        self: &Arc<Self>,
        mut connections: mpsc::Receiver<RelayConnection>,
        draining: &CancellationToken,
    ) {
        let (relay, draining) = (Arc::clone(self), draining.clone());
        self.tasks.spawn(async move {
            while let Some(Some(connection)) =
                draining.run_until_cancelled(connections.recv()).await
            {
                relay.tasks.spawn(Arc::clone(&relay).attend(connection, draining.clone()));
            }
        });
    }

    async fn attend(self: Arc<Self>, connection: RelayConnection, draining: CancellationToken) {
        let RelayConnection { sandbox, stream, hold } = connection;
        let service = service_fn(|request| {
            let relay = Arc::clone(&self);
            async move { Ok::<_, Infallible>(call::answer(&relay, sandbox, request).await) }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_MAX)
            .max_buf_size(HEADER_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let mut served = pin!(served);
        // Whoever speaks something else, or goes away, ends it; that is nobody's news.
        tokio::select! {
            _ = served.as_mut() => {}
            () = draining.cancelled() => {
                served.as_mut().graceful_shutdown();
                let _ = served.await;
            }
        }
        drop(hold);
    }

    /// `None` when the sandbox has too many already.
    async fn begin(self: &Arc<Self>, sandbox: SandboxId) -> Option<Call> {
        let room = Arc::clone(&self.room).acquire_owned().await.ok()?;
        let mut calls = self.calls();
        let count = calls.entry(sandbox).or_default();
        if *count >= CALLS_MAX_EACH {
            return None;
        }
        *count += 1;
        Some(Call { relay: Arc::clone(self), sandbox, _room: room })
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<SandboxId, u32>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut calls = self.relay.calls();
        if let Some(count) = calls.get_mut(&self.sandbox) {
            *count -= 1;
            if *count == 0 {
                calls.remove(&self.sandbox);
            }
        }
    }
}
