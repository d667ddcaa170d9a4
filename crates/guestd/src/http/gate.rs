//! Who may call what, and what browsers are told.
//!
//! The socket that the launcher made is the host's alone, so our extension needs no token there.
//! Everything else needs the token of `/init`, once there is one. What comes through a tunnel comes
//! from a client of the sandbox, to whom control routes do not exist.

use ::http::{HeaderMap, HeaderValue, Method, header};

use super::Request;
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The Unix socket of the host.
    Socket,
    /// A network between the host and the guest.
    Network,
    /// A tunnel to the guest's own port.
    Tunnel,
}

/// The exact words are part of the protocol.
pub(super) const NO_TOKEN: &str =
    "unauthorized access, please provide a valid access token or method signing if supported";

pub(super) fn check(state: &State, request: &Request, peer: Peer) -> Result<()> {
    let path = request.uri().path();
    let control = path == "/init" || path.starts_with(guest_proto::PREFIX);
    match peer {
        Peer::Tunnel if control => {
            return Err(Refusal::not_found(format!("no such route: {path}")));
        }
        Peer::Socket if control => return Ok(()),
        Peer::Socket | Peer::Network | Peer::Tunnel => {}
    }
    let is_open = match path {
        "/health" => request.method() == Method::GET,
        // They look at the token, or a signature, themselves.
        "/init" => request.method() == Method::POST,
        "/files" => true,
        _ => false,
    };
    let settings = state.settings();
    let Some(token) = settings.token.as_deref().filter(|_| !is_open) else { return Ok(()) };
    if given(request).is_some_and(|given| same(given.as_bytes(), token.as_bytes())) {
        return Ok(());
    }
    Err(Refusal::new(Code::Unauthenticated, NO_TOKEN))
}

/// The token of a request.
pub(crate) fn given(request: &Request) -> Option<&str> {
    request.headers().get("x-access-token")?.to_str().ok()
}

/// Takes as long for any two texts of the same length.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// Any page may call a guest that it has the token of; cookies play no part.
pub(super) fn allow_browsers(headers: &mut HeaderMap) {
    let allow = HeaderValue::from_static;
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allow("*"));
    let methods = allow("HEAD, GET, POST, PUT, PATCH, DELETE");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allow("*"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, allow("*"));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, allow("7200"));
}
