//! Delivering one conversation: batches, in order, each the same however often it is sent.
//!
//! A batch has an end that is written down before it is sent for the first time. So what is repeated, by this
//! server or by the next, has the same `Idempotency-Key` and the same bytes.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::json;
use store::{Persisted, PersistedEvent};
use url::Url;

use super::{Delivered, Persistence};
use crate::order::Target;

/// Of the events of a batch; a single one may be larger.
const BATCH_BYTES_MAX: usize = 1 << 20;
const BATCH_EVENTS_MAX: u32 = 500;
/// Batches before another conversation has its turn.
const BATCHES_MAX: usize = 32;
/// From the connection to the answer's head. Its body is not read.
const POST_MAX: Duration = Duration::from_secs(30);
/// The longest pause that a backend may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);
/// What a backend does not take for so long is given up.
const KEPT_FOR: SignedDuration = SignedDuration::from_hours(72);

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const AGENT: HeaderValue = HeaderValue::from_static("bastide-persistence/1");

/// What a backend made of a batch.
enum Answer {
    Kept,
    /// Too large for it.
    TooLarge,
    /// It wants nothing more of this conversation.
    Gone,
    /// Whatever else: it may take it another time.
    NotNow {
        why: String,
        retry_after: Option<Duration>,
    },
}

impl Persistence {
    /// Sends what waits, until nothing does, it fails, or it was enough for one turn.
    pub(super) async fn deliver(&self, id: String) -> (String, Delivered) {
        for _ in 0..BATCHES_MAX {
            match self.deliver_batch(&id).await {
                Ok(None) => break,
                Ok(Some(Answer::Kept | Answer::TooLarge | Answer::Gone)) => {}
                Ok(Some(Answer::NotNow { why, retry_after })) => {
                    tracing::warn!(
                        conversation = id,
                        why,
                        "a backend does not take a conversation"
                    );
                    return (id, Delivered::Failed { retry_after });
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(conversation = id, error, "could not deliver a conversation");
                    return (id, Delivered::Failed { retry_after: None });
                }
            }
        }
        (id, Delivered::Well)
    }

    /// `None` when there is nothing to deliver.
    async fn deliver_batch(&self, id: &str) -> Result<Option<Answer>> {
        let Some(mut known) = self.store.persisted(id).await? else { return Ok(None) };
        let most = BATCH_EVENTS_MAX;
        let events = self.store.persisted_events(id, known.delivered, most).await?;
        let Some(first) = events.first() else { return Ok(None) };
        if first.at < Timestamp::now() - KEPT_FOR {
            self.give_up(id, &events).await?;
            return Ok(Some(Answer::Gone));
        }
        let target: Target = self.open(&known)?;
        let base = match known.base {
            Some(base) => base,
            None => self.begin(&known, &target).await?,
        };
        let batch = cut(&known, events);
        let last = batch.last().context("a batch has an event")?.sequence;
        if known.sending != last {
            self.store.send_persisted(id, last).await?;
            known.sending = last;
        }
        let answer = self.post(&known, &target, Batch { base, events: &batch }).await?;
        match &answer {
            Answer::Kept => self.store.forget_persisted(id, last).await?,
            Answer::TooLarge if batch.len() > 1 => {
                let half = batch[batch.len() / 2 - 1].sequence;
                self.store.send_persisted(id, half).await?;
            }
            Answer::TooLarge => {
                tracing::warn!(
                    conversation = id,
                    "an event is too large for its backend: left out"
                );
                self.store.forget_persisted(id, last).await?;
            }
            Answer::Gone => {
                tracing::warn!(conversation = id, "a backend wants no more of a conversation");
                self.store.forget_persisted(id, known.appended).await?;
            }
            Answer::NotNow { .. } => {}
        }
        Ok(Some(answer))
    }

    fn open(&self, known: &Persisted) -> Result<Target> {
        // Its error would repeat what it cannot read.
        let unread = |_| anyhow::anyhow!("where the conversation is kept cannot be read");
        serde_json::from_slice(&self.vault.target(known)?).map_err(unread)
    }

    /// What the backend has of a conversation that this one continues is not numbered again.
    async fn begin(&self, known: &Persisted, target: &Target) -> Result<u64> {
        let base = match &target.continues {
            None => 0,
            Some(conversation) => self.last_sequence(target, conversation).await?,
        };
        self.store.set_persisted_base(&known.conversation, base).await?;
        Ok(base)
    }

