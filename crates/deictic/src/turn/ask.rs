//! Asking the model once more: what it says is shown while it comes. As long as it has said nothing, a
//! failure that may pass is tried again, later each time.

use std::time::Duration;

use events::{ContentPart, ItemKind, ItemRole, ItemStatus, ReasoningVisibility};
use serde_json::json;

use super::{Shared, Trouble, Worker};
use crate::fault::Fault;
use crate::limits::Limits;
use crate::model::{Answer, Message, Piece, Request};
use crate::protocol::{Item, Said};
use crate::voice::Voice;

pub(super) async fn ask(worker: &Worker, messages: &[Message]) -> Result<Answer, Trouble> {
    let request = Request {
        system: &worker.system,
        messages,
        tools: worker.toolbox.specs(),
        output_tokens: worker.shared.limits.output_tokens,
    };
    let mut attempt = 0;
    loop {
        let mut speech = Speech::new(&worker.voice);
        let asked = once(&worker.shared, &request, &mut speech);
        let asked = worker.cancel.run_until_cancelled(asked).await;
        speech.close(matches!(asked, Some(Ok(_)))).await;
        let fault = match asked {
            None => return Err(Trouble::Interrupted),
            Some(Ok(answer)) => {
                worker.shared.meter.answered(answer.usage);
                return Ok(answer);
            }
            Some(Err(fault)) => fault,
        };
        let limits = &worker.shared.limits;
        if speech.spoke || !fault.may_pass() || attempt >= limits.retries {
            return Err(Trouble::Model(fault));
        }
        attempt += 1;
        let wait = wait_before(attempt, &fault, limits);
        let detail = json!({
            "attempt": attempt,
            "of": limits.retries,
            "wait_ms": u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            "code": fault.code(),
            "message": fault.to_string(),
        });
        worker.voice.status("api_retry", &detail).await;
        let slept = worker.cancel.run_until_cancelled(tokio::time::sleep(wait)).await;
        slept.ok_or(Trouble::Interrupted)?;
    }
}

/// Without showing it and without trying again.
pub(crate) async fn ask_once(shared: &Shared, request: &Request<'_>) -> Result<Answer, Fault> {
    let mut stream = shared.client.ask(request).await?;
    while stream.next().await?.is_some() {}
    let answer = stream.answer()?;
    shared.meter.answered(answer.usage);
    Ok(answer)
}

async fn once(
    shared: &Shared,
    request: &Request<'_>,
    speech: &mut Speech<'_>,
) -> Result<Answer, Fault> {
    let mut stream = shared.client.ask(request).await?;
    while let Some(piece) = stream.next().await? {
        speech.piece(piece).await;
    }
    stream.answer()
}

/// Twice as long each time, from half of it to all of it, so that many who failed together do not come back
/// together. What the vendor asks for counts if it is longer.
fn wait_before(attempt: u32, fault: &Fault, limits: &Limits) -> Duration {
    let doubled = limits.back_off.saturating_mul(1 << (attempt - 1).min(16));
    let random = f64::from(new_random()) / f64::from(u32::MAX);
    let ours = doubled.mul_f64(0.5 + random / 2.0);
    ours.max(fault.retry_after().unwrap_or_default()).min(limits.back_off_max)
}

fn new_random() -> u32 {
    let id = uuid::Uuid::new_v4();
    let bytes = id.as_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The items of one answer: a message for each run of text, one of reasoning for each run of thoughts.
struct Speech<'a> {
    voice: &'a Voice,
    open: Option<(Item, Kind)>,
    text: String,
    spoke: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
}

impl<'a> Speech<'a> {
    fn new(voice: &'a Voice) -> Self {
        Self { voice, open: None, text: String::new(), spoke: false }
    }

    async fn piece(&mut self, piece: Piece) {
        let (kind, delta) = match piece {
            Piece::Text(text) => (Kind::Text, text),
            Piece::Thinking(text) => (Kind::Thinking, text),
        };
        if self.open.as_ref().is_some_and(|(_, open)| *open != kind) {
            self.close(true).await;
        }
        if self.open.is_none() {
            self.spoke = true;
            let item = self.voice.item(ItemKind::Message, ItemRole::Assistant, Vec::new());
            self.voice.say(Said::ItemStarted { item: item.clone() }).await;
            self.open = Some((item, kind));
        }
        if let Some((item, _)) = &self.open {
            let id = item.id.clone();
            self.text.push_str(&delta);
            self.voice.say(Said::ItemDelta { id, delta }).await;
        }
    }

    async fn close(&mut self, fine: bool) {
        let Some((mut item, kind)) = self.open.take() else { return };
        let text = std::mem::take(&mut self.text);
        item.content = vec![match kind {
            Kind::Text => ContentPart::text(text),
            Kind::Thinking => {
                ContentPart::Reasoning { text, visibility: ReasoningVisibility::Public }
            }
        }];
        item.status = if fine { ItemStatus::Completed } else { ItemStatus::Failed };
        self.voice.say(Said::ItemCompleted { item }).await;
    }
}
