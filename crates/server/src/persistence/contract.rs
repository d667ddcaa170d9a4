//! The wire contract that a backend implements, as an `OpenAPI` document: `docs/persistence.openapi.json`.
//! Nothing here runs; these are the bodies and the two calls as a backend sees them.

#![expect(dead_code, reason = "they are read by their description alone")]

use events::UniversalEvent;
use utoipa::openapi::OpenApi;
use utoipa::{OpenApi as _, ToSchema};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Bastide persistence",
        version = "1",
        description = "What a backend serves at a `persistence_url`, to keep conversations of agents. \
            Both calls carry the `persistence_auth_header` of the sandbox as `Authorization`, word for word.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(append, load)
)]
struct Contract;

/// The document.
pub fn contract() -> OpenApi {
    Contract::openapi()
}

/// Events of one conversation, in order.
#[derive(ToSchema)]
struct Batch {
    /// Of this contract.
    #[schema(example = 1)]
    version: u32,
    /// What is kept together: `session_id` of the create, else the sandbox's id.
    #[schema(example = "sb-01jd8q4n4mf2t9rj1y6w0v3k5c")]
    conversation: String,
    #[schema(example = "sb-01jd8q4n4mf2t9rj1y6w0v3k5c")]
    sandbox_id: String,
    /// Of the first event.
    #[schema(example = 1, minimum = 1)]
    first_sequence: u64,
    /// Of the last event.
    #[schema(example = 3, minimum = 1)]
    last_sequence: u64,
    events: Vec<Numbered>,
}

/// One event, with its place in the conversation.
#[derive(ToSchema)]
struct Numbered {
    /// From 1, going up. One that is missing was given up.
    #[schema(minimum = 1)]
    sequence: u64,
    event: UniversalEvent,
}

/// What is kept of a conversation.
#[derive(ToSchema)]
struct History {
    /// Of the last event that is kept, in this page or not.
    last_sequence: u64,
    /// In order.
    events: Vec<Numbered>,
}

/// Keep events
///
/// Keep those whose sequence is larger than the last one kept, in order, and answer once they are durable. A
/// batch comes again until it is answered with 2xx: the same `Idempotency-Key` has the same bytes.
#[utoipa::path(
    post, path = "/", operation_id = "append", request_body = Batch,
    params(("Idempotency-Key" = String, Header, description = "The same for the same batch",
        example = "sb-01jd8q4n4mf2t9rj1y6w0v3k5c:1-3")),
    responses(
        (status = 204, description = "Kept, or kept already. Any 2xx says so; the body is not read"),
        (status = 410, description = "Nothing more of this conversation is wanted; what waits is dropped"),
        (status = 413, description = "Too large: half of it comes next. An event that is too large alone is left out"),
        (status = 429, description = "Not now; `Retry-After` is honoured"),
        (status = "default", description = "Not kept: it comes again, later and later, for 72 hours"),
    )
)]
fn append() {}

/// Load a conversation
///
/// Asked when a sandbox is made with a `session_id`: how far the conversation is, and what was said.
#[utoipa::path(
    get, path = "/", operation_id = "load",
    params(
        ("conversation" = String, Query, description = "As in a batch"),
        ("after" = u64, Query, description = "Only events after this one"),
        ("limit" = u64, Query, description = "At most so many; 0 asks for `last_sequence` alone"),
    ),
    responses(
        (status = 200, description = "As far as it is kept", body = History),
        (status = 404, description = "No such conversation: it begins"),
    )
)]
fn load() {}
