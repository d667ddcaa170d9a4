//! The WebSocket of a session: who may upgrade, and the handshake (RFC 6455). What is said on it is in
//! `sessions::socket`.
//!
//! The order of the checks is what keeps a prober from learning which sessions exist (ruling 6):
//!
//! ```text
//! no token, or not a good one ─────────────── 401
//! a good one, of another session ──────────── 403   nothing was looked up
//! its own session does not exist any more ─── 401
//! its session is another tenant's ─────────── 403
//! no WebSocket handshake ──────────────────── 400, 426
//! ```

use api::query::Query;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::upgrade::OnUpgrade;
use model::{Error, SessionId};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::app::App;
use crate::listen::MayStall;
use crate::refusal::{Refusal, SessionTrouble};
use crate::routes::tunnel::asks_for_upgrade;
use crate::sessions::token::Bearer;
use crate::sessions::{Sessions, socket};
use crate::target::{RawQuery, SessionTarget};

/// Of the random key of a handshake.
const KEY_BYTES: usize = 16;

/// Connect to a session
///
/// A WebSocket, opened with the token of the session in `Authorization: Bearer` or as `?token=`. `docs/wire.md`
/// has its frames and close codes. One client at a time: a second one closes the first with 1011.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/ws", tag = "Sessions", operation_id = "connect_session",
    params(
        ("id" = String, Path, description = "Its `chat_session_id`"),
        ("token" = Option<String>, Query, description = "The session's token, for browsers"),
        ("from" = Option<u64>, Query,
            description = "The last event that the client has; it gets what came after. 0 or absent: everything"),
    ),
    security(("session_token" = [])),
    responses(
        (status = 101, description = "Connected"),
        (status = 400, description = "A parameter is unknown, wrong or there twice; or not a WebSocket handshake"),
        (status = 401, description = "No token of a session, or not a good one; or the session is gone"),
        (status = 403, description = "The token is another session's, or the session another tenant's"),
        (status = 426, description = "The request does not ask for the upgrade"),
    )
)]
pub(crate) async fn connect(
    State(app): State<App>,
    target: Result<SessionTarget, Refusal>,
    RawQuery(query): RawQuery,
    mut request: Request,
) -> Result<Response, Refusal> {
    let mut query = Query::parse(query.as_deref(), &["token", "from"])?;
    let token = query.take("token");
    let bearer = bearer(&app, request.headers(), token.as_deref())?;
    let session = admit(&app, &bearer, target.ok().map(|SessionTarget(id)| id)).await?;
    let from = query.whole("from")?;
    let accept = handshake(request.headers())?;
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let upgrade = upgrade.ok_or(SessionTrouble::HandshakeRequired)?;
    if let Some(connection) = request.extensions().get::<MayStall>() {
        connection.allow();
    }
    let wire_version = session.1;
    let asked = socket::Asked { session: session.0, wire_version, from };
    app.tasks.spawn(socket::serve(app.clone(), upgrade, asked));
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    Ok(response)
}

/// Whether a request has a token that we made: for a server that passes it on.
pub(crate) fn known(app: &App, parts: &Parts) -> Result<(), Refusal> {
    let mut query = Query::parse(parts.uri.query(), &["token", "from"])?;
    bearer(app, &parts.headers, query.take("token").as_deref()).map(drop)
}

/// What the token of a request says. The header wins; both are refused, so that nobody wonders which counted.
fn bearer(app: &App, headers: &HeaderMap, in_query: Option<&str>) -> Result<Bearer, Refusal> {
    let in_header = headers.get(AUTHORIZATION);
    if in_header.is_some() && in_query.is_some() {
        return Err(Error::invalid("token", "given twice: in Authorization as well").into());
    }
    let of_header = |value: &HeaderValue| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
    };
    let token = in_query.map(str::to_owned).or_else(|| in_header.and_then(of_header));
    let sent = in_header.is_some() || in_query.is_some();
    let checked = token.and_then(|token| app.rt.tokens.check(&token));
    checked.ok_or(SessionTrouble::TokenRequired { sent }.into())
}

/// The session of a token, if it is the one of the path. Its wire version as well.
async fn admit(
    app: &App,
    bearer: &Bearer,
    asked: Option<SessionId>,
) -> Result<(SessionId, u8), Refusal> {
    if asked != Some(bearer.session) {
        return Err(Refusal::Forbidden("the token is another session's"));
    }
    let Some(record) = Sessions::find(app, bearer.session).await? else {
        return Err(SessionTrouble::TokenRequired { sent: true }.into());
    };
    if record.owner != bearer.tenant {
        return Err(Refusal::Forbidden("the session is another tenant's"));
    }
    Ok((record.id, record.spec.wire_version))
}

/// What proves that its key was read.
fn handshake(headers: &HeaderMap) -> Result<HeaderValue, Refusal> {
    if !asks_for_upgrade(headers, "websocket") {
        return Err(SessionTrouble::HandshakeRequired.into());
    }
    if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(SessionTrouble::HandshakeRequired.into());
    }
    let mut keys = headers.get_all(SEC_WEBSOCKET_KEY).iter();
    let wrong = || Error::invalid("Sec-WebSocket-Key", "must be one key of 16 bytes in base64");
    let (Some(key), None) = (keys.next(), keys.next()) else { return Err(wrong().into()) };
    let decoded = STANDARD.decode(key).map_err(|_| wrong())?;
    if decoded.len() != KEY_BYTES {
        return Err(wrong().into());
    }
    let accept = derive_accept_key(key.as_bytes());
    Ok(HeaderValue::try_from(accept).expect("base64 is printable"))
}
