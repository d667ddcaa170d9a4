//! What stands before the tools: whose Host and Origin may ask (against DNS rebinding), and the bearer.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use engine::Caller;
use model::{Plan, QuotaRow};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::identity::{Identity, bearer};
use crate::app::App;
use crate::auth;
use crate::listen::PeerAddress;
use crate::refusal::Refusal;

/// Names under which the server may be asked, beside addresses and `localhost`.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Names {
    pub(super) fn new(public: &str, hosts: &[String], origins: &[String]) -> Self {
        let lower = |text: &String| text.trim_end_matches('/').to_ascii_lowercase();
        let public = public.to_ascii_lowercase();
        let hosts = std::iter::once(public).chain(hosts.iter().map(lower)).collect();
        Self { hosts, origins: origins.iter().map(lower).collect() }
    }

    /// A page on the internet can make a browser resolve its own name to this machine; it cannot make
    /// it ask for another name, or for an address.
    fn allow(&self, headers: &HeaderMap) -> Result<(), &'static str> {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = host.and_then(|host| Url::parse(&format!("http://{host}/")).ok());
        if !host.is_some_and(|host| self.has(&host, true)) {
            return Err("this Host may not be asked; see code.allowed_hosts");
        }
        let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        let listed = self.origins.contains(&origin);
        let ours = Url::parse(&origin).is_ok_and(|origin| self.has(&origin, false));
        if listed || ours {
            return Ok(());
        }
        Err("this Origin may not ask; see code.allowed_origins")
    }

    fn has(&self, url: &Url, any_address: bool) -> bool {
        let address = match url.host() {
            Some(url::Host::Ipv4(address)) => Some(IpAddr::from(address)),
            Some(url::Host::Ipv6(address)) => Some(IpAddr::from(address)),
            Some(url::Host::Domain(_)) | None => None,
        };
        let name = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let named = name == "localhost" || self.hosts.iter().any(|host| host == name);
        named || address.is_some_and(|address| any_address || address.is_loopback())
    }
}

/// Lets through who may call tools, and says with whose key.
pub(crate) async fn gate(State(app): State<App>, mut request: Request, next: Next) -> Response {
    if let Err(why) = app.code.names.allow(request.headers()) {
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let Some(secret) = bearer(request.headers()) else {
        return Refusal::Unauthorized { sent: false }.into_response();
    };
    let payer = if app.code.calls_us() {
        match auth::caller(&app, request.headers()).await {
            Ok(caller) => caller,
            Err(refusal) => return refusal.into_response(),
        }
    } else {
        // Its own API will look at the key; the sandboxes are the operator's.
        operator()
    };
    let peer = request.extensions().get::<PeerAddress>().copied();
    let gone = CancellationToken::new();
    // Cancelled too when the client goes away, which drops this future.
    let _gone = gone.clone().drop_guard();
    let span = tracing::Span::current();
    request.extensions_mut().insert(Arc::new(Identity { payer, secret, peer, span, gone }));
    next.run(request).await
}

fn operator() -> Caller {
    let owner = crate::operator::owner();
    Caller { owner, plan: Plan::Operator, quota: QuotaRow::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(host: &str, origin: Option<&str>, allowed: bool) {
        let names = Names::new(
            "bastide.example",
            &["Two.example".into()],
            &["https://app.example/".into()],
        );
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        assert_eq!(names.allow(&headers).is_ok(), allowed, "{host} {origin:?}");
    }

    #[test]
    fn only_known_names_and_addresses_may_be_asked() {
        for host in [
            "localhost",
            "localhost:3000",
            "127.0.0.1:3000",
            "[::1]:3000",
            "10.0.0.7",
            "TWO.example",
        ] {
            check(host, None, true);
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "", "a b"] {
            check(host, None, false);
        }
    }

    #[test]
    fn only_pages_of_known_origins_may_ask() {
        let origins = ["http://localhost:5173", "http://127.0.0.1", "http://[::1]:1"];
        for origin in origins.into_iter().chain(["https://app.example", "https://bastide.example"])
        {
            check("localhost", Some(origin), true);
        }
        for origin in ["null", "https://evil.example", "http://app.example", "http://10.0.0.7", ""]
        {
            check("localhost", Some(origin), false);
        }
    }
}
