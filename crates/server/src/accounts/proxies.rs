//! Whose address a request comes from. `X-Forwarded-For` counts only as far as proxies that we trust
//! have written it: anybody can send the header.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use axum::http::HeaderMap;
use ipnet::IpNet;

#[derive(Clone)]
pub(crate) struct Proxies(Arc<Vec<IpNet>>);

impl Proxies {
    pub(crate) fn new(trusted: Vec<IpNet>) -> Self {
        Self(Arc::new(trusted))
    }

    /// The nearest address that is not one of our own proxies.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        let lines = headers.get_all("x-forwarded-for");
        let told: Vec<&str> = lines.iter().filter_map(|line| line.to_str().ok()).collect();
        let told = told.join(",");
        let mut hops = told.rsplit(',').map(str::trim);
        while self.trusts(client) {
            let Some(Ok(next)) = hops.next().map(str::parse::<IpAddr>) else { break };
            client = next.to_canonical();
        }
        client
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.0.iter().any(|net| net.contains(&address))
    }
}

/// Whom a bound on attempts is for: an IPv4 address, or the network that one customer has.
pub(crate) fn attempter(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(peer: &str, told: &[&str], client: &str) {
        let proxies = Proxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
        let mut headers = HeaderMap::new();
        for line in told {
            headers.append("x-forwarded-for", line.parse().unwrap());
        }
        let seen = proxies.client(peer.parse().unwrap(), &headers);
        assert_eq!(seen, client.parse::<IpAddr>().unwrap());
    }

    #[test]
    fn only_what_a_trusted_proxy_has_written_is_believed() {
        check("192.0.2.1", &[], "192.0.2.1");
        check("192.0.2.1", &["198.51.100.7"], "192.0.2.1");
        check("10.0.0.1", &["198.51.100.7"], "198.51.100.7");
        check("10.0.0.1", &["203.0.113.9, 198.51.100.7"], "198.51.100.7");
        check("10.0.0.1", &["203.0.113.9", "198.51.100.7, 10.0.0.2"], "198.51.100.7");
        check("10.0.0.1", &["203.0.113.9, nonsense"], "10.0.0.1");
        check("10.0.0.1", &[], "10.0.0.1");
        check("::ffff:10.0.0.1", &["::ffff:198.51.100.7"], "198.51.100.7");
    }

    #[test]
    fn one_customers_addresses_count_as_one() {
        let of = |text: &str| attempter(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2:ffff::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
