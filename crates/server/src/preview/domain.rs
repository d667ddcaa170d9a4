//! The domain under which every port of every sandbox has a host, and so an origin, of its own.

use model::{SandboxId, host_name};

use crate::app::PublicAddress;

/// What browsers and resolvers take for this machine, whatever is before it (RFC 6761).
const LOCAL: &str = "sandbox.localhost";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Domain {
    /// Lower case, without a port.
    name: String,
    /// As it is written after the name: empty, or `:8443`.
    port: String,
    /// The API's own host, which may be below the domain.
    api: String,
}

impl Domain {
    /// What the setting says; without it, one for this machine alone when clients of the API are
    /// on it too. `None`: there is only the path form.
    pub(crate) fn new(setting: Option<&str>, address: &PublicAddress) -> Option<Self> {
        let api = address.host().to_ascii_lowercase();
        let is_local = api == "localhost"
            || api.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        let setting = match setting {
            Some(setting) => setting,
            None if is_local => LOCAL,
            None => return None,
        };
        let (name, port) = Self::parse(setting)?;
        let port = port.or_else(|| address.explicit_port());
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        Some(Self { name, port, api })
    }

    /// `host` or `host:port`.
    pub(crate) fn parse(text: &str) -> Option<(String, Option<u16>)> {
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(port.parse().ok().filter(|port| *port > 0)?)),
            None => (text, None),
        };
        // One label would make the sandboxes' hosts neighbours of everything below it.
        let name = host_name(name).filter(|name| name.contains('.') && name.len() <= 200)?;
        Some((name, port))
    }

    /// The host of a port.
    pub(super) fn authority(&self, sandbox: SandboxId, port: u16) -> String {
        format!("{port}-{}.{}{}", sandbox.bare(), self.name, self.port)
    }

    /// What is before the domain in `authority`; `None` when it is not below it.
    pub(super) fn label<'a>(&self, authority: &'a str) -> Option<&'a str> {
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|c| c.is_ascii_digit()) => host,
            Some(_) | None => authority,
        };
        let host = host.strip_suffix('.').unwrap_or(host);
        if host.eq_ignore_ascii_case(&self.api) {
            return None;
        }
        let at = host.len().checked_sub(self.name.len())?;
        let (before, name) = host.split_at_checked(at)?;
        name.eq_ignore_ascii_case(&self.name).then(|| before.strip_suffix('.')).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(setting: Option<&str>, url: &str) -> Option<Domain> {
        Domain::new(setting, &PublicAddress::new(url.into()).unwrap())
    }

    #[test]
    fn a_machine_of_ones_own_needs_no_setting() {
        let id: SandboxId = "01jabcdefghjkmnpqrstvwxyz0".parse().unwrap();
        let local = domain(None, "http://127.0.0.1:8080").unwrap();
        let host = "8000-01jabcdefghjkmnpqrstvwxyz0.sandbox.localhost:8080";
        assert_eq!(local.authority(id, 8000), host);
        assert_eq!(domain(None, "https://api.example.com"), None);
        let set = domain(Some("box.example.com"), "https://api.example.com").unwrap();
        assert!(set.authority(id, 80).ends_with(".box.example.com"));
        let set = domain(Some("box.example.com:444"), "https://api.example.com").unwrap();
        assert!(set.authority(id, 80).ends_with(".box.example.com:444"));
    }

    #[test]
    fn only_what_is_below_the_domain_is_a_sandboxs() {
        let domain = domain(Some("example.com"), "https://api.example.com").unwrap();
        assert_eq!(domain.label("80-x.example.com"), Some("80-x"));
        assert_eq!(domain.label("80-X.EXAMPLE.com.:443"), Some("80-X"));
        assert_eq!(domain.label("a.b.example.com"), Some("a.b"));
        for other in ["example.com", "api.example.com", "API.example.com:443", "badexample.com", ""]
        {
            assert_eq!(domain.label(other), None, "{other}");
        }
    }

    #[test]
    fn a_domain_is_a_host_of_two_labels_at_least() {
        assert!(Domain::parse("sandbox.localhost").is_some());
        for bad in ["", "localhost", "a b.c", "a.b:0", "a.b:x", "http://a.b", "*.a.b"] {
            assert_eq!(Domain::parse(bad), None, "{bad}");
        }
    }
}
