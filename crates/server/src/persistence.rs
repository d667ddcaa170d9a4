//! Conversations that are kept by a backend of their owner's too (`persistence_url`). The wire contract is
//! `docs/persistence.md`, and as `OpenAPI` in [`mod@contract`].
//!
//! ```text
//!  daemon of a sandbox ─ collect ─► outbox (store) ─ post ─► backend
//!  a one-shot task ────────┘          numbered          HTTPS, a checked address, in order,
//!                                     once, durable     again until it has it
//! ```
//!
//! Whatever has numbered events hands them to [`Persistence::append`] under a name of its own; that is all a
//! source does. What happens after that never holds up a source: a backend that fails is tried again, and
//! what waits for it is bounded. The backend's credentials never leave this process.

mod collect;
mod contract;
mod history;
mod post;
mod task;

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use model::{OwnerId, Result, SandboxId};
use store::{Appended, Store};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use url::Url;
use vault::Vault;

use crate::config::Config;
use crate::order::Target;
use crate::turns::Turns;
use crate::upstream::Upstream;

pub(crate) use collect::follow;
pub use contract::contract;
pub(crate) use history::go_on;
pub(crate) use task::{task_began, task_ended};

/// Conversations that are delivered at the same time.
const POSTS_MAX: usize = 32;
/// Of those, an owner's: a backend that never answers takes the places of nobody else.
const POSTS_MAX_EACH: usize = 4;
/// Between two looks at what waits. What was appended meanwhile goes together.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(100);
/// What another server kept is found without being told.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// After a first failure, doubled with each.
const BACK_OFF: Duration = Duration::from_millis(500);
const BACK_OFF_MAX: Duration = Duration::from_secs(300);

pub(crate) struct Persistence {
    store: Store,
    vault: Vault,
    upstream: Upstream,
    /// Something was appended.
    wake: Notify,
    /// Sandboxes whose daemon is read.
    following: Turns,
}

/// A conversation: whose it is, and where its events go.
#[derive(Debug, Clone)]
pub(crate) struct Conversation {
    pub(crate) sandbox: SandboxId,
    pub(crate) owner: OwnerId,
    pub(crate) target: Target,
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivered {
    /// Nothing waits, or more than was worth while at a time.
    Well,
    /// The backend did not take it; it may have said when to come back.
    Failed { retry_after: Option<Duration> },
}

/// Who is left alone for a while.
#[derive(Debug)]
struct Resting {
    failures: u32,
    until: Instant,
}

impl Persistence {
    pub(crate) fn new(config: &Config, store: &Store) -> anyhow::Result<Self> {
        let allowed = config.persistence.allowed_urls.clone();
        Ok(Self {
            store: store.clone(),
            vault: config.vault(store)?,
            upstream: Upstream::new(config.hosts.clone(), allowed)?,
            wake: Notify::new(),
            following: Turns::default(),
        })
    }

    /// Whether a backend may be there, as far as one can tell now; who dials checks again.
    pub(crate) async fn check(&self, url: &Url) -> Result<()> {
        self.upstream.check("persistence_url", url).await
    }

    /// Keeps what is new of a source's events, each with its number there, until the backend has them. The
    /// same event twice is kept once. [`Appended::Full`] says to come again later.
    pub(crate) async fn append(
        &self,
        conversation: &Conversation,
        origin: &str,
        events: Vec<(u64, String)>,
    ) -> Result<Appended> {
        let (id, now) = (conversation.sandbox.to_string(), Timestamp::now());
        let mut appended = self.store.append_persisted(&id, origin, events.clone(), now).await?;
        if appended == Appended::Unknown {
            let plain = serde_json::to_vec(&conversation.target).map_err(anyhow::Error::from)?;
            let sealed = self.vault.seal_target(&conversation.owner, &plain)?;
            self.store.persist(&id, &conversation.owner, sealed).await?;
            appended = self.store.append_persisted(&id, origin, events, now).await?;
        }
        self.wake.notify_one();
        Ok(appended)
    }

    /// Brings everything that waits to its backend. Never ends.
    pub(crate) async fn deliver_all(&self) {
        let mut resting: HashMap<String, Resting> = HashMap::new();
        let mut under_way = FuturesUnordered::new();
        let mut busy: HashMap<String, OwnerId> = HashMap::new();
        let mut look_at = Instant::now();
        loop {
            tokio::select! {
                Some((id, delivered)) = under_way.next(), if !under_way.is_empty() => {
                    busy.remove(&id);
                    note(&mut resting, id, delivered);
                    look_at = look_at.min(Instant::now() + LOOK_EVERY_MIN);
                    continue;
                }
                () = self.wake.notified() => {
                    look_at = look_at.min(Instant::now() + LOOK_EVERY_MIN);
                    continue;
                }
                () = sleep_until(look_at) => {}
            }
            look_at = Instant::now() + LOOK_EVERY;
            let resting_until = resting.values().map(|one| one.until);
            look_at = resting_until.filter(|until| *until > Instant::now()).fold(look_at, Ord::min);
            let waiting = self.waiting().await;
            let free = |id: &String| resting.get(id).is_none_or(|one| one.until <= Instant::now());
            for (id, owner) in waiting.into_iter().filter(|(id, _)| free(id)) {
                if has_room(&busy, &id, &owner) {
                    busy.insert(id.clone(), owner);
                    under_way.push(self.deliver(id));
                }
            }
        }
    }

    async fn waiting(&self) -> Vec<(String, OwnerId)> {
        let mut all: Vec<(String, OwnerId)> = Vec::new();
        loop {
            let after = all.last().map(|(id, _)| id.clone()).unwrap_or_default();
            match self.store.persisted_waiting(&after).await {
                Ok(page) if page.is_empty() => return all,
                Ok(page) => all.extend(page),
                Err(failure) => {
                    let error = format!("{:#}", anyhow::Error::from(failure));
                    tracing::warn!(error, "could not look up which conversations wait");
                    sleep(LOOK_EVERY_MIN).await;
                    return all;
                }
            }
        }
    }
}

fn has_room(busy: &HashMap<String, OwnerId>, id: &str, owner: &OwnerId) -> bool {
    let of_owner = busy.values().filter(|other| *other == owner).count();
    !busy.contains_key(id) && busy.len() < POSTS_MAX && of_owner < POSTS_MAX_EACH
}

fn note(resting: &mut HashMap<String, Resting>, id: String, delivered: Delivered) {
    let Delivered::Failed { retry_after } = delivered else {
        resting.remove(&id);
        return;
    };
    let failures = resting.get(&id).map_or(0, |one| one.failures) + 1;
    let pause = retry_after.unwrap_or_default().max(back_off(failures, &id));
    resting.insert(id, Resting { failures, until: Instant::now() + pause });
}

/// Up to a quarter more for each conversation's own, so that not all come back at once.
fn back_off(failures: u32, id: &str) -> Duration {
    let pause = BACK_OFF.saturating_mul(1 << (failures - 1).min(16)).min(BACK_OFF_MAX);
    let own = id.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    pause + pause.mul_f64(f64::from(own % 64) / 256.0)
}

#[cfg(test)]
mod tests;
