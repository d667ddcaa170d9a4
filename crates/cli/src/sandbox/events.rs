//! `bastide sandbox events`: what happens to sandboxes, as it happens. A lost connection is taken
//! up again after the last event that was seen.

use std::time::Duration;

use api::StreamedEvent;
use clap::Args;
use http::{Method, header};
use model::SandboxId;

use crate::client::sse::{Event, Events};
use crate::client::{Client, empty};
use crate::failure::Failure;
use crate::out;

const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// Without one event or answer in between.
const RECONNECTS_MAX: u32 = 30;

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Only this sandbox's, by id
    #[arg(value_name = "SANDBOX")]
    id: Option<SandboxId>,
    /// Begin after this event; without it, with what happens next
    #[arg(long, value_name = "EVENT")]
    after: Option<String>,
}

pub(super) async fn events(client: &Client, args: EventsArgs, json: bool) -> Result<(), Failure> {
    let only = args.id.map(|id| id.to_string());
    let mut last = args.after;
    let mut failures = 0;
    loop {
        let mut events = match open(client, last.as_deref()).await {
            Ok(events) => events,
            Err(failure) if failures == 0 || failures >= RECONNECTS_MAX => return Err(failure),
            Err(_) => {
                failures += 1;
                tokio::time::sleep(RECONNECT_AFTER).await;
                continue;
            }
        };
        while let Ok(Some(event)) = events.next().await {
            failures = 0;
            if event.id.is_some() {
                last.clone_from(&event.id);
            }
            show(&event, only.as_deref(), json)?;
        }
        failures += 1;
        tokio::time::sleep(RECONNECT_AFTER).await;
    }
}

async fn open(client: &Client, last: Option<&str>) -> Result<Events, Failure> {
    let mut request =
        client.request(Method::GET, "/v1/events").header(header::ACCEPT, "text/event-stream");
    if let Some(last) = last {
        request = request.header("Last-Event-ID", last);
    }
    let request = request
        .body(empty())
        .map_err(|error| Failure::new(format!("not the id of an event: {error}")))?;
    Ok(Events::new(client.send(request).await?))
}

fn show(event: &Event, only: Option<&str>, json: bool) -> Result<(), Failure> {
    if event.event == "lost" {
        out::note("warning: events older than a day were asked for and are lost");
        return Ok(());
    }
    let Ok(parsed) = serde_json::from_str::<StreamedEvent>(&event.data) else { return Ok(()) };
    if only.is_some_and(|id| id != parsed.sandbox_id) {
        return Ok(());
    }
    if json {
        return out::json_line(&parsed);
    }
    let kind = parsed.kind.name();
    let reason = parsed
        .reason
        .and_then(|reason| serde_json::to_value(reason).ok())
        .and_then(|reason| reason.as_str().map(str::to_owned))
        .unwrap_or_default();
    let line = format!("{}  {}  {kind}  {reason}", parsed.at, parsed.sandbox_id);
    out::line(line.trim_end());
    Ok(())
}
