//! Which URLs of a tenant's may be called, and how: HTTPS at public addresses, and the origins that the
//! operator lists for the purpose (models, or backends that keep conversations). Names are resolved by the rules of egress, every address is checked, and what was
//! checked is what is dialled. Redirects are not followed: a key goes where it was meant to go.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use driver_linux::egress::{LookupError, Resolver};
use model::Error;
use reqwest::Client;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use url::Url;

use crate::config::Origins;

const CONNECT_MAX: Duration = Duration::from_secs(20);
/// Between two pieces of an answer. A model may think for a while without a word.
const SILENCE_MAX: Duration = Duration::from_secs(600);
/// Connections of one host that wait for the next call.
const IDLE_MAX: usize = 16;
const IDLE_FOR: Duration = Duration::from_secs(60);

pub(crate) struct Upstream {
    /// Dials public addresses only.
    public: Client,
    /// Dials anything; for origins that are listed.
    listed: Client,
    allowed: Origins,
    resolver: Arc<Resolver>,
}

impl Upstream {
    pub(crate) fn new(
        hosts: BTreeMap<String, Vec<IpAddr>>,
        allowed: Origins,
    ) -> anyhow::Result<Self> {
        // The clients take the process's own. A second one changes nothing.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let resolver = Arc::new(Resolver::with_hosts(hosts));
        Ok(Self {
            public: client(&resolver, false)?,
            listed: client(&resolver, true)?,
            allowed,
            resolver,
        })
    }

    /// Whether a URL that a tenant sent in `field` may be called, as far as one can tell now.
    pub(crate) async fn check(&self, field: &str, url: &Url) -> model::Result<()> {
        let wrong = |why: &dyn std::fmt::Display| {
            Error::invalid(field, format!("{why}: {:?}", url.as_str()))
        };
        self.client(url).await.map_err(|why| wrong(&why))?;
        self.check_name(url).await.map_err(|why| wrong(&why))
    }

    /// What may call it. The names of others than those listed are checked when they are dialled.
    pub(crate) async fn client(&self, url: &Url) -> Result<&Client, String> {
        if self.allowed.have(url) {
            return Ok(&self.listed);
        }
        if url.scheme() != "https" {
            return Err("must be https".into());
        }
        // An address as a number is not resolved, so nobody would look at it.
        match url.host() {
            Some(url::Host::Domain(_)) => Ok(&self.public),
            Some(url::Host::Ipv4(_) | url::Host::Ipv6(_)) => {
                self.check_name(url).await.map_err(|_| "must be at a public address".to_owned())?;
                Ok(&self.public)
            }
            None => Err("has no host".into()),
        }
    }

    async fn check_name(&self, url: &Url) -> Result<(), LookupError> {
        let host = url.host_str().unwrap_or_default();
        self.resolver.addresses(host, self.allowed.have(url)).await.map(drop)
    }
}

fn client(resolver: &Arc<Resolver>, anywhere: bool) -> anyhow::Result<Client> {
    let resolver = Arc::new(Checked { resolver: Arc::clone(resolver), anywhere });
    Client::builder()
        .dns_resolver(resolver)
        .no_proxy()
        .redirect(Policy::none())
        .connect_timeout(CONNECT_MAX)
        .read_timeout(SILENCE_MAX)
        .pool_max_idle_per_host(IDLE_MAX)
        .pool_idle_timeout(IDLE_FOR)
        .build()
        .context("make a client for what tenants name")
}

/// Resolves by the rules of egress.
struct Checked {
    resolver: Arc<Resolver>,
    anywhere: bool,
}

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let (resolver, anywhere) = (Arc::clone(&self.resolver), self.anywhere);
        Box::pin(async move {
            let found = resolver.addresses(name.as_str(), anywhere).await?;
            // The URL has the port.
            let all: Addrs = Box::new(found.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(all)
        })
    }
}
