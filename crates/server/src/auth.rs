//! Who calls: an API key in `Authorization: Bearer` or `X-API-KEY`, an account's token, or one of the
//! issuer that is trusted.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use engine::Caller;
use jiff::Timestamp;
use model::{Email, OwnerId, Plan};
use store::{Admission, Rate};

use crate::accounts::proxies::attempter;
use crate::app::App;
use crate::audit::Trail;
use crate::listen::PeerAddress;
use crate::refusal::Refusal;

/// The caller, verified. The first argument of every handler that needs one, so that nothing is
/// looked at before.
pub(crate) struct Who(pub(crate) Caller);

/// The same for what an API key may not do, so that a key that leaked cannot make others: the account
/// itself, or the operator.
pub(crate) struct Holder(pub(crate) Caller);

/// The operator, and nobody else.
pub(crate) struct Operator;

/// A request that takes no credential. The first argument of its handler: too many of them from one
/// address are refused before anything is done for them.
pub(crate) struct Attempt(Trail);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    Key,
    Token,
}

impl Who {
    pub(crate) fn is_operator(&self) -> bool {
        self.0.plan == Plan::Operator
    }
}

impl Holder {
    pub(crate) fn is_operator(&self) -> bool {
        self.0.plan == Plan::Operator
    }
}

impl Attempt {
    /// For the audit log.
    pub(crate) fn is_about(&self, email: &Email) {
        self.0.is_about(email);
    }
}

impl FromRequestParts<App> for Who {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let caller = caller(app, &parts.headers).await?;
        trail(parts).is_by(&caller.owner);
        Ok(Self(caller))
    }
}

impl FromRequestParts<App> for Operator {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let who = Who::from_request_parts(parts, app).await?;
        if !who.is_operator() {
            return Err(Refusal::Forbidden("only the operator's key does this"));
        }
        Ok(Self)
    }
}

impl FromRequestParts<App> for Holder {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let (caller, proof) = known(app, &parts.headers).await?;
        trail(parts).is_by(&caller.owner);
        match (caller, proof) {
            (caller, Proof::Token) => Ok(Self(caller)),
            (caller, Proof::Key) if caller.plan == Plan::Operator => Ok(Self(caller)),
            (_, Proof::Key) => Err(Refusal::TokenRequired),
        }
    }
}

impl FromRequestParts<App> for Attempt {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let Some(PeerAddress(peer)) = parts.extensions.get::<PeerAddress>().copied() else {
            return Ok(Self(trail(parts)));
        };
        let client = attempter(app.accounts.proxies.client(peer.ip(), &parts.headers));
        admit(app, &format!("attempt:{client}"), app.accounts.attempts).await?;
        Ok(Self(trail(parts)))
    }
}

/// What is told to the audit log; nothing for requests that it does not hear of.
fn trail(parts: &Parts) -> Trail {
    parts.extensions.get::<Trail>().cloned().unwrap_or_default()
}

/// Counts one more, or refuses it.
pub(crate) async fn admit(app: &App, bucket: &str, rate: Rate) -> Result<(), Refusal> {
    match app.store.admit(bucket, rate, Timestamp::now()).await? {
        Admission::Granted => Ok(()),
        Admission::Refused { retry_after } => Err(Refusal::RateLimited { retry_after }),
    }
}

/// Whose key or token the headers hold.
pub(crate) async fn caller(app: &App, headers: &HeaderMap) -> Result<Caller, Refusal> {
    Ok(known(app, headers).await?.0)
}

async fn known(app: &App, headers: &HeaderMap) -> Result<(Caller, Proof), Refusal> {
    let Some(secret) = credential(headers) else {
        return Err(Refusal::Unauthorized { sent: false });
    };
    if let Some(verified) = app.store.verify(secret).await? {
        let store::Verified { key_id: _, owner, plan, quota } = verified;
        return Ok((Caller { owner, plan, quota }, Proof::Key));
    }
    if let Some(owner) = token_owner(app, secret).await?
        && let Some(row) = app.store.standing(&owner).await?
    {
        let plan = row.plan.unwrap_or(Plan::Free);
        return Ok((Caller { owner, plan, quota: row.quota }, Proof::Token));
    }
    Err(Refusal::Unauthorized { sent: true })
}

/// Whose token it is: one of ours, or of the issuer that is trusted.
async fn token_owner(app: &App, token: &str) -> Result<Option<OwnerId>, Refusal> {
    if let Some(owner) = app.accounts.tokens.owner(token) {
        return Ok(Some(owner));
    }
    let Some(oidc) = &app.accounts.oidc else { return Ok(None) };
    let Some(subject) = oidc.subject(token).await? else { return Ok(None) };
    Ok(Some(app.store.owner_of(subject, Timestamp::now()).await?))
}

/// `Authorization` wins over `X-API-KEY`; a scheme other than Bearer is no credential.
fn credential(headers: &HeaderMap) -> Option<&str> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let (scheme, secret) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim());
    }
    headers.get("x-api-key")?.to_str().ok().map(str::trim)
}
