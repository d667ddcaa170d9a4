//! What is kept for so long and no longer, removed by who leads.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use store::Store;
use tokio::time::sleep;

/// A failure is made up for by the next time.
const EVERY: Duration = Duration::from_secs(3600);

/// Keeps the audit log as short as the settings say. Never ends.
pub(crate) async fn keep_audit(store: &Store, keep_days: u32) {
    if keep_days == 0 {
        return std::future::pending().await;
    }
    let kept_for = SignedDuration::from_hours(24 * i64::from(keep_days));
    loop {
        let now = Timestamp::now();
        match store.prune_audit(now - kept_for, now).await {
            Ok(0) => sleep(EVERY).await,
            Ok(removed) => tracing::info!(removed, "old entries of the audit log are removed"),
            Err(failure) => {
                let error = format!("{:#}", anyhow::Error::from(failure));
                tracing::warn!(error, "old entries of the audit log could not be removed");
                sleep(EVERY).await;
            }
        }
    }
}
