//! Whether this server may still change sandboxes: asked before it does. Somebody else knows; here is
//! only who is asked.

use std::fmt;
use std::sync::Arc;

use model::{Error, Result};

/// Says whether the lease under which this driver was opened still holds. Cheap, may block shortly.
#[derive(Clone)]
pub struct Fence(Arc<dyn Fn() -> bool + Send + Sync>);

impl Fence {
    pub fn new(holds: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(holds))
    }

    pub(super) fn check(&self) -> Result<()> {
        if (self.0)() {
            return Ok(());
        }
        Err(Error::unavailable("another server has taken over"))
    }
}

impl Default for Fence {
    /// For who is alone.
    fn default() -> Self {
        Self::new(|| true)
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").finish_non_exhaustive()
    }
}
