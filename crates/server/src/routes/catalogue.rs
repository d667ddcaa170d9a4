//! The catalogue of agents (000 *Templates catalog*).

use api::catalogue::Catalogue;
use axum::Json as Answer;
use axum::extract::State;
use jiff::Timestamp;
use model::{Error, catalogue};
use store::AuditEntry;

use crate::app::App;
use crate::auth::Who;
use crate::refusal::Refusal;
use crate::target::{AppTarget, NoQuery};

/// List the agents that a session may ask for
///
/// Everything here is accepted by a session's create.
#[utoipa::path(
    get, path = "/v1/templates", tag = "Catalogue", operation_id = "list_catalogue",
    responses(
        (status = 200, description = "All of them", body = Catalogue),
        (status = 429, description = "Asked too often; `Retry-After` says when to ask again"),
    )
)]
pub(crate) async fn list(
    State(app): State<App>,
    who: Who,
    _none: NoQuery,
) -> Result<Answer<Catalogue>, Refusal> {
    app.catalogue_rate.count(who.0.owner.as_str())?;
    Ok(Answer(Catalogue::of(catalogue::CATALOGUE)))
}

/// Show one agent of the catalogue
#[utoipa::path(
    get, path = "/v1/templates/{app_id}", tag = "Catalogue", operation_id = "get_catalogue_entry",
    params(("app_id" = String, Path, description = "As the catalogue has it")),
    responses(
        (status = 200, description = "The list, with this one alone", body = Catalogue),
        (status = 404, description = "The catalogue has no such agent"),
        (status = 429, description = "Asked too often; `Retry-After` says when to ask again"),
    )
)]
pub(crate) async fn get(
    State(app): State<App>,
    who: Who,
    AppTarget(id): AppTarget,
    _none: NoQuery,
) -> Result<Answer<Catalogue>, Refusal> {
    app.catalogue_rate.count(who.0.owner.as_str())?;
    let Some(entry) = catalogue::entry(&id) else {
        let shown: String = id.chars().take(SHOWN_MAX).collect();
        let entry = AuditEntry {
            at: Timestamp::now(),
            actor: who.0.owner.to_string(),
            action: "template_not_found".into(),
            target: shown.clone(),
            outcome: "404".into(),
            address: String::new(),
        };
        app.store.audit(entry).await?;
        return Err(Error::NotFound { what: "template", id: shown }.into());
    };
    Ok(Answer(Catalogue::of(std::slice::from_ref(entry))))
}

/// Characters of an unknown id that are repeated.
const SHOWN_MAX: usize = 128;
