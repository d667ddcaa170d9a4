//! How clients reach what we listen on.

use std::net::SocketAddr;

use anyhow::Result;

use crate::app::PublicAddress;
use crate::config::Config;

/// `public_url`, or the address that is listened on.
pub(super) fn public_address(config: &Config, bound: SocketAddr) -> Result<PublicAddress> {
    let https = config.tls_cert.is_some();
    let text = match &config.public_url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => {
            let scheme = if https { "https" } else { "http" };
            format!("{scheme}://{}", reachable(bound))
        }
    };
    PublicAddress::new(text)
}

/// `rt_public_url`, or the public address as `WebSocket`s call it.
pub(super) fn rt_url(config: &Config, address: &PublicAddress) -> String {
    let url = config.rt_public_url.as_deref().unwrap_or(&address.url).trim_end_matches('/');
    // `http` becomes `ws`, and `https` `wss`.
    url.strip_prefix("http").map_or_else(|| url.to_owned(), |rest| format!("ws{rest}"))
}

/// An address to connect to: what listens everywhere is here too.
pub(super) fn reachable(bound: SocketAddr) -> SocketAddr {
    match (bound.ip().is_unspecified(), bound) {
        (false, bound) => bound,
        (true, SocketAddr::V4(_)) => ([127, 0, 0, 1], bound.port()).into(),
        (true, SocketAddr::V6(_)) => (std::net::Ipv6Addr::LOCALHOST, bound.port()).into(),
    }
}
