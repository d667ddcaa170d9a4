//! Asks a registry, by the distribution specification: manifests, tokens, blobs.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::time::{sleep, timeout};
use url::Url;

use crate::image::{Document, Manifest, assemble, digest_of, document, machine};
use crate::transport::{Body, Transport};
use crate::{Credentials, Dial, Error, Image, Reference, Result};

/// How to reach registries.
pub struct RegistryOptions {
    pub dial: Dial,
    pub credentials: Credentials,
    /// Registries (`host` or `host:port`) that are spoken to without TLS. Those on loopback are.
    pub plain_http: Vec<String>,
}

/// One registry client; cheap to make, used for one image.
pub struct Registry {
    pub(crate) transport: Transport,
    credentials: Credentials,
    plain_http: Vec<String>,
    /// `Authorization` by repository.
    tokens: Mutex<BTreeMap<String, String>>,
}

const MANIFEST_BYTES_MAX: usize = 4 << 20;
const CONFIG_BYTES_MAX: usize = 4 << 20;
const TOKEN_BYTES_MAX: usize = 256 << 10;
/// Silence in the middle of an answer.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(30);
const REDIRECTS_MAX: usize = 5;
/// Times that a request is sent before a registry that is busy is given up.
pub(crate) const TRIES_MAX: u32 = 5;
const WAIT_MAX: Duration = Duration::from_secs(20);

