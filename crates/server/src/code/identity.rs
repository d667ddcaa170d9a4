//! Who calls a tool, as far as its code has anything to do with it.

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use engine::Caller;
use model::SecretText;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::listen::PeerAddress;

/// Travels with a request to the tool that it calls.
#[derive(Clone)]
pub(crate) struct Identity {
    /// Who pays for sandboxes.
    pub(super) payer: Caller,
    pub(super) secret: SecretText,
    pub(super) peer: Option<PeerAddress>,
    /// The request's, whose id its lines in the log have.
    pub(super) span: tracing::Span,
    /// Cancelled when nobody waits for the answer any more.
    pub(super) gone: CancellationToken,
}

impl Identity {
    /// What limits hold for, instead of the key itself.
    pub(super) fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.secret.0.as_bytes()).into()
    }

    /// For logs: enough to tell keys apart, too little to use one.
    pub(super) fn shown(&self) -> String {
        let secret = &self.secret.0;
        if !secret.is_ascii() || secret.len() < 24 {
            return "…".into();
        }
        format!("{}…{}", &secret[..4], &secret[secret.len() - 4..])
    }

    /// As our own API takes it.
    pub(super) fn credential(&self) -> Option<(HeaderName, HeaderValue)> {
        let mut value = HeaderValue::try_from(format!("Bearer {}", self.secret.0)).ok()?;
        value.set_sensitive(true);
        Some((AUTHORIZATION, value))
    }
}

/// The token of a request, however it was checked.
pub(super) fn bearer(headers: &HeaderMap) -> Option<SecretText> {
    let (scheme, secret) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let secret = secret.trim();
    let is_bearer = scheme.eq_ignore_ascii_case("bearer") && !secret.is_empty();
    is_bearer.then(|| SecretText(secret.to_owned()))
}
