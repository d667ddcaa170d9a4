//! One place that runs sandboxes, as the engine sees it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use driver::{Driver, Template};
use model::{Error, Result, TemplateName};
use tracing::warn;

use crate::Pool;

pub(crate) struct PoolState {
    pub(crate) name: String,
    pub(crate) driver: Arc<dyn Driver>,
    max_sandboxes: Option<u32>,
    /// Sandboxes with compute, or about to have it.
    in_use: AtomicU32,
    reachable: AtomicBool,
    /// What it has was read since this engine started.
    adopted: AtomicBool,
    templates: Mutex<Vec<Template>>,
}

impl PoolState {
    pub(crate) fn new(pool: Pool) -> Self {
        Self {
            name: pool.name,
            driver: pool.driver,
            max_sandboxes: pool.max_sandboxes,
            in_use: AtomicU32::new(0),
            reachable: AtomicBool::new(true),
            adopted: AtomicBool::new(false),
            templates: Mutex::default(),
        }
    }

    /// Whether it answers within `limit`; remembered for the metrics.
    pub(crate) async fn answers(&self, limit: Duration) -> bool {
        let asked = tokio::time::timeout(limit, self.driver.ready()).await;
        let reachable = matches!(asked, Ok(Ok(())));
        if self.reachable.swap(reachable, Ordering::Relaxed) && !reachable {
            warn!(pool = self.name, "pool {} does not answer", self.name);
        }
        reachable
    }

    pub(crate) fn is_reachable(&self) -> bool {
        self.reachable.load(Ordering::Relaxed)
    }

    pub(crate) fn set_adopted(&self) {
        self.adopted.store(true, Ordering::Release);
    }

    pub(crate) fn is_adopted(&self) -> bool {
        self.adopted.load(Ordering::Acquire)
    }

    /// Takes room for one sandbox. Whoever takes gives back.
    pub(crate) fn take_room(&self) -> bool {
        let taken = self.in_use.fetch_update(Ordering::AcqRel, Ordering::Acquire, |in_use| {
            self.max_sandboxes.is_none_or(|max| in_use < max).then_some(in_use + 1)
        });
        taken.is_ok()
    }

    /// Takes room even when there is none: what runs already, runs.
    pub(crate) fn take_room_anyway(&self) {
        self.in_use.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn give_room(&self) {
        self.in_use.fetch_sub(1, Ordering::AcqRel);
    }

    /// A template by name. What was read before is believed; only a miss reads again.
    pub(crate) async fn template(&self, name: &TemplateName) -> Result<Option<Template>> {
        if let Some(known) = self.known_template(name) {
            return Ok(Some(known));
        }
        self.read_templates().await?;
        Ok(self.known_template(name))
    }

    pub(crate) async fn read_templates(&self) -> Result<Vec<Template>> {
        let templates = self.driver.templates().await?;
        *self.templates.lock().unwrap_or_else(PoisonError::into_inner) = templates.clone();
        Ok(templates)
    }

    fn known_template(&self, name: &TemplateName) -> Option<Template> {
        let known = self.templates.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|template| template.name == *name).cloned()
    }
}

pub(crate) fn none_answers() -> Error {
    Error::unavailable("no pool answers")
}
