//! The task of a running session: it follows the daemon in the sandbox, appends what that says to the log,
//! and then tells readers. When the sandbox ends, or its daemon does not come back, it says so in the log.
//!
//! ```text
//!            ┌──────── the connection breaks: ask again, from the cursor ───────┐
//!            ▼                                                                  │
//!  start ─► listen ─► frames ─► append ─► publish ─────────────────────────────►┤
//!            │                                                                  │
//!            └─ the sandbox ended, the agent ended, or silence ─► the end ─► the sandbox goes
//! ```

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures_util::{FutureExt as _, StreamExt as _};
use model::{EndReason, Phase, SandboxRef};
use store::SessionUse;
use tokio::time::{Instant, sleep, timeout};

use super::daemon::{self, Past};
use super::end::{self, End};
use super::events::{self, Next};
use super::frames::{Frame, Frames};
use super::live::{Appender, Moved};
use super::{Live, display};
use crate::app::App;
use crate::order::Order;

/// Events that are written together.
const BATCH_MAX: usize = 512;
/// What the agent said just before its sandbox ended may still be on its way.
const LAST_WORDS_MAX: Duration = Duration::from_millis(500);
/// Between two tries to reach the daemon.
const TRY_FIRST: Duration = Duration::from_millis(50);
const TRY_EVERY: Duration = Duration::from_secs(2);
/// A sandbox that runs and whose daemon does not answer for so long has no agent any more.
const SILENT_MAX: Duration = Duration::from_secs(60);
/// The daemon says at least so often that it is alive.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(60);

/// Of an agent's own id.
const NATIVE_ID_BYTES_MAX: usize = 128;

/// Why a connection is not read any more.
enum Over {
    /// Ask again.
    Broken,
    /// The end of it all.
    End(End),
    /// Somebody else goes on with it.
    Stopped,
}

/// Follows until the end, and does what an end takes.
pub(super) async fn run(app: App, live: Arc<Live>, mut appender: Appender) {
    let over = tokio::select! {
        over = follow(&app, &live, &mut appender) => over,
        // Whoever leads next goes on.
        () = app.draining.cancelled() => None,
        () = live.stop.cancelled() => None,
    };
    if let Some(over) = over {
        end::of_live(&app, &live, appender, over).await;
    }
    app.sessions.forget(&live);
    live.over.cancel();
}

/// `None` when somebody else goes on with it.
async fn follow(app: &App, live: &Arc<Live>, appender: &mut Appender) -> Option<End> {
    let (mut silent_since, mut pause) = (None, TRY_FIRST);
    loop {
        let before = appender.cursor();
        match connect(app, live, appender).await {
            Over::End(end) => return Some(end),
            Over::Stopped => return None,
            Over::Broken => {}
        }
        let progress = appender.cursor() != before;
        match phase(app, live).await {
            // It says nothing, and may go on.
            Some(Phase::Paused) => silent_since = None,
            Some(_) if progress => (silent_since, pause) = (None, TRY_FIRST),
            Some(_) => {
                let since = *silent_since.get_or_insert_with(Instant::now);
                if since.elapsed() > SILENT_MAX {
                    return Some(End::Daemon);
                }
            }
            None => return Some(End::Sandbox(app.engine.ended(live.sandbox).await)),
        }
        sleep(pause).await;
        pause = (pause * 2).min(TRY_EVERY);
    }
}

/// One connection to the daemon, from its begin to its end.
async fn connect(app: &App, live: &Arc<Live>, appender: &mut Appender) -> Over {
    let begun = tokio::select! {
        begun = begin(app, live, appender) => begun,
        reason = app.engine.ended(live.sandbox) => return Over::End(End::Sandbox(reason)),
    };
    match begun {
        Ok(body) => listen(app, live, appender, body).await,
        Err(error) => {
            let error = error.to_string();
            tracing::debug!(session.id = %live.id, error, "the daemon of a session does not answer");
            Over::Broken
        }
    }
}

/// The stream from where the log ends. A daemon that was restarted has lost what it had in memory, and
/// is given it again.
async fn begin(app: &App, live: &Live, appender: &mut Appender) -> model::Result<BodyDataStream> {
    let order = Order::of(&app.vault, live.sandbox).await?;
    let secrets = order.map(|(_, order)| order.env).unwrap_or_default();
    let told = if appender.is_unheard() {
        // Whoever launched it may have died before the agent was told to start.
        let native = live.native.lock().unwrap_or_else(PoisonError::into_inner).clone();
        daemon::begin(app, live, &secrets, Past::Log { native_session_id: native }).await?
    } else {
        daemon::ask_again(app, live, &secrets).await?
    };
    if told.event_count < appender.cursor() {
        // Never seen; to wait for numbers that were given already would lose what has them now.
        tracing::error!(session.id = %live.id, "the daemon of a session forgot events");
        appender.rewind(told.event_count);
    }
    let response = daemon::listen(app, live, appender.cursor()).await?;
    Ok(Body::into_data_stream(response.into_body()))
}

