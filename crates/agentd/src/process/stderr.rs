//! What an agent prints on its standard error: read as it comes, so that the agent never waits for us,
//! and of which the last part is kept for error messages.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStderr;
use tokio_util::task::TaskTracker;

const KEPT_BYTES: usize = 16 * 1024;

#[derive(Debug, Clone)]
pub(super) struct Stderr(Arc<Mutex<VecDeque<u8>>>);

impl Stderr {
    pub(super) fn follow(mut pipe: ChildStderr, tasks: &TaskTracker) -> Self {
        let kept = Self(Arc::default());
        let writer = kept.clone();
        // Ends with the last process that holds the pipe, which is killed with the agent.
        tasks.spawn(async move {
            let mut block = vec![0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut block).await {
                writer.push(&block[..count]);
            }
        });
        kept
    }

    pub(super) fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = kept.iter().copied().collect();
        String::from_utf8_lossy(&bytes).trim_end().to_owned()
    }

    fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(bytes);
        let excess = kept.len().saturating_sub(KEPT_BYTES);
        kept.drain(..excess);
    }
}
