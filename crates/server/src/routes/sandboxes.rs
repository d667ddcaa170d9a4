//! Making, finding, changing and deleting sandboxes.

use api::sandbox::{CheckedPatch, PartialSandboxes};
use api::{CreateSandbox, PatchSandbox, Sandbox, SandboxList};
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use engine::Idempotency;
use model::{Change, Error};
use sha2::{Digest, Sha256};

use crate::app::App;
use crate::audit::About;
use crate::auth::Who;
use crate::body::Json;
use crate::limits::IDEMPOTENCY_KEY_BYTES_MAX;
use crate::oneshot;
use crate::order::Order;
use crate::refusal::Refusal;
use crate::target::{NoQuery, Target};

/// Create a sandbox
///
/// Answers once it runs. Send exactly one of `template` and `image`; they differ in their default
/// clocks. With an `Idempotency-Key` the same request gives the same sandbox for 24 hours, whatever
/// breaks in between.
#[utoipa::path(
    post, path = "/v1/sandboxes", tag = "Sandboxes", operation_id = "create_sandbox", request_body = CreateSandbox,
    params(("Idempotency-Key" = Option<String>, Header,
        description = "1 to 255 printable characters, yours to choose")),
    responses(
        (status = 201, description = "It runs", body = Sandbox),
        (status = 400, description = "A field is missing, unknown or wrong; `field` names it"),
        (status = 402, description = "`credits_exhausted`: there is no credit left"),
        (status = 409, description = "`no_capacity`: no room on any pool; `name_taken`"),
        (status = 413, description = "The body is too large"),
        (status = 422, description = "`idempotency_mismatch`: the key came with another request"),
        (status = 429, description = "`quota_exceeded`; `Retry-After` says when to come back"),
        (status = 501, description = "Unknown agent or template, or one that is not built here yet"),
        (status = 503, description = "No pool answers"),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    Who(caller): Who,
    _none: NoQuery,
    headers: HeaderMap,
    body: Json<CreateSandbox>,
) -> Result<Response, Refusal> {
    let idempotency = idempotency(&headers, &body.bytes)?;
    let checked = body.value.check()?;
    let mut sandbox = checked.sandbox;
    if let Some(agent) = checked.agent {
        if let Some((field, url)) = &agent.base_url {
            app.upstream.check(field, url).await?;
        }
        if let Some(wanted) = &agent.persistence {
            app.persistence.check(&wanted.url).await?;
        }
        sandbox.agent = Some(Order::seal(&app.vault, &caller.owner, agent)?);
    }
    let created = app.engine.create(&caller, sandbox, idempotency).await?;
    oneshot::watch(&app, &created.sandbox.spec);
    let id = created.sandbox.spec.id;
    let (about, location) = (About(id.to_string()), format!("/v1/sandboxes/{id}"));
    let shown = Answer(app.shown(&created.sandbox));
    let created_at = (StatusCode::CREATED, Extension(about), [(LOCATION, location)], shown);
    let mut response = created_at.into_response();
    if created.replayed {
        let headers = response.headers_mut();
        headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// List your sandboxes
///
/// An array; when a pool does not answer, an object with `partial: true` and what is known.
#[utoipa::path(
    get, path = "/v1/sandboxes", tag = "Sandboxes", operation_id = "list_sandboxes",
    responses(
        (status = 200, description = "All of them, or the reachable ones", body = SandboxList),
        (status = 503, description = "No pool answers"),
    )
)]
pub(crate) async fn list(
    State(app): State<App>,
    Who(caller): Who,
    _none: NoQuery,
) -> Result<Answer<SandboxList>, Refusal> {
    let listing = app.engine.list(&caller).await?;
    let sandboxes = listing.sandboxes.iter().map(|sandbox| app.shown(sandbox)).collect();
    Ok(Answer(if listing.partial {
        SandboxList::Partial(PartialSandboxes { sandboxes, partial: true })
    } else {
        SandboxList::All(sandboxes)
    }))
}