    async fn give_up(&self, id: &str, events: &[PersistedEvent]) -> Result<()> {
        let too_old = Timestamp::now() - KEPT_FOR;
        let lost = events.iter().take_while(|event| event.at < too_old);
        let (count, last) = lost.fold((0, 0), |(count, _), event| (count + 1, event.sequence));
        tracing::warn!(conversation = id, lost = count, "a backend took events for too long: lost");
        Ok(self.store.forget_persisted(id, last).await?)
    }

    async fn post(&self, known: &Persisted, target: &Target, batch: Batch<'_>) -> Result<Answer> {
        let url = Url::parse(&target.url).context("read a persistence URL")?;
        let client = self.client(&url).await?;
        let conversation = target.continues.as_deref().unwrap_or(&known.conversation);
        let body = batch.body(conversation, &known.conversation);
        let request = client
            .post(url)
            .timeout(POST_MAX)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(IDEMPOTENCY_KEY, batch.key(&known.conversation))
            .body(body);
        let sent = authorised(request, target)?.send().await;
        Ok(match sent {
            Ok(response) => answer(&response),
            Err(error) => {
                // Never its URL: a query may say more than the reader of a log should know.
                let why = format!("{:#}", anyhow::Error::new(error.without_url()));
                Answer::NotNow { why, retry_after: None }
            }
        })
    }

    pub(super) async fn client(&self, url: &Url) -> Result<&Client> {
        let client = self.upstream.client(url).await;
        client.map_err(|why| anyhow::anyhow!("the persistence URL {why}"))
    }
}

/// With the caller's own credentials, word for word.
pub(super) fn authorised(request: RequestBuilder, target: &Target) -> Result<RequestBuilder> {
    let request = request.header(USER_AGENT, AGENT);
    let Some(secret) = &target.auth_header else { return Ok(request) };
    let Ok(mut value) = HeaderValue::from_str(&secret.0) else {
        bail!("the authorization of the backend cannot be sent");
    };
    value.set_sensitive(true);
    Ok(request.header(AUTHORIZATION, value))
}

/// What goes next: up to where a batch that was begun ends, or as much as fits.
fn cut(known: &Persisted, mut events: Vec<PersistedEvent>) -> Vec<PersistedEvent> {
    if known.sending > known.delivered {
        events.retain(|event| event.sequence <= known.sending);
        return events;
    }
    let mut bytes = 0;
    let fits = events.iter().take_while(|event| {
        bytes += event.event.len();
        bytes <= BATCH_BYTES_MAX
    });
    let count = fits.count().max(1);
    events.truncate(count);
    events
}

/// Events with the numbers that the backend knows them by.
#[derive(Clone, Copy)]
struct Batch<'a> {
    base: u64,
    events: &'a [PersistedEvent],
}

impl Batch<'_> {
    fn bounds(&self) -> (u64, u64) {
        let of = |event: Option<&PersistedEvent>| event.map_or(0, |one| self.base + one.sequence);
        (of(self.events.first()), of(self.events.last()))
    }

    fn key(&self, sandbox: &str) -> String {
        let (first, last) = self.bounds();
        format!("{sandbox}:{first}-{last}")
    }

    /// The events are put in as they were kept, so that a repeated batch is the same to the byte.
    fn body(&self, conversation: &str, sandbox: &str) -> String {
        let (first, last) = self.bounds();
        let head = json!({
            "version": 1, "conversation": conversation, "sandbox_id": sandbox,
            "first_sequence": first, "last_sequence": last,
        });
        let events = self.events.iter().map(|one| {
            format!("{{\"sequence\":{},\"event\":{}}}", self.base + one.sequence, one.event)
        });
        let events = events.collect::<Vec<_>>().join(",");
        let head = head.to_string();
        format!("{},\"events\":[{events}]}}", head.trim_end_matches('}'))
    }
}

fn answer(response: &Response) -> Answer {
    let status = response.status();
    match status {
        StatusCode::PAYLOAD_TOO_LARGE => Answer::TooLarge,
        StatusCode::GONE => Answer::Gone,
        status if status.is_success() => Answer::Kept,
        status => {
            let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let retry_after = asked.and_then(pause).map(|pause| pause.min(RETRY_AFTER_MAX));
            Answer::NotNow { why: format!("it answers {status}"), retry_after }
        }
    }
}

/// Seconds, or a date.
fn pause(asked: &str) -> Option<Duration> {
    if let Ok(seconds) = asked.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = rfc2822::DateTimeParser::new().parse_timestamp(asked.trim()).ok()?;
    Some(Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default())
}
