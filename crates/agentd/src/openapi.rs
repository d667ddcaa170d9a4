//! The document of the daemon's HTTP interface: the contract, and what is ours beside it.

use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};

use crate::adapter::{McpServer, PermissionReply};
use crate::api::{AgentError, ErrorType, ServerStatus, ServerStatusInfo};
use crate::http::{agents, sessions, stream};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Bastide agent daemon",
        description = "One HTTP interface in front of every coding agent.",
        license(name = "Apache-2.0")
    ),
    servers((url = "http://localhost:2468")),
    tags(
        (name = "meta", description = "Service metadata"),
        (name = "agents", description = "Agent management"),
        (name = "sessions", description = "Session management"),
    ),
    security(("token" = [])),
    modifiers(&TokenScheme),
    paths(
        crate::http::health,
        agents::list,
        agents::install,
        agents::modes,
        agents::models,
        sessions::list,
        sessions::create,
        sessions::message,
        sessions::interrupt,
        sessions::terminate,
        sessions::reply_permission,
        sessions::reply_question,
        sessions::reject_question,
        stream::events,
        stream::events_sse,
        stream::message_stream,
    ),
    components(schemas(
        AgentError,
        ErrorType,
        EventsQuery,
        McpServer,
        PermissionReply,
        ServerStatus,
        ServerStatusInfo,
        TurnStreamQuery,
    ))
)]
struct Document;

/// As JSON, for tools and for review.
pub fn openapi() -> String {
    let mut text = Document::openapi().to_pretty_json().expect("a document is JSON");
    text.push('\n');
    text
}

struct TokenScheme;

impl Modify for TokenScheme {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("The token of the daemon; the scheme Token is taken too"));
        components.add_security_scheme("token", SecurityScheme::Http(scheme.build()));
    }
}

/// The parameters of reading events, as one thing.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
struct EventsQuery {
    offset: Option<u64>,
    limit: Option<u64>,
    include_raw: Option<bool>,
}

/// The parameters of following a turn, as one thing.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
struct TurnStreamQuery {
    include_raw: Option<bool>,
}