async fn listen(
    app: &App,
    live: &Arc<Live>,
    appender: &mut Appender,
    mut body: BodyDataStream,
) -> Over {
    let (mut frames, mut complete) = (Frames::default(), Vec::new());
    let mut sandbox_ended = pin!(app.engine.ended(live.sandbox));
    let mut last_words: Option<(Instant, EndReason)> = None;
    loop {
        let patience = last_words
            .map_or(KEEP_ALIVE_MAX, |(until, _)| until.saturating_duration_since(Instant::now()));
        let mut over = false;
        tokio::select! {
            biased;
            came = timeout(patience, body.next()) => match came {
                Ok(Some(Ok(bytes))) => frames.take(&bytes, &mut complete),
                Ok(Some(Err(_)) | None) | Err(_) => over = true,
            },
            reason = &mut sandbox_ended, if last_words.is_none() => {
                last_words = Some((Instant::now() + LAST_WORDS_MAX, reason));
            }
        }
        // Whatever else is there already is written with it.
        while !over && complete.len() < BATCH_MAX {
            match body.next().now_or_never() {
                Some(Some(Ok(bytes))) => frames.take(&bytes, &mut complete),
                Some(Some(Err(_)) | None) => over = true,
                None => break,
            }
        }
        match write(app, live, appender, std::mem::take(&mut complete)).await {
            Ok(None) => {}
            Ok(Some(end)) => return Over::End(end),
            Err(Moved) => return moved(appender).await,
        }
        if over {
            return match last_words {
                Some((_, reason)) => Over::End(End::Sandbox(reason)),
                None => Over::Broken,
            };
        }
    }
}

/// Into the log, and then to everybody. The end, if the agent says that it has ended.
async fn write(
    app: &App,
    live: &Arc<Live>,
    appender: &mut Appender,
    frames: Vec<Frame>,
) -> Result<Option<End>, Moved> {
    if frames.is_empty() {
        return Ok(None);
    }
    let (mut cursor, mut batch) = (appender.cursor(), Vec::with_capacity(frames.len()));
    let (mut used, mut turn_ended, mut end) = (SessionUse::default(), false, None);
    let mut images = Vec::new();
    for frame in frames {
        let Some(next) = events::read(frame, cursor) else { continue };
        cursor = next.cursor;
        let more = events::used(&next.event);
        used.input_tokens += more.input_tokens;
        used.output_tokens += more.output_tokens;
        used.tool_calls += more.tool_calls;
        turn_ended |= events::ends_turn(&next.event);
        images.extend(events::image_of(&next.event).map(str::to_owned));
        end = events::end_of(&next.event).map(End::Agent);
        note_native(app, live, &next);
        batch.push(next);
        if end.is_some() {
            break;
        }
    }
    appender.append(batch, &live.stop).await?;
    if used != SessionUse::default() {
        // It is written also if nobody waits for it.
        drop(app.store.count_session_use(live.id, used));
    }
    if turn_ended {
        save(app, live);
    }
    display::show(app, live, images);
    Ok(end)
}

/// What the agent itself calls the conversation: a resume asks it to go on with that.
fn note_native(app: &App, live: &Live, next: &Next) {
    let Some(name) = &next.event.native_session_id else { return };
    let mut known = live.native.lock().unwrap_or_else(PoisonError::into_inner);
    if known.as_ref() != Some(name) && name.len() <= NATIVE_ID_BYTES_MAX {
        *known = Some(name.clone());
        drop(app.store.name_session(live.id, name.clone()));
    }
}

/// What a turn left in the workspace is kept, so that the death of the sandbox loses no more than a turn.
fn save(app: &App, live: &Arc<Live>) {
    if live.saving.swap(true, Ordering::AcqRel) {
        return;
    }
    let (app, live) = (Arc::clone(app), Arc::clone(live));
    app.clone().tasks.spawn(async move {
        let saved = app.engine.save_workspace(live.sandbox).await;
        live.saving.store(false, Ordering::Release);
        if let Err(error) = saved {
            let error = error.to_string();
            tracing::warn!(session.id = %live.id, error, "what a turn left is not saved yet");
        }
    });
}

async fn moved(appender: &mut Appender) -> Over {
    loop {
        match appender.read_again().await {
            Ok(()) if appender.is_outlived() => return Over::Stopped,
            Ok(()) => return Over::Broken,
            Err(_) => sleep(TRY_EVERY).await,
        }
    }
}

/// `None` when nothing of it runs any more.
async fn phase(app: &App, live: &Live) -> Option<Phase> {
    let seen = app.engine.get(&live.caller, &SandboxRef::Id(live.sandbox)).await;
    seen.ok()
        .map(|sandbox| sandbox.phase)
        .filter(|phase| matches!(phase, Phase::Running | Phase::Paused))
}
