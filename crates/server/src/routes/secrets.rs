//! Bundles of secrets (000 *Secrets*). No answer, refusal or log line has a value.

use anyhow::Context;
use api::secrets::{Bundle, Bundles, CreateBundle, Deleted, RotateBundle, RotatedBundle};
use axum::Json as Answer;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use model::{BundleName, Error};
use store::BundleRecord;

use crate::app::App;
use crate::auth::Who;
use crate::body;
use crate::limits::BUNDLE_BODY_BYTES_MAX;
use crate::refusal::Refusal;
use crate::sessions::Sessions;
use crate::target::{BundleTarget, NoQuery};

/// Make a bundle of secrets
///
/// For the keys of model vendors and the like: a session names the bundles that it needs. The values
/// are in no answer, ever.
#[utoipa::path(
    post, path = "/v1/tenants/me/secrets", tag = "Secrets", operation_id = "create_bundle",
    request_body(content = CreateBundle),
    responses(
        (status = 201, description = "Made", body = Bundle),
        (status = 400, description = "A wrong or reserved name, a value above 64 KiB, more than 50 keys"),
        (status = 409, description = "You have a bundle of that name"),
        (status = 429, description = "You have 50 bundles"),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    who: Who,
    _none: NoQuery,
    request: Request,
) -> Result<(StatusCode, Answer<Bundle>), Refusal> {
    let bytes = body::read_up_to(request, &app, BUNDLE_BODY_BYTES_MAX).await?;
    let (name, values) = api::json::parse::<CreateBundle>(&bytes)?.check()?;
    let made = app.vault.create(&who.0.owner, &name, values).await?;
    Ok((StatusCode::CREATED, Answer(shown(made))))
}

/// List your bundles of secrets
#[utoipa::path(
    get, path = "/v1/tenants/me/secrets", tag = "Secrets", operation_id = "list_bundles",
    responses((status = 200, description = "By name, without values", body = Bundles))
)]
pub(crate) async fn list(
    State(app): State<App>,
    who: Who,
    _none: NoQuery,
) -> Result<Answer<Bundles>, Refusal> {
    let bundles = app.vault.list(&who.0.owner).await?;
    Ok(Answer(Bundles { bundles: bundles.into_iter().map(shown).collect() }))
}

/// Show a bundle, without its values
#[utoipa::path(
    get, path = "/v1/tenants/me/secrets/{name}", tag = "Secrets", operation_id = "get_bundle",
    params(("name" = String, Path, description = "Of the bundle")),
    responses(
        (status = 200, description = "It is there", body = Bundle),
        (status = 404, description = "You have none of that name"),
    )
)]
pub(crate) async fn get(
    State(app): State<App>,
    who: Who,
    BundleTarget(name): BundleTarget,
    _none: NoQuery,
) -> Result<Answer<Bundle>, Refusal> {
    Ok(Answer(shown(app.vault.get(&who.0.owner, &name).await?)))
}

/// Replace all values of a bundle
///
/// Keys may come and go. Sessions that run and name the bundle get the new values at once, and their
/// clients a `config_update` with the names; nothing is restarted.
#[utoipa::path(
    put, path = "/v1/tenants/me/secrets/{name}", tag = "Secrets", operation_id = "rotate_bundle",
    params(("name" = String, Path, description = "Of the bundle")),
    request_body(content = RotateBundle),
    responses(
        (status = 200, description = "Replaced", body = RotatedBundle),
        (status = 400, description = "A wrong or reserved name, a value above 64 KiB, more than 50 keys"),
        (status = 404, description = "You have none of that name"),
    )
)]
pub(crate) async fn rotate(
    State(app): State<App>,
    who: Who,
    BundleTarget(name): BundleTarget,
    _none: NoQuery,
    request: Request,
) -> Result<Answer<RotatedBundle>, Refusal> {
    let bytes = body::read_up_to(request, &app, BUNDLE_BODY_BYTES_MAX).await?;
    let values = api::json::parse::<RotateBundle>(&bytes)?.check()?;
    // Sessions get what the bundle has, also if the caller goes away.
    let rotated = app.clone().tasks.spawn(async move {
        let rotated = app.vault.rotate(&who.0.owner, &name, values).await?;
        Sessions::rotated(&app, &who.0, &name).await;
        Ok::<_, Error>(rotated)
    });
    let rotated = rotated.await.context("replace a bundle").map_err(Error::from)??;
    let (key_names, created_at) = (rotated.key_names, rotated.created_at);
    let last_rotated_at = rotated.rotated_at.unwrap_or(created_at);
    Ok(Answer(RotatedBundle { name: rotated.name.to_string(), key_names, last_rotated_at }))
}

/// Delete a bundle
///
/// Sessions that run keep what they were given; a later resume of one fails.
#[utoipa::path(
    delete, path = "/v1/tenants/me/secrets/{name}", tag = "Secrets", operation_id = "delete_bundle",
    params(("name" = String, Path, description = "Of the bundle")),
    responses(
        (status = 200, description = "Gone", body = Deleted),
        (status = 404, description = "You have none of that name"),
    )
)]
pub(crate) async fn delete(
    State(app): State<App>,
    who: Who,
    BundleTarget(name): BundleTarget,
    _none: NoQuery,
) -> Result<Answer<Deleted>, Refusal> {
    app.vault.delete(&who.0.owner, &name).await?;
    Ok(Answer(Deleted::default()))
}

/// What cannot be a name is as unknown as any other.
pub(crate) fn bundle_name(text: &str) -> Result<BundleName, Error> {
    text.parse().map_err(|_| Error::NotFound { what: "secret bundle", id: text.to_owned() })
}

fn shown(bundle: BundleRecord) -> Bundle {
    Bundle {
        name: bundle.name.to_string(),
        key_names: bundle.key_names,
        created_at: bundle.created_at,
        last_rotated_at: bundle.rotated_at,
    }
}
