//! Egress policies: what a sandbox may reach, by host name, CIDR and port (DESIGN 5 *Network*).
//!
//! Closed unless allowed. A name rule never allows an address that was written as a number, and a
//! public rule never allows a private address: whoever dials checks the address with
//! [`is_public`] unless a CIDR rule names it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Error;

/// The name of a policy of the configuration: `none`, `default`, `open`, or the operator's own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PolicyName(String);

impl PolicyName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for PolicyName {
    fn default() -> Self {
        Self("default".into())
    }
}

impl FromStr for PolicyName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        if text.is_empty() || text.len() > 63 || !text.bytes().all(good) {
            return Err(Error::invalid("policy", format!("not a policy name: {text:?}")));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for PolicyName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<PolicyName> for String {
    fn from(name: PolicyName) -> Self {
        name.0
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What may be reached. No rules: nothing, not even name resolution.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Policy {
    pub rules: Vec<Rule>,
}

/// `host[:port]`, `*.host[:port]`, `cidr[:port]`, or `public[:port]` for the public internet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub to: Target,
    /// Any port when absent.
    pub port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Exactly this name, lower case, no final dot.
    Host(String),
    /// Any name below this one (`*.example.com` has `example.com`), not the name itself.
    Below(String),
    /// These addresses, private ones too: the operator wrote them down.
    Net(IpNet),
    /// Every name and every public address.
    Public,
}

impl Policy {
    /// Nothing at all.
    pub fn none() -> Self {
        Self::default()
    }

    /// The public internet.
    pub fn open() -> Self {
        Self { rules: vec![Rule { to: Target::Public, port: None }] }
    }

    pub fn parse(rules: &[String]) -> Result<Self, Error> {
        let rules = rules.iter().map(|rule| rule.parse()).collect::<Result<_, _>>()?;
        Ok(Self { rules })
    }

    pub fn is_closed(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether `name` may be resolved at all (some port of it is allowed). An address rule
    /// does not make a name resolvable.
    pub fn allows_name(&self, name: &str) -> bool {
        self.rules.iter().any(|rule| rule.covers_name(name))
    }

    /// Whether a connection to `name` on `port` may be dialled. The address it resolves to must
    /// still be public, or allowed by [`Policy::allows_address`].
    pub fn allows(&self, name: &str, port: u16) -> bool {
        self.rules.iter().any(|rule| rule.covers_port(port) && rule.covers_name(name))
    }

    /// Whether an address that a program wrote as a number may be dialled on `port`.
    pub fn allows_address(&self, address: IpAddr, port: u16) -> bool {
        let address = address.to_canonical();
        self.rules.iter().any(|rule| rule.covers_port(port) && rule.covers_address(address))
    }

    /// Whether the operator listed this address, so that a private one may be dialled.
    pub fn lists_address(&self, address: IpAddr, port: u16) -> bool {
        let address = address.to_canonical();
        self.rules.iter().any(|rule| {
            rule.covers_port(port) && matches!(&rule.to, Target::Net(net) if net.contains(&address))
        })
    }

    /// Whether every public name and address is allowed on `port`, so that it does not matter which
    /// of them a connection is for.
    pub fn is_open(&self, port: u16) -> bool {
        self.rules.iter().any(|rule| rule.covers_port(port) && rule.to == Target::Public)
    }
}

impl Rule {
    fn covers_port(&self, port: u16) -> bool {
        self.port.is_none_or(|allowed| allowed == port)
    }

    fn covers_name(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        match &self.to {
            Target::Host(host) => *host == name,
            Target::Below(parent) => name
                .strip_suffix(parent.as_str())
                .is_some_and(|head| head.len() > 1 && head.ends_with('.')),
            Target::Public => true,
            Target::Net(_) => false,
        }
    }

    fn covers_address(&self, address: IpAddr) -> bool {
        match &self.to {
            Target::Net(net) => net.contains(&address),
            Target::Public => is_public(address),
            Target::Host(_) | Target::Below(_) => false,
        }
    }
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |detail: &str| Error::invalid("policy", format!("{detail}: {text:?}"));
        let (target, port) = split_port(text).ok_or_else(|| wrong("bad port in rule"))?;
        if target == "public" || target == "*" {
            return Ok(Self { to: Target::Public, port });
        }
        if let Ok(net) = target.parse::<IpNet>() {
            return Ok(Self { to: Target::Net(net), port });
        }
        if let Ok(address) = target.parse::<IpAddr>() {
            return Ok(Self { to: Target::Net(address.into()), port });
        }
        let lower = target.to_ascii_lowercase();
        let (name, below) = match lower.strip_prefix("*.") {
            Some(parent) => (parent, true),
            None => (lower.as_str(), false),
        };
        let Some(name) = host_name(name) else {
            return Err(wrong("neither a host name, *.name, address, CIDR nor `public`"));
        };
        Ok(Self { to: if below { Target::Below(name) } else { Target::Host(name) }, port })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            Target::Host(host) => f.write_str(host)?,
            Target::Below(parent) => write!(f, "*.{parent}")?,
            Target::Net(net) if net.addr().is_ipv6() && self.port.is_some() => {
                write!(f, "[{net}]")?
            }
            Target::Net(net) => write!(f, "{net}")?,
            Target::Public => f.write_str("public")?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl Serialize for Rule {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Globally routable unicast: not loopback, private, link-local (metadata), shared, benchmark,
/// documentation, multicast or reserved; in IPv6 also not ULA and no IPv4 in disguise that is not.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            let reserved = match a {
                0 | 10 | 127 => true,
                100 => (64..128).contains(&b),
                169 => b == 254,
                172 => (16..32).contains(&b),
                192 => b == 168 || (b == 0 && (c == 0 || c == 2)) || (b == 88 && c == 99),
                198 => b == 18 || b == 19 || (b == 51 && c == 100),
                203 => b == 0 && c == 113,
                _ => a >= 224,
            };
            !reserved
        }
        IpAddr::V6(v6) => {
            let head = v6.segments();
            // Only 2000::/3 is global unicast; of it, leave out documentation, 6to4, Teredo.
            let global = head[0] & 0xe000 == 0x2000;
            let special = head[0] == 0x2002 || (head[0] == 0x2001 && head[1] < 0x0200);
            let documentation = (head[0] == 0x2001 && head[1] == 0x0db8) || head[0] == 0x3fff;
            global && !special && !documentation
        }
    }
}

/// A host name as policies spell it: lower case, without the final dot. `None` when it is none.
pub fn host_name(text: &str) -> Option<String> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let label_is_good = |label: &str| {
        let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'_';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(inner)
    };
    (name.len() <= 253 && name.split('.').all(label_is_good)).then_some(name)
}

/// `host:443` → (`host`, 443); `[::1]:443` and bare IPv6 too. `None` when the port is not one.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        return match after.strip_prefix(':') {
            Some(port) => Some((inside, Some(port.parse().ok().filter(|p| *p > 0)?))),
            None => after.is_empty().then_some((inside, None)),
        };
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Some((text, None)),
        Some((host, port)) => Some((host, Some(port.parse().ok().filter(|p| *p > 0)?))),
        None => Some((text, None)),
    }
}

#[cfg(test)]
mod tests;
