//! Ports inside, as HTTP, and links to them. What is passed on and what is not: `preview`.

use api::{PortLink, PortLinkRequest};
use axum::Json as Answer;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use crate::app::App;
use crate::auth::Who;
use crate::body::OptionalJson;
use crate::preview;
use crate::refusal::Refusal;
use crate::target::{NoQuery, PortTarget};

/// Speak HTTP to a port inside
///
/// Every method, and upgrades (WebSocket), are passed on to `127.0.0.1:port` in the sandbox with what
/// is below `{port}` as the path. Streams both ways. Takes the owner's key, or a signed link
/// (`bastide_link`), or the cookie that a browser gets for one. Credentials never reach the sandbox.
/// The same port is at the host `{port}-{id}.DOMAIN` where the server has a domain for it: there pages
/// have an origin of their own; here they have none (`Content-Security-Policy: sandbox`, no cookies).
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/ports/{port}/{path}", tag = "Ports", operation_id = "use_port",
    params(
        ("id" = String, Path, description = "Its id or its name; with a link, its id"),
        ("port" = u16, Path, description = "1 to 65535"),
        ("path" = String, Path, description = "What the server inside is asked for"),
        ("bastide_link" = Option<String>, Query, description = "A signed link, instead of a key"),
    ),
    responses(
        (status = "default", description = "Whatever the server inside answers, with its status"),
        (status = 303, description = "A browser opened a link: it has its cookie now"),
        (status = 400, description = "Not a port"),
        (status = 401, description = "No API key and no link, or one that does not work (any more)"),
        (status = 403, description = "Another site's page sent the request"),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 409, description = "`wrong_state`: the sandbox does not run"),
        (status = 502, description = "`port_closed`: nothing listens; `bad_gateway`: no HTTP"),
        (status = 504, description = "`gateway_timeout`: nothing came for too long"),
    )
)]
pub(crate) async fn proxy(State(app): State<App>, request: Request) -> Result<Response, Refusal> {
    preview::by_path(&app, request).await
}

/// Make a link to a port
///
/// It works without a key until it expires, or the sandbox is destroyed; for this port alone. The
/// body may be left out.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/ports/{port}/link", tag = "Ports",
    operation_id = "create_port_link", request_body(content = Option<PortLinkRequest>),
    params(
        ("id" = String, Path, description = "Its id or its name"),
        ("port" = u16, Path, description = "1 to 65535"),
    ),
    responses(
        (status = 201, description = "The link", body = PortLink),
        (status = 400, description = "Not a port, one of the guest's own, or a wrong time"),
        (status = 404, description = "No such sandbox, or another owner's"),
    )
)]
pub(crate) async fn link(
    State(app): State<App>,
    Who(caller): Who,
    PortTarget(sandbox, port): PortTarget,
    _none: NoQuery,
    OptionalJson(request): OptionalJson<PortLinkRequest>,
) -> Result<(StatusCode, Answer<PortLink>), Refusal> {
    let seconds = request.expires_seconds()?;
    let link = preview::link(&app, &caller, &sandbox, port, seconds).await?;
    Ok((StatusCode::CREATED, Answer(link)))
}
