//! Where models, and backends that keep conversations, may be beside HTTPS at public addresses.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use url::{Origin, Url};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Llm {
    pub allowed_base_urls: Origins,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PersistenceSettings {
    pub allowed_urls: Origins,
}

/// `"http://10.20.0.9:4000"`, several with commas, or an array of such.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins(pub Vec<Origin>);

impl Origins {
    /// Whether a URL is at one of them: the same scheme, host and port, whatever its path.
    pub fn have(&self, url: &Url) -> bool {
        self.0.contains(&url.origin())
    }
}

impl fmt::Display for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, origin) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{}", origin.ascii_serialization())?;
        }
        Ok(())
    }
}

impl Serialize for Origins {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Origins {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Several)
    }
}

struct Several;

impl<'de> Visitor<'de> for Several {
    type Value = Origins;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an origin (https://models.corp.example), or several")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Origins, E> {
        let all = text.split(',').map(str::trim).filter(|one| !one.is_empty());
        all.map(origin).collect::<Result<_, _>>().map(Origins)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Origins, A::Error> {
        let mut all = Vec::new();
        while let Some(text) = items.next_element::<String>()? {
            all.push(origin(&text)?);
        }
        Ok(Origins(all))
    }
}

fn origin<E: Error>(text: &str) -> Result<Origin, E> {
    let url = Url::parse(text).ok().filter(|url| {
        let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        let anonymous = url.username().is_empty() && url.password().is_none();
        matches!(url.scheme(), "http" | "https") && url.has_host() && bare && anonymous
    });
    let wrong =
        || E::custom(format!("not an origin, such as https://models.corp.example: {text:?}"));
    url.map(|url| url.origin()).ok_or_else(wrong)
}
