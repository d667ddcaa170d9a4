//! Sessions that ran when this server began to lead: they are followed again from where their logs end,
//! and those whose sandbox is gone are told so. Sandboxes that no session has are removed, then and later.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use model::{EndReason, Error, Phase, Result, SandboxRef};
use store::SessionRecord;
use tokio::time::sleep;

use super::live::caller_of;
use super::{Live, end, orphans, pump};
use crate::app::App;

/// Sessions that are picked up at the same time.
const AT_ONCE: usize = 16;
/// Between tries at what the store, or a pool, does not answer.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// Follows what runs; in the background, until all of it is.
pub(crate) fn find_again(app: &App) {
    let app = Arc::clone(app);
    app.clone().tasks.spawn(async move {
        app.draining.run_until_cancelled(all(&app)).await;
    });
}

async fn all(app: &App) {
    // Who had them does not lead any more.
    until_done(|| async { app.store.drop_session_claims().await }).await;
    let running = until_done(|| app.store.running_sessions()).await;
    let swept = app.engine.swept();
    let orphans = until_done(|| orphans::find(app)).await;
    app.sessions.known.cancel();
    let removing = Arc::clone(app);
    app.tasks.spawn(async move { orphans::keep_away(&removing, orphans, swept).await });
    let picked = stream::iter(running).for_each_concurrent(AT_ONCE, |record| async move {
        until_done(|| pick_up(app, &record)).await;
    });
    picked.await;
}

async fn pick_up(app: &App, record: &SessionRecord) -> Result<()> {
    if app.sessions.live(record.id).is_some() {
        // It was made since.
        return Ok(());
    }
    let caller = caller_of(&record.owner);
    let Some(sandbox) = record.sandbox else {
        // Its launch was cut off. Nobody was answered; what it made is an orphan.
        if record.life == 1 && app.store.session_log_end(record.id).await?.sequence == 0 {
            return app.store.delete_session(record.id).await;
        }
        return end::of_record(app, record, EndReason::CreateFailed).await;
    };
    match app.engine.get(&caller, &SandboxRef::Id(sandbox)).await {
        Ok(seen) if matches!(seen.phase, Phase::Running | Phase::Paused) => {
            let (live, appender) = Live::new(&app.store, record, sandbox).await?;
            let live = Arc::new(live);
            app.sessions.remember(&live);
            app.tasks.spawn(pump::run(Arc::clone(app), live, appender));
            Ok(())
        }
        Ok(seen) => {
            let reason = seen.end_reason.unwrap_or(EndReason::Unknown);
            end::of_record(app, record, reason).await
        }
        Err(Error::NotFound { .. }) if app.engine.has_read_all() => {
            end::of_record(app, record, EndReason::Unknown).await
        }
        // What its pool has is not known yet.
        Err(error) => Err(error),
    }
}

/// However often it takes: nobody else would do it.
async fn until_done<T, F: Future<Output = Result<T>>>(mut work: impl FnMut() -> F) -> T {
    loop {
        match work().await {
            Ok(done) => return done,
            Err(error) => {
                let error = error.to_string();
                tracing::warn!(error, "sessions are not picked up yet");
                sleep(TRY_EVERY).await;
            }
        }
    }
}
