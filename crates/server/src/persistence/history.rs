//! What a backend has of a conversation: how far it is, and what was said, for an agent that goes on with it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::http::StatusCode;
use futures_util::StreamExt as _;
use model::SandboxId;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;
use url::Url;

use super::post::authorised;
use super::{Conversation, Persistence};
use crate::app::App;
use crate::order::{Order, Target};

/// From the connection to the end of the answer.
const LOAD_MAX: Duration = Duration::from_secs(30);
const LOAD_BYTES_MAX: usize = 8 << 20;
/// Asked for at a time.
const EVENTS_MAX: u64 = 1000;
/// Of one history.
const PAGES_MAX: usize = 10;
/// All of it together: an agent does not wait longer for what was said before.
const HISTORY_MAX: Duration = Duration::from_secs(20);
/// Of a task with what was said before it: one argument of a program may have 128 KiB.
const WHOLE_BYTES_MAX: usize = 120 * 1024;

/// A page of what a backend has.
#[derive(Debug, Deserialize)]
struct Loaded {
    last_sequence: u64,
    #[serde(default)]
    events: Vec<Numbered>,
}

#[derive(Debug, Deserialize)]
struct Numbered {
    sequence: u64,
    event: Value,
}

/// What somebody said.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    role: String,
    text: String,
}

/// The order, with what was said before in front of its task, if its conversation goes on elsewhere. The
/// agent's own memory of it is gone with the sandbox that it was in, so it is not asked for. When the backend
/// does not say in time what was said, the task begins without: an agent is never held up by a backend.
pub(crate) async fn go_on(app: &App, sandbox: SandboxId, mut order: Order) -> Order {
    let Some(target) = &order.persistence else { return order };
    let Some(continues) = &target.continues else { return order };
    order.session_id = None;
    let loaded = timeout(HISTORY_MAX, app.persistence.said(target, continues)).await;
    match loaded.context("not in time").and_then(|loaded| loaded) {
        Ok(said) => {
            let task = order.task.take().unwrap_or_default();
            order.task = Some(with_history(&said, task));
        }
        Err(error) => {
            let error = format!("{error:#}");
            tracing::warn!(sandbox.id = %sandbox, error, "what was said before is not loaded");
        }
    }
    order
}

/// The newest of it, as much as fits.
fn with_history(said: &[Said], task: String) -> String {
    let mut room = WHOLE_BYTES_MAX.saturating_sub(task.len());
    let lines = said.iter().rev().map(|one| format!("[{}]\n{}\n\n", one.role, one.text));
    let fits = lines.take_while(|line| {
        let fits = line.len() <= room;
        room = room.saturating_sub(line.len());
        fits
    });
    let mut fits: Vec<String> = fits.collect();
    if fits.is_empty() {
        return task;
    }
    fits.reverse();
    let before = fits.concat();
    format!(
        "This goes on with an earlier conversation. What was said in it:\n\n\
         <conversation>\n{before}</conversation>\n\nNow:\n\n{task}"
    )
}

impl Persistence {
    /// How far the backend is; 0 for a conversation that it does not know.
    pub(super) async fn last_sequence(&self, target: &Target, conversation: &str) -> Result<u64> {
        Ok(self.load(target, conversation, (0, 0)).await?.map_or(0, |one| one.last_sequence))
    }

    async fn said(&self, target: &Target, conversation: &str) -> Result<Vec<Said>> {
        let (mut all, mut after) = (Vec::new(), 0);
        for _ in 0..PAGES_MAX {
            let page = self.load(target, conversation, (after, EVENTS_MAX)).await?;
            let Some(page) = page else { break };
            let Some(last) = page.events.last().map(|event| event.sequence) else { break };
            ensure!(last > after, "its events are not in order");
            after = last;
            all.extend(page.events.iter().filter_map(|event| message(&event.event)));
            if last >= page.last_sequence {
                break;
            }
        }
        Ok(all)
    }

    /// `None` for a conversation that it does not know.
    async fn load(
        &self,
        target: &Target,
        conversation: &str,
        (after, limit): (u64, u64),
    ) -> Result<Option<Loaded>> {
        let mut url = Url::parse(&target.url).context("read a persistence URL")?;
        url.query_pairs_mut()
            .append_pair("conversation", conversation)
            .append_pair("after", &after.to_string())
            .append_pair("limit", &limit.to_string());
        let request = self.client(&url).await?.get(url).timeout(LOAD_MAX);
        let sent = authorised(request, target)?.send().await;
        let response = sent.map_err(|error| anyhow::Error::new(error.without_url()))?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        ensure!(response.status().is_success(), "the backend answers {}", response.status());
        let mut body = Vec::new();
        let mut pieces = response.bytes_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| anyhow::Error::new(error.without_url()))?;
            ensure!(
                body.len() + piece.len() <= LOAD_BYTES_MAX,
                "the backend's answer is too large"
            );
            body.extend_from_slice(&piece);
        }
        serde_json::from_slice(&body).map(Some).context("read the backend's answer")
    }
}

/// The text of a message that is complete.
fn message(event: &Value) -> Option<Said> {
    let item = &event["data"]["item"];
    if event["type"] != "item.completed" || item["kind"] != "message" {
        return None;
    }
    let role = item["role"].as_str().filter(|role| matches!(*role, "user" | "assistant"))?;
    let parts = item["content"].as_array()?.iter();
    let text = parts.filter(|part| part["type"] == "text").filter_map(|part| part["text"].as_str());
    let text = text.collect::<Vec<_>>().join("\n");
    (!text.is_empty()).then(|| Said { role: role.to_owned(), text })
}

/// What an order says of the conversation of its sandbox, if it is kept anywhere.
impl Conversation {
    pub(super) async fn of(app: &App, sandbox: SandboxId) -> model::Result<Option<Self>> {
        let Some((owner, order)) = Order::of(&app.vault, sandbox).await? else { return Ok(None) };
        Ok(order.persistence.map(|target| Self { sandbox, owner, target }))
    }
}

#[cfg(test)]
mod tests;
