//! Where the server listens: one address or several.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `"127.0.0.1:8080"`, `"127.0.0.1:8080,[::1]:8080"` or an array of such.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen(pub Vec<SocketAddr>);

impl Default for Listen {
    fn default() -> Self {
        Self(vec![(Ipv4Addr::LOCALHOST, 8080).into()])
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, address) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{address}")?;
        }
        Ok(())
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrMany)
    }
}

struct OneOrMany;

impl<'de> Visitor<'de> for OneOrMany {
    type Value = Listen;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address with a port (127.0.0.1:8080), or several")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Listen, E> {
        text.split(',').map(|one| address(one.trim())).collect::<Result<_, _>>().map(Listen)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Listen, A::Error> {
        let mut all = Vec::new();
        while let Some(text) = items.next_element::<String>()? {
            all.push(address(&text)?);
        }
        if all.is_empty() {
            return Err(A::Error::invalid_length(0, &self));
        }
        Ok(Listen(all))
    }
}

fn address<E: Error>(text: &str) -> Result<SocketAddr, E> {
    let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    local.as_deref().unwrap_or(text).parse().map_err(|_| {
        E::custom(format!("not an address with a port, such as 127.0.0.1:8080: {text:?}"))
    })
}