/// Get one sandbox
///
/// A destroyed one is shown for another 60 seconds, with its `end_reason`.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}", tag = "Sandboxes", operation_id = "get_sandbox",
    params(("id" = String, Path, description = "Its id or its name")),
    responses(
        (status = 200, description = "Found", body = Sandbox),
        (status = 404, description = "No such sandbox, or another owner's"),
    )
)]
pub(crate) async fn get(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    _none: NoQuery,
) -> Result<Answer<Sandbox>, Refusal> {
    Ok(Answer(app.shown(&app.engine.get(&caller, &sandbox).await?)))
}

/// Rename a sandbox, or change its policy or its agent's key
///
/// A new policy takes effect at once: connections that it does not allow are cut. A new key is used from
/// the agent's next call to its model on; nothing is restarted.
#[utoipa::path(
    patch, path = "/v1/sandboxes/{id}", tag = "Sandboxes", operation_id = "change_sandbox", request_body = PatchSandbox,
    params(("id" = String, Path, description = "Its id or its name")),
    responses(
        (status = 200, description = "Changed", body = Sandbox),
        (status = 400, description = "A bad name, an unknown policy, a key without an agent, or nothing to change"),
        (status = 404, description = "No such sandbox, or another owner's"),
        (status = 409, description = "`name_taken` by another of your sandboxes; `wrong_state`"),
    )
)]
pub(crate) async fn patch(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    _none: NoQuery,
    body: Json<PatchSandbox>,
) -> Result<(Extension<About>, Answer<Sandbox>), Refusal> {
    let CheckedPatch { change, llm_key } = body.value.check()?;
    let mut about = String::new();
    if let Some(name) = &change.name {
        about.push_str(&format!(" name={name}"));
    }
    if let Some(policy) = &change.policy {
        about.push_str(&format!(" policy={policy}"));
    }
    let mut seen = app.engine.get(&caller, &sandbox).await?;
    if let Some(key) = llm_key {
        let has_agent = Order::rotate(&app.vault, seen.spec.id, key).await?;
        if !has_agent {
            return Err(Error::invalid("llm_key", "the sandbox has no agent").into());
        }
        about.push_str(" llm_key");
    }
    if change != Change::default() {
        seen = app.engine.update(&caller, &sandbox, change).await?;
    }
    let about = About(format!("{}{about}", seen.spec.id));
    Ok((Extension(about), Answer(app.shown(&seen))))
}

/// Destroy a sandbox
///
/// From any state, also a broken one. Answers once every process is dead, its data is gone and its
/// name is free. Asking again within 60 seconds is 200 again.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}", tag = "Sandboxes", operation_id = "delete_sandbox",
    params(("id" = String, Path, description = "Its id or its name")),
    responses(
        (status = 200, description = "Destroyed", body = Sandbox),
        (status = 404, description = "No such sandbox, or another owner's"),
    )
)]
pub(crate) async fn delete(
    State(app): State<App>,
    Who(caller): Who,
    Target(sandbox): Target,
    _none: NoQuery,
) -> Result<(Extension<About>, Answer<Sandbox>), Refusal> {
    let deleted = app.engine.delete(&caller, &sandbox).await?;
    let about = About(deleted.spec.id.to_string());
    Ok((Extension(about), Answer(app.shown(&deleted))))
}

/// The same JSON spelled another way is the same request.
fn idempotency(headers: &HeaderMap, body: &[u8]) -> Result<Option<Idempotency>, Refusal> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| {
        let fits = !key.is_empty() && key.len() <= IDEMPOTENCY_KEY_BYTES_MAX;
        fits && key.bytes().all(|c| (b' '..=b'~').contains(&c))
    });
    let Some(key) = key else {
        let detail = format!("must be 1 to {IDEMPOTENCY_KEY_BYTES_MAX} printable characters");
        return Err(Error::invalid("Idempotency-Key", detail).into());
    };
    let canonical = serde_json::from_slice::<serde_json::Value>(body)
        .map(|value| value.to_string())
        .map_err(|error| Error::invalid("body", error.to_string()))?;
    let body_sha256 = Sha256::digest(canonical).into();
    Ok(Some(Idempotency { key: key.to_owned(), body_sha256 }))
}
