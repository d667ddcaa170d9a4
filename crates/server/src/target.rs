//! Path parameters and query strings, as handlers want them.

use api::query::Query;
use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use blobs::Key;
use model::{
    BundleName, Error, ExecId, OrganisationId, OwnerId, SandboxRef, SessionId, TemplateName,
    WorkspaceId,
};

use crate::app::App;
use crate::preview::port_number;
use crate::refusal::Refusal;
use crate::routes::secrets::bundle_name;
use crate::routes::workspaces::no_workspace;

/// `{id}`: what is neither an id nor a name is as unknown as any other.
pub(crate) struct Target(pub(crate) SandboxRef);

/// `{id}` of a session: what is none is as unknown as any other.
pub(crate) struct SessionTarget(pub(crate) SessionId);

/// `{id}` and `{exec_id}`.
pub(crate) struct ExecTarget(pub(crate) SandboxRef, pub(crate) ExecId);

/// `{id}` and `{port}`.
pub(crate) struct PortTarget(pub(crate) SandboxRef, pub(crate) u16);

/// `{key_id}`.
pub(crate) struct KeyTarget(pub(crate) String);

/// `{app_id}` of the catalogue.
pub(crate) struct AppTarget(pub(crate) String);

/// `{name}` of a bundle of secrets.
pub(crate) struct BundleTarget(pub(crate) BundleName);

/// `{owner}`.
pub(crate) struct OwnerTarget(pub(crate) OwnerId);

/// `{organisation}`.
pub(crate) struct OrganisationTarget(pub(crate) OrganisationId);

/// `{organisation}` and `{owner}`.
pub(crate) struct MemberTarget(pub(crate) OrganisationId, pub(crate) OwnerId);
/// `{app_id}` and `{capset_id}`.
pub(crate) struct WorkspaceTarget(pub(crate) WorkspaceId);

/// The same, and what follows `files/`.
pub(crate) struct FileTarget(pub(crate) WorkspaceId, pub(crate) Key);

/// The same, of an owner who is named.
pub(crate) struct LinkTarget(pub(crate) OwnerId, pub(crate) WorkspaceId, pub(crate) Key);

/// A template by the name in the path.
pub(crate) struct TemplateTarget(pub(crate) TemplateName);

/// The query string as it came.
pub(crate) struct RawQuery(pub(crate) Option<String>);

/// For endpoints that take no query: a parameter that would be ignored is refused.
pub(crate) struct NoQuery;

impl FromRequestParts<App> for NoQuery {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Refusal> {
        Query::parse(parts.uri.query(), &[])?;
        Ok(Self)
    }
}

impl FromRequestParts<App> for Target {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let id = parameter(parts, app, "id").await?;
        Ok(Self(id.parse()?))
    }
}

impl FromRequestParts<App> for SessionTarget {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        Ok(Self(parameter(parts, app, "id").await?.parse()?))
    }
}

impl FromRequestParts<App> for ExecTarget {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let id = parameter(parts, app, "id").await?.parse()?;
        let exec = parameter(parts, app, "exec_id").await?.parse()?;
        Ok(Self(id, exec))
    }
}

impl FromRequestParts<App> for PortTarget {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let id = parameter(parts, app, "id").await?.parse()?;
        let port = port_number(&parameter(parts, app, "port").await?)?;
        Ok(Self(id, port))
    }
}

impl FromRequestParts<App> for KeyTarget {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        parameter(parts, app, "key_id").await.map(Self)
    }
}

impl FromRequestParts<App> for AppTarget {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        parameter(parts, app, "app_id").await.map(Self)
    }
}

impl FromRequestParts<App> for BundleTarget {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        Ok(Self(bundle_name(&parameter(parts, app, "name").await?)?))
    }
}

impl FromRequestParts<App> for OwnerTarget {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let text = parameter(parts, app, "owner").await?;
        let unknown = |_| Error::NotFound { what: "owner", id: text.clone() };
        Ok(Self(text.parse().map_err(unknown)?))
    }
}

impl FromRequestParts<App> for OrganisationTarget {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        Ok(Self(parameter(parts, app, "organisation").await?.parse()?))
    }
}

impl FromRequestParts<App> for MemberTarget {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let OrganisationTarget(id) = OrganisationTarget::from_request_parts(parts, app).await?;
        let OwnerTarget(owner) = OwnerTarget::from_request_parts(parts, app).await?;
        Ok(Self(id, owner))
    }
}

impl FromRequestParts<App> for TemplateTarget {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let name = parameter(parts, app, "name").await?;
        // A name that cannot be is one that is not there.
        let none = |_| Error::NotFound { what: "template", id: "(not a name)".into() };
        Ok(Self(name.parse().map_err(none)?))
    }
}

impl FromRequestParts<App> for WorkspaceTarget {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let app_id = parameter(parts, app, "app_id").await?;
        let capset_id = parameter(parts, app, "capset_id").await?;
        let workspace = WorkspaceId::new(&app_id, &capset_id);
        Ok(Self(workspace.map_err(|_| no_workspace(&format!("{app_id}/{capset_id}")))?))
    }
}

impl FromRequestParts<App> for FileTarget {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let WorkspaceTarget(workspace) = WorkspaceTarget::from_request_parts(parts, app).await?;
        Ok(Self(workspace, parameter(parts, app, "path").await?.parse()?))
    }
}

impl FromRequestParts<App> for LinkTarget {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let FileTarget(workspace, key) = FileTarget::from_request_parts(parts, app).await?;
        Ok(Self(parameter(parts, app, "owner").await?.parse()?, workspace, key))
    }
}

impl FromRequestParts<App> for RawQuery {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Refusal> {
        Ok(Self(parts.uri.query().map(str::to_owned)))
    }
}

async fn parameter(parts: &mut Parts, app: &App, name: &str) -> Result<String, Refusal> {
    let nothing = || Refusal::Failed(Error::no_sandbox("(not UTF-8)"));
    let all = RawPathParams::from_request_parts(parts, app).await.map_err(|_| nothing())?;
    let found = all.iter().find(|(key, _)| *key == name);
    found.map(|(_, value)| value.to_owned()).ok_or_else(nothing)
}
