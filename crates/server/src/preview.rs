//! Ports of sandboxes, as HTTP: who may, and what is passed on.
//!
//! A port has two addresses: a path of the API (`/v1/sandboxes/{id}/ports/{port}/…`), and where the
//! operator gave a domain a host of its own (`{port}-{id}.DOMAIN`), which is an origin of its own.
//! Both are opened by the owner's API key, by a signed link, or by the cookie that a browser gets for
//! one. What a sandbox answers is hostile: in the path form it shares the origin of the API, so
//! there it may neither run as that origin nor set anything for it.
//!
//! ```text
//! place -> link? -> cookie? -> key? -> dial -> request, cleaned -> answer, cleaned
//!            |         |         |      |            |
//!   redirect +     403 +     401 +  502 +        504 +
//! ```
//!
//! Nothing here decides whose a sandbox is: the engine does, for whoever is found to ask.

mod answer;
mod carry;
mod domain;
mod link;
mod place;
mod request;
mod signer;
mod trouble;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use engine::Caller;
use jiff::Timestamp;
use model::{Error, Plan, QuotaRow, SandboxId, SandboxRef};

use crate::app::App;
use crate::auth;
use crate::refusal::Refusal;

pub(crate) use domain::Domain;
pub(crate) use link::link;
pub(crate) use place::port_number;
pub(crate) use signer::Signer;
pub(crate) use trouble::Trouble;

use place::{Form, Place};

static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
static SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// On an answer that comes from a sandbox under a host of its own: ours to carry, not to change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Foreign;

/// Takes every request for a sandbox's host before any route of the API is looked at.
pub(crate) async fn by_host(State(app): State<App>, request: Request, next: Next) -> Response {
    match Place::of_host(&app, &request) {
        Ok(None) => next.run(request).await,
        Ok(Some(place)) => {
            let mut response = serve(&app, Ok(place), request).await.into_response();
            response.extensions_mut().insert(Foreign);
            response
        }
        Err(trouble) => Refusal::from(trouble).into_response(),
    }
}

/// Whether [`by_host`] would take it.
pub(crate) fn is_for_a_host(app: &App, request: &Request) -> bool {
    !matches!(Place::of_host(app, request), Ok(None))
}

/// A request under the path form.
pub(crate) async fn by_path(app: &App, request: Request) -> Result<Response, Refusal> {
    let place = Place::of_path(request.uri().path());
    serve(app, place, request).await
}

async fn serve(
    app: &App,
    place: Result<Place, Error>,
    request: Request,
) -> Result<Response, Refusal> {
    let (request, body) = request.into_parts();
    let place = match place {
        Ok(place) => place,
        Err(wrong) => {
            auth::caller(app, &request.headers).await?;
            return Err(wrong.into());
        }
    };
    let caller = match who(app, &place, &request).await? {
        Permit::Caller(caller) => caller,
        Permit::Redirect(response) => return Ok(response),
    };
    let dialled = app.engine.dial(&caller, &place.sandbox, place.port).await?;
    let tunnel = dialled.ok_or(Trouble::PortClosed { port: place.port })?;
    carry::carry(app, tunnel, place, Request::from_parts(request, body)).await
}

enum Permit {
    Caller(Caller),
    /// A browser that opened a link: it gets its cookie and the page's own address.
    Redirect(Response),
}

async fn who(app: &App, place: &Place, request: &Parts) -> Result<Permit, Refusal> {
    let now = Timestamp::now();
    if let (Some(token), Some(id)) = (request::link_of(request.uri.query()), place.id()) {
        let left = app.signer.seconds_left(&token, id, place.port, now);
        let left = left.ok_or(Trouble::LinkInvalid)?;
        let caller = owner(app, id)?;
        if is_opened_by_a_person(request) {
            return Ok(Permit::Redirect(settle(app, place, request, (&token, left))?));
        }
        return Ok(Permit::Caller(caller));
    }
    if let Some(id) = place.id()
        && has_cookie(app, place, &request.headers, (id, now))
    {
        if !is_its_own(place, request) {
            return Err(Trouble::OtherSite.into());
        }
        return owner(app, id).map(Permit::Caller);
    }
    auth::caller(app, &request.headers).await.map(Permit::Caller)
}

/// A link was made by its owner, so whoever has it asks in that name, for that one port.
fn owner(app: &App, id: SandboxId) -> Result<Caller, Refusal> {
    let owner = app.engine.owner_of(id).ok_or_else(|| Error::no_sandbox(id))?;
    Ok(Caller { owner, plan: Plan::Free, quota: QuotaRow::default() })
}

fn has_cookie(
    app: &App,
    place: &Place,
    headers: &HeaderMap,
    (id, now): (SandboxId, Timestamp),
) -> bool {
    // Neighbours may have set one of the same name for a parent domain: any of them will do.
    let name = place.cookie_name(&app.address);
    request::cookies(headers)
        .filter(|(found, _)| *found == name)
        .any(|(_, token)| app.signer.seconds_left(token, id, place.port, now).is_some())
}

/// Whether a browser shows the answer to somebody, and so can follow to the address without the link.
fn is_opened_by_a_person(request: &Parts) -> bool {
    let headers = &request.headers;
    if request.method != Method::GET || request::wants_upgrade(headers) {
        return false;
    }
    match text(headers, &SEC_FETCH_MODE) {
        Some(mode) => mode == "navigate",
        None => text(headers, &axum::http::header::ACCEPT).is_some_and(|a| a.contains("text/html")),
    }
}

/// A cookie speaks for whoever's page makes the browser send it. Only this port's own pages may, and
/// a link elsewhere that somebody follows. Old browsers say less; they at least name the origin.
fn is_its_own(place: &Place, request: &Parts) -> bool {
    let headers = &request.headers;
    let safe = [Method::GET, Method::HEAD].contains(&request.method);
    let followed = safe && text(headers, &SEC_FETCH_MODE) == Some("navigate");
    let upgrade = request::wants_upgrade(headers);
    let site = match text(headers, &SEC_FETCH_SITE) {
        Some("same-origin" | "none") => true,
        Some(_) => followed,
        None => true,
    };
    let origin = match (text(headers, &ORIGIN), &place.form) {
        (None, _) => true,
        (Some(origin), Form::Host { authority }) => {
            origin.split_once("://").is_some_and(|(_, from)| from.eq_ignore_ascii_case(authority))
        }
        // Its pages have no origin there.
        (Some(_), Form::Path { .. }) => safe && !upgrade,
    };
    site && origin
}

/// The same address without the link, and a cookie instead of it.
fn settle(
    app: &App,
    place: &Place,
    request: &Parts,
    (token, left): (&str, u64),
) -> Result<Response, Refusal> {
    let query = request::clean_query(request.uri.query());
    let target = place.url(&app.address, request.uri.path(), query.as_deref());
    let name = place.cookie_name(&app.address);
    let path = place.cookie_path();
    let secure = if app.address.is_https() { "; Secure" } else { "" };
    let cookie =
        format!("{name}={token}; Path={path}; Max-Age={left}; HttpOnly; SameSite=Lax{secure}");
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    for (name, value) in [(LOCATION, target), (SET_COOKIE, cookie)] {
        let value = HeaderValue::try_from(value);
        headers.insert(name, value.map_err(|_| Error::invalid("path", "not a path"))?);
    }
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    // What is not text is something, and matches nothing.
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

impl Place {
    /// Only an id can be in a link; a name may be somebody else's tomorrow.
    fn id(&self) -> Option<SandboxId> {
        match &self.sandbox {
            SandboxRef::Id(id) => Some(*id),
            SandboxRef::Name(_) => None,
        }
    }
}
