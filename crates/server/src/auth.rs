//! Who calls: an API key in `Authorization: Bearer` or `X-API-KEY`.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use engine::Caller;
use model::Plan;

use crate::app::App;
use crate::refusal::Refusal;

/// The caller, verified. The first argument of every handler that needs one, so that nothing is
/// looked at before.
pub(crate) struct Who(pub(crate) Caller);

impl Who {
    pub(crate) fn is_operator(&self) -> bool {
        self.0.plan == Plan::Operator
    }
}

impl FromRequestParts<App> for Who {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        caller(app, &parts.headers).await.map(Self)
    }
}

/// Whose key the headers hold.
pub(crate) async fn caller(app: &App, headers: &HeaderMap) -> Result<Caller, Refusal> {
    let Some(secret) = credential(headers) else {
        return Err(Refusal::Unauthorized { sent: false });
    };
    match app.store.verify(secret).await? {
        Some(verified) => Ok(Caller { owner: verified.owner, plan: verified.plan }),
        None => Err(Refusal::Unauthorized { sent: true }),
    }
}

/// `Authorization` wins over `X-API-KEY`; a scheme other than Bearer is no credential.
fn credential(headers: &HeaderMap) -> Option<&str> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let (scheme, secret) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim());
    }
    headers.get("x-api-key")?.to_str().ok().map(str::trim)
}