const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// What is asked for beside the path.
#[derive(Clone, Default)]
pub(crate) struct Ask {
    pub(crate) accept: Option<&'static str>,
    /// From this byte on.
    pub(crate) from: u64,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Registry {
    pub fn new(options: RegistryOptions) -> Result<Self> {
        Ok(Self {
            transport: Transport::new(options.dial)?,
            credentials: options.credentials,
            plain_http: options.plain_http,
            tokens: Mutex::new(BTreeMap::new()),
        })
    }

    /// What the reference means now, for this machine.
    pub async fn image(&self, reference: &Reference) -> Result<Image> {
        let manifest = self.manifest(reference).await?;
        let path = format!("blobs/{}", manifest.config.digest);
        let size = usize::try_from(manifest.config.bytes).unwrap_or(usize::MAX);
        if size > CONFIG_BYTES_MAX {
            return Err(Error::TooLarge("the image's configuration is too large".into()));
        }
        let config = self.small(reference, &path, &Ask::default(), CONFIG_BYTES_MAX).await?;
        if digest_of(&config) != manifest.config.digest {
            return Err(wrong_digest("the image's configuration"));
        }
        assemble(manifest, &config, machine())
    }

    async fn manifest(&self, reference: &Reference) -> Result<Manifest> {
        let mut version = reference.version().to_owned();
        let ask = Ask { accept: Some(ACCEPT), from: 0 };
        // An index, then the manifest that it names; no index of indexes.
        for _ in 0..2 {
            let path = format!("manifests/{version}");
            let bytes = self.small(reference, &path, &ask, MANIFEST_BYTES_MAX).await?;
            if version.starts_with("sha256:") && digest_of(&bytes) != version {
                return Err(wrong_digest("the manifest"));
            }
            match document(&bytes, machine())? {
                Document::Manifest(manifest) => return Ok(manifest),
                Document::Index(digest) => version = digest,
            }
        }
        Err(Error::Invalid(format!("{reference} is an index of indexes")))
    }

    async fn small(
        &self,
        reference: &Reference,
        path: &str,
        ask: &Ask,
        max: usize,
    ) -> Result<Vec<u8>> {
        let mut last = None;
        for attempt in 0..TRIES_MAX {
            let response = self.ask(reference, path, ask).await?;
            match read_whole(response, max).await {
                Err(Error::Unavailable(why)) => last = Some(Error::Unavailable(why)),
                other => return other,
            }
            sleep(Duration::from_millis(200) * (attempt + 1)).await;
        }
        Err(last.unwrap_or_else(|| Error::Unavailable("the registry breaks off".into())))
    }

    /// Asks below `/v2/REPOSITORY/`, with a token if the registry wants one, patiently if it is
    /// busy. The answer is a success.
    pub(crate) async fn ask(
        &self,
        reference: &Reference,
        path: &str,
        ask: &Ask,
    ) -> Result<Response<Incoming>> {
        let scheme = if self.is_plain(reference.host()) { "http" } else { "https" };
        let host = reference.host();
        let url = format!("{scheme}://{host}/v2/{}/{path}", reference.repository());
        let url = Url::parse(&url).map_err(|error| Error::Invalid(error.to_string()))?;
        let mut authorised = false;
        let mut tries = 0;
        loop {
            let token = self.token_of(reference);
            let response = self.follow(&url, ask, token.as_deref()).await?;
            let status = response.status();
            if status.is_success() {
                return Ok(response);
            }
            if status == StatusCode::UNAUTHORIZED && !authorised {
                authorised = true;
                self.authorise(reference, &response).await?;
                continue;
            }
            tries += 1;
            if !is_busy(status) || tries >= TRIES_MAX {
                return Err(refusal(reference, response).await);
            }
            sleep(retry_after(&response, tries)).await;
        }
    }

    /// Follows redirects. What authorises stays with the host that it is for.
    async fn follow(
        &self,
        url: &Url,
        ask: &Ask,
        token: Option<&str>,
    ) -> Result<Response<Incoming>> {
        let mut url = url.clone();
        let first = url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let mut request = request(&url)?;
            if let Some(accept) = ask.accept {
                request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(accept));
            }
            if ask.from > 0 {
                let range = format!("bytes={}-", ask.from);
                let value = HeaderValue::from_str(&range).expect("digits are a header value");
                request.headers_mut().insert(header::RANGE, value);
            }
            let at_home = url.origin() == first.origin();
            if let Some(token) = token.filter(|_| at_home) {
                set_authorization(&mut request, token)?;
            }
            let response = self.transport.send(request).await?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let to = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
            let next = to.and_then(|to| url.join(to).ok()).filter(|next| {
                next.scheme() == "https" || (next.scheme() == "http" && first.scheme() == "http")
            });
            url = next.ok_or_else(|| {
                Error::Unavailable("the registry redirects to nowhere that can be trusted".into())
            })?;
        }
        Err(Error::Unavailable("the registry redirects in a circle".into()))
    }

    fn is_plain(&self, host: &str) -> bool {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let loopback = name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        name == "localhost" || loopback || self.plain_http.iter().any(|plain| plain == host)
    }

    fn token_of(&self, reference: &Reference) -> Option<String> {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.get(&key(reference)).cloned()
    }

    /// Gets what the registry's 401 asks for.
    async fn authorise(&self, reference: &Reference, refused: &Response<Incoming>) -> Result<()> {
        let login = self.credentials.of(reference.registry());
        let wanted = refused.headers().get(header::WWW_AUTHENTICATE);
        let wanted = wanted.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let token = match wanted.split_once(' ') {
            Some((kind, rest)) if kind.eq_ignore_ascii_case("bearer") => {
                self.bearer(reference, rest).await?
            }
            _ => match login {
                Some(login) => login.basic(),
                None => return Err(denied(reference, "it wants a login")),
            },
        };
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.insert(key(reference), token);
        Ok(())
    }

    async fn bearer(&self, reference: &Reference, challenge: &str) -> Result<String> {
        let fields = parameters(challenge);
        let realm = fields.get("realm").and_then(|realm| Url::parse(realm).ok());
        let plain = self.is_plain(reference.host());
        let mut url = realm
            .filter(|url| url.scheme() == "https" || (url.scheme() == "http" && plain))
            .ok_or_else(|| denied(reference, "it names no realm that can be trusted"))?;
        {
            let mut query = url.query_pairs_mut();
            if let Some(service) = fields.get("service") {
                query.append_pair("service", service);
            }
            query.append_pair("scope", &format!("repository:{}:pull", reference.repository()));
        }
        let mut request = request(&url)?;
        if let Some(login) = self.credentials.of(reference.registry()) {
            set_authorization(&mut request, &login.basic())?;
        }
        let response = self.transport.send(request).await?;
        if !response.status().is_success() {
            return Err(denied(reference, &format!("no token: {}", response.status())));
        }
        let bytes = read_whole(response, TOKEN_BYTES_MAX).await?;
        let token: Option<Token> = serde_json::from_slice(&bytes).ok();
        let token = token.and_then(|token| token.token.or(token.access_token));
        let token = token.ok_or_else(|| denied(reference, "its token is not understood"))?;
        Ok(format!("Bearer {token}"))
    }
}

