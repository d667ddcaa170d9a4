//! Who may use `/files`: the holder of the token, or of a signature made with it.
//!
//! `v1_` + base64 without padding of SHA-256 of `path:operation:user:token[:expiration]`, with the
//! path exactly as in the query.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest as _, Sha256};

use crate::connect::time;
use crate::http::{Request, given_token, same};
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;

/// What a request is signed for.
pub(super) struct Signed<'a> {
    /// `read` or `write`.
    pub(super) operation: &'static str,
    pub(super) path: &'a str,
    pub(super) username: Option<&'a str>,
    pub(super) signature: Option<&'a str>,
    pub(super) expiration: Option<&'a str>,
}

pub(super) fn check(state: &State, request: &Request, signed: &Signed<'_>) -> Result<()> {
    let Some(token) = state.settings().token.clone() else { return Ok(()) };
    if let Some(given) = given_token(request) {
        if same(given.as_bytes(), token.as_bytes()) {
            return Ok(());
        }
        return Err(denied("access token present in header but does not match"));
    }
    let Some(signature) = signed.signature else {
        return Err(denied("missing signature query parameter"));
    };
    let expiration = match signed.expiration {
        None => None,
        Some(text) => Some(text.parse::<i64>().map_err(|_| denied("invalid signature"))?),
    };
    let expected = sign(signed, &token, expiration);
    if !same(signature.as_bytes(), expected.as_bytes()) {
        return Err(denied("invalid signature"));
    }
    if expiration.is_some_and(|at| at < i64::try_from(time::now()).unwrap_or(i64::MAX)) {
        return Err(denied("signature is already expired"));
    }
    Ok(())
}

fn sign(signed: &Signed<'_>, token: &str, expiration: Option<i64>) -> String {
    let user = signed.username.unwrap_or("");
    let mut text = format!("{}:{}:{user}:{token}", signed.path, signed.operation);
    if let Some(expiration) = expiration {
        text = format!("{text}:{expiration}");
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
}

fn denied(message: &str) -> Refusal {
    Refusal::new(Code::Unauthenticated, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vector_of_the_protocol_holds() {
        let signed = Signed {
            operation: "read",
            path: "hello.txt",
            username: Some("user"),
            signature: None,
            expiration: None,
        };
        let signature = sign(&signed, "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", None);
        assert_eq!(signature, "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E");
    }
}
