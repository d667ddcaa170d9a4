//! Signs links, and tells whether one is good: for this sandbox, this port, until then. After another
//! signing key was put in its place, no link works.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use model::SandboxId;
use ring::hmac;

use crate::signing_key::SigningKey;

/// Longer ones are not looked at.
const TOKEN_BYTES_MAX: usize = 100;

#[derive(Clone)]
pub(crate) struct Signer(hmac::Key);

impl Signer {
    pub(crate) fn new(key: &SigningKey) -> Self {
        Self(key.of_links())
    }

    /// `EXPIRES.MAC`: seconds since 1970, and what proves them.
    pub(super) fn sign(&self, sandbox: SandboxId, port: u16, expires: Timestamp) -> String {
        let expires = expires.as_second();
        let tag = hmac::sign(&self.0, &message(sandbox, port, expires));
        format!("{expires}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// How long a link works still; `None` when it does not.
    pub(super) fn seconds_left(
        &self,
        token: &str,
        sandbox: SandboxId,
        port: u16,
        now: Timestamp,
    ) -> Option<u64> {
        let (expires, tag) = Some(token).filter(|t| t.len() <= TOKEN_BYTES_MAX)?.split_once('.')?;
        let expires: i64 = expires.parse().ok()?;
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        hmac::verify(&self.0, &message(sandbox, port, expires), &tag).ok()?;
        u64::try_from(expires - now.as_second()).ok().filter(|left| *left > 0)
    }

    /// What proves a text; those who call this begin theirs with what it is for.
    pub(crate) fn sign_text(&self, text: &str) -> String {
        URL_SAFE_NO_PAD.encode(hmac::sign(&self.0, text.as_bytes()))
    }

    pub(crate) fn is_signed(&self, text: &str, signature: &str) -> bool {
        let tag = URL_SAFE_NO_PAD.decode(signature.get(..TOKEN_BYTES_MAX).unwrap_or(signature));
        tag.is_ok_and(|tag| hmac::verify(&self.0, text.as_bytes(), &tag).is_ok())
    }
}

fn message(sandbox: SandboxId, port: u16, expires: i64) -> Vec<u8> {
    format!("bastide port link\n{sandbox}\n{port}\n{expires}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_good_for_its_own_port_until_it_expires_and_not_when_changed() {
        let dir = tempfile::tempdir().unwrap();
        let open = |dir: &std::path::Path| Signer::new(&SigningKey::open(dir, None).unwrap());
        let signer = open(dir.path());
        let (id, other) = (SandboxId::generate(), SandboxId::generate());
        let at = |second| Timestamp::from_second(second).unwrap();
        let token = signer.sign(id, 8000, at(1000));
        let again = open(dir.path());
        assert_eq!(again.seconds_left(&token, id, 8000, at(400)), Some(600));
        assert_eq!(again.seconds_left(&token, id, 8000, at(1000)), None);
        assert_eq!(again.seconds_left(&token, id, 8001, at(400)), None);
        assert_eq!(again.seconds_left(&token, other, 8000, at(400)), None);
        let (expires, tag) = token.split_once('.').unwrap();
        for bad in
            ["", ".", "1000.", "9999", tag, &format!("1001.{tag}"), &format!("{expires}.A{tag}")]
        {
            assert_eq!(again.seconds_left(bad, id, 8000, at(400)), None, "{bad}");
        }
        let elsewhere = open(tempfile::tempdir().unwrap().path());
        assert_eq!(elsewhere.seconds_left(&token, id, 8000, at(400)), None);
    }
}
