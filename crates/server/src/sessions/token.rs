//! The tokens of sessions (000 *Session JWT claims*, ruling 33): what opens the WebSocket of one session,
//! and nothing else. The same session in the same life gets the same token.

use anyhow::Context;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use model::{OwnerId, Result, SessionId};
use serde::{Deserialize, Serialize};
use store::SessionRecord;

use crate::signing_key::SigningKey;

/// Tokens of accounts have another one, so neither is taken for the other.
const AUDIENCE: &str = "bastide:session";
const ISSUER: &str = "bastide";

/// The template whose sessions have a display.
const WITH_DISPLAY: &str = "cua";

#[derive(Clone)]
pub(crate) struct SessionTokens {
    encoding: EncodingKey,
    decoding: DecodingKey,
    validation: Validation,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    user_id: String,
    tenant_id: String,
    app_id: String,
    set_id: String,
    chat_session_id: String,
    cua_enabled: bool,
    exp: i64,
    jti: String,
}

/// What a good token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bearer {
    pub(crate) session: SessionId,
    pub(crate) tenant: OwnerId,
}

impl SessionTokens {
    pub(crate) fn new(key: &SigningKey) -> Self {
        let key = key.of("session tokens");
        let mut validation = Validation::new(Algorithm::HS256);
        validation.set_audience(&[AUDIENCE]);
        validation.set_issuer(&[ISSUER]);
        validation.set_required_spec_claims(&["exp", "aud", "iss"]);
        // The clock is our own.
        validation.leeway = 0;
        Self {
            encoding: EncodingKey::from_secret(&key),
            decoding: DecodingKey::from_secret(&key),
            validation,
        }
    }

    /// Good until the session's life is over.
    pub(crate) fn issue(&self, session: &SessionRecord) -> Result<String> {
        let claims = Claims {
            iss: ISSUER.into(),
            aud: AUDIENCE.into(),
            user_id: session.owner.to_string(),
            tenant_id: session.owner.to_string(),
            app_id: session.spec.app_id.clone(),
            set_id: session.spec.set_id.clone(),
            chat_session_id: session.id.to_string(),
            cua_enabled: session.spec.template == WITH_DISPLAY,
            exp: session.expires_at.as_second(),
            jti: format!("{}.{}", session.id, session.life),
        };
        let token = encode(&Header::new(Algorithm::HS256), &claims, &self.encoding);
        Ok(token.context("sign a session's token")?)
    }

    /// Whose session it opens, if it is one of ours and still good.
    pub(crate) fn check(&self, token: &str) -> Option<Bearer> {
        let claims = decode::<Claims>(token, &self.decoding, &self.validation).ok()?.claims;
        Some(Bearer {
            session: claims.chat_session_id.parse().ok()?,
            tenant: claims.tenant_id.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use jiff::{SignedDuration, Timestamp};
    use model::{AgentKind, SessionSpec, SessionStatus, Vendor};
    use serde_json::{Value, json};

    use super::*;
    use crate::accounts::Tokens;

    fn keys() -> (SessionTokens, Tokens) {
        let dir = tempfile::tempdir().unwrap();
        let key = SigningKey::open(dir.path(), None).unwrap();
        (SessionTokens::new(&key), Tokens::new(&key, 60))
    }

    fn session(template: &str, expires_in: SignedDuration) -> SessionRecord {
        SessionRecord {
            id: SessionId::generate(),
            owner: "usr_ann".parse().unwrap(),
            spec: SessionSpec {
                agent: AgentKind::Deictic,
                agent_version: None,
                template: template.into(),
                vendor: Vendor::Anthropic,
                model: None,
                base_url: None,
                bundles: Vec::new(),
                app_id: "my-app".into(),
                set_id: "default".into(),
                app_json: None,
                wire_version: 2,
                forked_from: None,
            },
            status: SessionStatus::Running,
            reason: None,
            sandbox: None,
            life: 3,
            native_session_id: None,
            created_at: Timestamp::now(),
            expires_at: Timestamp::now() + expires_in,
            input_tokens: 0,
            output_tokens: 0,
            tool_calls: 0,
            previous_status: None,
            resumed_at: None,
        }
    }

    #[test]
    fn a_token_has_the_documents_claims_and_is_the_same_in_the_same_life() {
        let (tokens, _) = keys();
        let session = session("cua", SignedDuration::from_hours(1));
        let token = tokens.issue(&session).unwrap();
        assert_eq!(token, tokens.issue(&session).unwrap());
        let body = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
        let claims: Value = serde_json::from_slice(&body).unwrap();
        let id = session.id.to_string();
        assert_eq!(
            claims,
            json!({
                "iss": "bastide", "aud": "bastide:session", "user_id": "usr_ann",
                "tenant_id": "usr_ann", "app_id": "my-app", "set_id": "default",
                "chat_session_id": id, "cua_enabled": true,
                "exp": session.expires_at.as_second(), "jti": format!("{id}.3"),
            })
        );
        let bearer = Bearer { session: session.id, tenant: session.owner.clone() };
        assert_eq!(tokens.check(&token), Some(bearer));
        let later = SessionRecord { life: 4, ..session };
        assert_ne!(tokens.issue(&later).unwrap(), token);
    }

    #[test]
    fn only_a_template_with_a_display_enables_it() {
        let (tokens, _) = keys();
        let token = tokens.issue(&session("standard", SignedDuration::from_hours(1))).unwrap();
        let body = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["cua_enabled"], false);
    }

    #[test]
    fn what_is_old_foreign_or_for_something_else_opens_nothing() {
        let (tokens, accounts) = keys();
        let (others, _) = keys();
        let good = session("standard", SignedDuration::from_hours(1));
        let token = tokens.issue(&good).unwrap();
        assert_eq!(others.check(&token), None, "another server's");
        let old = session("standard", SignedDuration::from_secs(-1));
        assert_eq!(tokens.check(&tokens.issue(&old).unwrap()), None, "expired");
        let account = accounts.issue(&good.owner, Timestamp::now()).unwrap();
        assert_eq!(tokens.check(&account), None, "an account's");
        assert_eq!(accounts.owner(&token), None, "and the other way round");
        let [head, body, tag] = token.split('.').collect::<Vec<_>>()[..] else { panic!("{token}") };
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).unwrap()).unwrap();
        let mut other = claims.clone();
        other["tenant_id"] = "usr_bob".into();
        let unsigned = part(&json!({ "alg": "none", "typ": "JWT" }));
        for forged in [
            String::new(),
            "..".into(),
            format!("{unsigned}.{body}."),
            format!("{unsigned}.{body}.{tag}"),
            format!("{head}.{}.{tag}", part(&other)),
        ] {
            assert_eq!(tokens.check(&forged), None, "{forged}");
        }
    }
}
