//! What happened to an owner's sandboxes, live and resumable (ruling 21).

use api::StreamedEvent;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use engine::{EventId, Told};
use futures_util::{StreamExt, future};
use model::Error;

use crate::app::App;
use crate::auth::Who;
use crate::refusal::Refusal;
use crate::sse;
use crate::target::NoQuery;

/// Follow what happens to your sandboxes
///
/// Server-sent events: every change of state with its reason. Connect again with `Last-Event-ID`
/// and nothing is missed for 24 hours; after longer, an event `lost` comes first.
#[utoipa::path(
    get, path = "/v1/events", tag = "Events", operation_id = "follow_events",
    params(("Last-Event-ID" = Option<String>, Header,
        description = "The `id` of the last event seen; without it, from now on")),
    responses(
        (status = 200, description = "A stream; the `data` of each event is this",
            body = StreamedEvent, content_type = "text/event-stream"),
        (status = 400, description = "`Last-Event-ID` is not an id of ours"),
    )
)]
pub(crate) async fn events(
    State(app): State<App>,
    Who(caller): Who,
    _none: NoQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let after = headers
        .get("last-event-id")
        .map(|value| {
            let number = value.to_str().ok().and_then(|text| text.parse().ok());
            let wrong = || Error::invalid("Last-Event-ID", "not the id of an event of ours");
            number.map(EventId).ok_or_else(wrong)
        })
        .transpose()?;
    let told = app.engine.events(&caller, after).await?;
    let events = told
        .take_while(|told| {
            if let Err(error) = told {
                tracing::warn!(error = format!("{error:#}"), "an event stream broke off");
            }
            future::ready(told.is_ok())
        })
        .filter_map(|told| future::ready(told.ok().map(shown)));
    Ok(sse::answer(&app, events))
}

fn shown(told: Told) -> Event {
    match told {
        Told::Lost => sse::event("lost", &serde_json::json!({})),
        Told::Event(stored) => {
            let id = stored.id.0.to_string();
            let event = StreamedEvent::new(id.clone(), stored.event);
            sse::event(&event.kind.name(), &event).id(id)
        }
    }
}