fn key(reference: &Reference) -> String {
    format!("{}/{}", reference.host(), reference.repository())
}

fn request(url: &Url) -> Result<Request<Body>> {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let host = format!("{}{port}", url.host_str().unwrap_or_default());
    Request::get(url.as_str())
        .header(header::HOST, host)
        .header(header::USER_AGENT, "bastide")
        .body(Empty::new())
        .map_err(|error| Error::Invalid(error.to_string()))
}

fn set_authorization(request: &mut Request<Body>, text: &str) -> Result<()> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| Error::Denied("the login cannot be sent: it has odd characters".into()))?;
    value.set_sensitive(true);
    request.headers_mut().insert(header::AUTHORIZATION, value);
    Ok(())
}

/// `realm="…",service="…"`.
fn parameters(challenge: &str) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut rest = challenge;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([' ', ',']).to_ascii_lowercase();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        fields.insert(name, value.to_owned());
        rest = after;
    }
    fields
}

pub(crate) async fn read_whole(response: Response<Incoming>, max: usize) -> Result<Vec<u8>> {
    let body = Limited::new(response.into_body(), max);
    match timeout(IDLE_MAX, body.collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes().to_vec()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            Err(Error::TooLarge(format!("the registry sends more than {max} bytes")))
        }
        Ok(Err(_)) => Err(Error::Unavailable("the registry's answer broke off".into())),
        Err(_) => Err(Error::Unavailable("the registry's answer stopped".into())),
    }
}

fn is_busy(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

fn retry_after(response: &Response<Incoming>, tries: u32) -> Duration {
    let said = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    let seconds = said.and_then(|text| text.parse().ok()).map(Duration::from_secs);
    seconds.unwrap_or(Duration::from_millis(300) * 2u32.pow(tries)).min(WAIT_MAX)
}

async fn refusal(reference: &Reference, response: Response<Incoming>) -> Error {
    let status = response.status();
    let body = read_whole(response, 64 << 10).await.unwrap_or_default();
    let said = registry_says(&body).unwrap_or_else(|| status.to_string());
    match status {
        StatusCode::NOT_FOUND => {
            Error::Unknown(format!("no such image: {reference}: the registry says: {said}"))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => denied(reference, &said),
        _ => Error::Unavailable(format!("the registry of {reference} says: {said}")),
    }
}

fn denied(reference: &Reference, said: &str) -> Error {
    let registry = reference.registry();
    Error::Denied(format!("{registry} does not give {reference} to us: {said}"))
}

/// The first error of the registry's list, in printable characters and not much of it.
fn registry_says(body: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(body).ok()?;
    let first = value.get("errors")?.get(0)?;
    let field = |name: &str| first.get(name).and_then(|one| one.as_str()).unwrap_or_default();
    let text = format!("{} {}", field("code"), field("message"));
    let text: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
    Some(text.trim().to_owned())
}

pub(crate) fn wrong_digest(what: &str) -> Error {
    Error::Corrupt(format!("{what} is not what its digest says"))
}
