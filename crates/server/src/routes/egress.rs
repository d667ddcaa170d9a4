//! What a sandbox reached and what was refused.

use api::{EgressLog, EgressQuery};
use axum::Json as Answer;
use axum::extract::State;

use crate::app::App;
use crate::auth::Who;
use crate::refusal::Refusal;
use crate::target::{RawQuery, Target};

/// Read the access log
///
/// Connections to the outside and names that were refused, with the verdict, its reason and what would
/// allow it. About the last MiB is kept, also over a stop, until the sandbox is destroyed. Follow it
/// by asking again with `after` set to `next`.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/egress", tag = "Sandboxes", operation_id = "read_egress_log",
    params(
        ("id" = String, Path, description = "Its id or its name"),
        ("after" = Option<u64>, Query, description = "Only what ended after this entry"),
        ("limit" = Option<u64>, Query, description = "At most so many; default 100, at most 1000"),
    ),
    responses(
        (status = 200, description = "The last entries, or those after `after`", body = EgressLog),
        (status = 400, description = "A parameter is wrong"),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 501, description = "The pool keeps no such log"),
    )
)]
pub(crate) async fn log(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    RawQuery(query): RawQuery,
) -> Result<Answer<EgressLog>, Refusal> {
    let EgressQuery { after, limit } = EgressQuery::parse(query.as_deref())?;
    let page = app.engine.accesses(&caller, &sandbox, after, limit).await?;
    Ok(Answer(EgressLog::new(&page.ended, &page.open, after)))
}
