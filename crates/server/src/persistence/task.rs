//! A one-shot task as a conversation: what it was told, and what it answered. Its program prints text, so that
//! is all there is. To hand these in again is to hand them in once: their numbers are always the same.

use engine::Caller;
use events::{
    ContentPart, EventSource, ItemEventData, ItemKind, ItemRole, ItemStatus, SessionEndReason,
    SessionEndedData, SessionStartedData, TerminatedBy, UniversalEvent, UniversalEventData,
    UniversalItem,
};
use futures_util::StreamExt as _;
use jiff::Timestamp;
use model::{SandboxId, SandboxRef};
use serde_json::json;

use super::Conversation;
use crate::app::App;
use crate::order::Order;

/// Of a result; the rest of a longer one is left out.
const RESULT_BYTES_MAX: usize = 1 << 20;
const RESULT: &str = "/tmp/result.txt";
const ORIGIN: &str = "task";

/// It was given to the agent.
pub(crate) async fn task_began(app: &App, sandbox: SandboxId) {
    keep(app, sandbox, begin).await;
}

/// The agent has ended. Its result is read now, because the sandbox goes.
pub(crate) async fn task_ended(app: &App, caller: &Caller, sandbox: SandboxId, exit_code: i32) {
    // Not a file of everybody's.
    match Conversation::of(app, sandbox).await {
        Ok(Some(_)) => {}
        Ok(None) => return,
        Err(failure) => return warn(sandbox, &failure.into()),
    }
    let result = result(app, caller, sandbox).await.unwrap_or_else(|error| {
        warn(sandbox, &error);
        String::new()
    });
    keep(app, sandbox, |order| {
        let mut all = begin(order);
        all.extend(end(&result, exit_code));
        all
    })
    .await;
}

async fn keep(
    app: &App,
    sandbox: SandboxId,
    events: impl FnOnce(&Order) -> Vec<UniversalEventData>,
) {
    let order = match Order::of(&app.vault, sandbox).await {
        Ok(order) => order,
        Err(failure) => return warn(sandbox, &failure.into()),
    };
    let Some((owner, order)) = order else { return };
    let data = events(&order);
    let Some(target) = order.persistence else { return };
    let time = Timestamp::now().to_string();
    let numbered = (1_u64..).zip(data).map(|(sequence, data)| {
        let event = UniversalEvent {
            event_id: format!("evt_{sandbox}_{sequence}"),
            sequence,
            time: time.clone(),
            session_id: ORIGIN.to_owned(),
            native_session_id: None,
            synthetic: true,
            source: EventSource::Daemon,
            data,
            raw: None,
        };
        (sequence, json!(event).to_string())
    });
    let conversation = Conversation { sandbox, owner, target };
    let appended = app.persistence.append(&conversation, ORIGIN, numbered.collect()).await;
    if let Err(failure) = appended {
        warn(sandbox, &failure.into());
    }
}

fn begin(order: &Order) -> Vec<UniversalEventData> {
    let started = SessionStartedData { metadata: Some(json!({ "one_shot": true })) };
    let task = order.task.as_deref().unwrap_or_default();
    let mut all = vec![UniversalEventData::SessionStarted(started)];
    all.extend(message("task", ItemRole::User, task));
    all
}

fn end(result: &str, exit_code: i32) -> Vec<UniversalEventData> {
    let reason = match exit_code {
        0 => SessionEndReason::Completed,
        _ => SessionEndReason::Error,
    };
    let ended = SessionEndedData { reason, terminated_by: TerminatedBy::Agent };
    let mut all = message("result", ItemRole::Assistant, result).to_vec();
    all.push(UniversalEventData::SessionEnded(ended));
    all
}

fn message(id: &str, role: ItemRole, text: &str) -> [UniversalEventData; 2] {
    let item = |status| UniversalItem {
        item_id: id.to_owned(),
        native_item_id: None,
        parent_id: None,
        kind: ItemKind::Message,
        role: Some(role),
        content: vec![ContentPart::text(text)],
        status,
    };
    [
        UniversalEventData::ItemStarted(ItemEventData { item: item(ItemStatus::InProgress) }),
        UniversalEventData::ItemCompleted(ItemEventData { item: item(ItemStatus::Completed) }),
    ]
}

async fn result(app: &App, caller: &Caller, sandbox: SandboxId) -> anyhow::Result<String> {
    let file = app.engine.read_file(caller, &SandboxRef::Id(sandbox), RESULT).await?;
    let (mut bytes, mut body) = (Vec::new(), file.body);
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece?);
        if bytes.len() >= RESULT_BYTES_MAX {
            bytes.truncate(RESULT_BYTES_MAX);
            break;
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn warn(sandbox: SandboxId, error: &anyhow::Error) {
    let error = format!("{error:#}");
    tracing::warn!(sandbox.id = %sandbox, error, "what a task did could not be kept");
}
