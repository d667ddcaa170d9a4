//! Tokens of an `OpenID` Connect issuer that the operator trusts: signature, issuer, audience and times
//! are checked against the keys that the issuer publishes, which it may change at any time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::http::Request;
use axum::http::header::HOST;
use bytes::Bytes;
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use model::Error;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use store::Subject;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use url::Url;

use crate::config::OidcSettings;
use crate::https::Https;

/// How long published keys are believed: a key that the issuer withdraws is good this long still.
const FRESH: Duration = Duration::from_secs(300);
/// How long they are used while the issuer does not answer.
const STALE_MAX: Duration = Duration::from_secs(3600);
/// After a look in vain, until the next: tokens made up by strangers cost the issuer next to nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
const TOKEN_BYTES_MAX: usize = 16 * 1024;
const KEYS_MAX: usize = 100;
/// Clocks differ.
const LEEWAY_SECONDS: u64 = 30;
/// Nothing symmetric: published keys are no secrets.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

pub(crate) struct Oidc {
    issuer: String,
    audience: String,
    jwks_url: Option<String>,
    https: Https,
    known: Mutex<Known>,
    /// One fetch at a time; the others wait for it.
    fetching: Semaphore,
}

#[derive(Default)]
struct Known {
    keys: Vec<Jwk>,
    fetched_at: Option<Instant>,
    /// When a look for a key was in vain.
    missed_at: Option<Instant>,
}

/// Typed, so that a claim of another type makes the token no good instead of being passed over.
#[derive(Deserialize)]
struct Claims {
    sub: String,
    #[serde(rename = "exp")]
    _exp: i64,
    #[serde(rename = "nbf", default)]
    _nbf: Option<i64>,
    #[serde(default)]
    email: Option<String>,
    #[serde(default)]
    email_verified: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

impl Oidc {
    pub(crate) fn open(settings: &OidcSettings) -> Result<Option<Self>> {
        let Some(issuer) = &settings.issuer else { return Ok(None) };
        let audience = settings.audience.clone();
        Ok(Some(Self {
            issuer: issuer.clone(),
            audience: audience.context("oidc.audience: required with oidc.issuer")?,
            jwks_url: settings.jwks_url.clone(),
            https: Https::new()?,
            known: Mutex::default(),
            fetching: Semaphore::new(1),
        }))
    }

    /// `None` for what is not a good token of the issuer's; an error when its keys cannot be had.
    pub(crate) async fn subject(&self, token: &str) -> Result<Option<Subject>, Error> {
        if token.len() > TOKEN_BYTES_MAX {
            return Ok(None);
        }
        let Ok(header) = decode_header(token) else { return Ok(None) };
        if !ALGORITHMS.contains(&header.alg) {
            return Ok(None);
        }
        let Some(key) = self.key(header.kid.as_deref()).await? else { return Ok(None) };
        Ok(self.checked(token, header.alg, &key))
    }

    fn checked(&self, token: &str, algorithm: Algorithm, key: &Jwk) -> Option<Subject> {
        let key = DecodingKey::from_jwk(key).ok()?;
        let mut validation = Validation::new(algorithm);
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.audience]);
        validation.set_required_spec_claims(&["exp", "aud", "iss", "sub"]);
        validation.validate_nbf = true;
        validation.leeway = LEEWAY_SECONDS;
        let claims = decode::<Claims>(token, &key, &validation).ok()?.claims;
        let good = |c: char| !c.is_control();
        let subject_fits = !claims.sub.is_empty() && claims.sub.len() <= 255;
        if !subject_fits || !claims.sub.chars().all(good) {
            return None;
        }
        let verified = claims.email_verified == Some(serde_json::Value::Bool(true));
        let email = claims.email.filter(|_| verified).and_then(|email| email.parse().ok());
        Some(Subject { issuer: self.issuer.clone(), subject: claims.sub, email })
    }

    /// The published key of that id; the only one there is, when a token names none.
    async fn key(&self, id: Option<&str>) -> Result<Option<Jwk>, Error> {
        if let Some(key) = self.kept(id, FRESH) {
            return Ok(Some(key));
        }
        let _turn = self.fetching.acquire().await.context("wait for a turn")?;
        // Somebody else may have fetched meanwhile.
        if let Some(key) = self.kept(id, FRESH) {
            return Ok(Some(key));
        }
        let looked = self.may_look();
        if looked {
            match self.fetch().await {
                Ok(keys) => {
                    let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                    known.keys = keys;
                    known.fetched_at = Some(Instant::now());
                }
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "could not get the issuer's keys");
                }
            }
        }
        if let Some(key) = self.kept(id, STALE_MAX) {
            return Ok(Some(key));
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if looked {
            known.missed_at = Some(Instant::now());
        }
        match known.fetched_at {
            Some(at) if at.elapsed() < STALE_MAX => Ok(None),
            Some(_) | None => Err(Error::unavailable("the issuer of tokens does not answer")),
        }
    }

    fn kept(&self, id: Option<&str>, age_max: Duration) -> Option<Jwk> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.fetched_at.filter(|at| at.elapsed() < age_max)?;
        match (id, &known.keys[..]) {
            (Some(id), keys) => keys.iter().find(|key| key.common.key_id.as_deref() == Some(id)),
            (None, [only]) => Some(only),
            (None, _) => None,
        }
        .cloned()
    }

    fn may_look(&self) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.missed_at.is_none_or(|at| at.elapsed() >= LOOK_AGAIN)
    }

    async fn fetch(&self) -> Result<Vec<Jwk>> {
        let url = match &self.jwks_url {
            Some(url) => url.clone(),
            None => {
                let base = self.issuer.trim_end_matches('/');
                let about: Discovery =
                    self.get(&format!("{base}/.well-known/openid-configuration")).await?;
                ensure!(about.issuer == self.issuer, "another issuer: {}", about.issuer);
                // What was asked for over TLS is not answered without.
                let plain = Url::parse(&about.jwks_uri).is_ok_and(|url| url.scheme() == "http");
                ensure!(!plain || self.issuer.starts_with("http:"), "keys without TLS");
                about.jwks_uri
            }
        };
        let set: JwkSet = self.get(&url).await?;
        ensure!(set.keys.len() <= KEYS_MAX, "too many keys");
        Ok(set.keys)
    }

    async fn get<T: DeserializeOwned>(&self, url: &str) -> Result<T> {
        let host = Url::parse(url).with_context(|| format!("not a URL: {url}"))?;
        let authority = host.authority().to_owned();
        let request = Request::get(url).header(HOST, authority).body(Bytes::new());
        let answer = self.https.send(request.context("write a request")?).await;
        let answer = answer.with_context(|| format!("get {url}"))?;
        ensure!(answer.status().is_success(), "{url} answered {}", answer.status());
        serde_json::from_slice(answer.body()).with_context(|| format!("understand {url}"))
    }
}
