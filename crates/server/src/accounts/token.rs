//! The tokens of accounts: short-lived JWTs (HS256) that say whose they are and nothing else. What an
//! account may do is read from the store when it calls.

use anyhow::Context;
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use model::{OwnerId, Result};
use serde::{Deserialize, Serialize};

use crate::signing_key::SigningKey;

/// Tokens of sessions have another one, so neither is taken for the other.
const AUDIENCE: &str = "bastide:account";
const ISSUER: &str = "bastide";

#[derive(Clone)]
pub(crate) struct Tokens {
    encoding: EncodingKey,
    decoding: DecodingKey,
    validation: Validation,
    good_for_seconds: u64,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    sub: String,
    iat: i64,
    exp: i64,
    jti: String,
}

impl Tokens {
    pub(crate) fn new(key: &SigningKey, good_for_seconds: u64) -> Self {
        let key = key.of("account tokens");
        let mut validation = Validation::new(Algorithm::HS256);
        validation.set_audience(&[AUDIENCE]);
        validation.set_issuer(&[ISSUER]);
        validation.set_required_spec_claims(&["exp", "aud", "iss", "sub"]);
        // The clock is our own.
        validation.leeway = 0;
        Self {
            encoding: EncodingKey::from_secret(&key),
            decoding: DecodingKey::from_secret(&key),
            validation,
            good_for_seconds,
        }
    }

    pub(crate) fn issue(&self, owner: &OwnerId, now: Timestamp) -> Result<String> {
        let good_for = i64::try_from(self.good_for_seconds).unwrap_or(i64::MAX);
        let claims = Claims {
            iss: ISSUER.into(),
            aud: AUDIENCE.into(),
            sub: owner.to_string(),
            iat: now.as_second(),
            exp: now.as_second().saturating_add(good_for),
            jti: model::SandboxId::generate().bare(),
        };
        let token = encode(&Header::new(Algorithm::HS256), &claims, &self.encoding);
        Ok(token.context("sign an account's token")?)
    }

    /// Whose token it is, if it is one of ours and still good.
    pub(crate) fn owner(&self, token: &str) -> Option<OwnerId> {
        let token = decode::<Claims>(token, &self.decoding, &self.validation).ok()?;
        token.claims.sub.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::{Value, json};

    use super::*;

    fn tokens() -> Tokens {
        let dir = tempfile::tempdir().unwrap();
        Tokens::new(&SigningKey::open(dir.path(), None).unwrap(), 60)
    }

    fn owner() -> OwnerId {
        "usr_ann".parse().unwrap()
    }

    #[test]
    fn a_token_is_good_until_it_expires_and_only_where_it_was_made() {
        let (ours, others) = (tokens(), tokens());
        let token = ours.issue(&owner(), Timestamp::now()).unwrap();
        assert_eq!(ours.owner(&token), Some(owner()));
        assert_eq!(others.owner(&token), None);
        let an_hour_ago = Timestamp::now() - jiff::SignedDuration::from_hours(1);
        let old = ours.issue(&owner(), an_hour_ago).unwrap();
        assert_eq!(ours.owner(&old), None);
    }

    #[test]
    fn a_forged_token_is_nobodys() {
        let ours = tokens();
        let token = ours.issue(&owner(), Timestamp::now()).unwrap();
        let [head, body, tag] = token.split('.').collect::<Vec<_>>()[..] else { panic!("{token}") };
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).unwrap()).unwrap();
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let with = |key: &str, value: Value| {
            let mut claims = claims.clone();
            claims[key] = value;
            encode(&Header::new(Algorithm::HS256), &claims, &ours.encoding).unwrap()
        };
        let unsigned = part(&json!({ "alg": "none", "typ": "JWT" }));
        let mut other = claims.clone();
        other["sub"] = "usr_bob".into();
        for forged in [
            String::new(),
            "..".into(),
            format!("{unsigned}.{body}."),
            format!("{unsigned}.{body}.{tag}"),
            format!("{head}.{}.{tag}", part(&other)),
            format!("{head}.{body}.{}", tag.to_ascii_uppercase()),
            // Of ours, but for something else.
            with("aud", json!("bastide:session")),
            with("iss", json!("elsewhere")),
            with("exp", json!(1)),
            with("exp", json!("4000000000")),
            with("sub", json!("not an owner")),
        ] {
            assert_eq!(ours.owner(&forged), None, "{forged}");
        }
        assert_eq!(ours.owner(&with("iat", json!(1))), Some(owner()), "the helper makes good ones");
    }
}
