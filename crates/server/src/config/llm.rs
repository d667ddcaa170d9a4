//! Which models sessions have, and where models, and backends that keep conversations, may be beside HTTPS at
//! public addresses.

use std::fmt;

use anyhow::ensure;
use api::session::is_model;
use model::Vendor;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use url::{Origin, Url};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Llm {
    pub allowed_base_urls: Origins,
    pub default_models: DefaultModels,
}

/// Of sessions that name none; what is left out stays as it is here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DefaultModels {
    pub anthropic: String,
    pub openai: String,
    pub google: String,
    pub deepseek: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PersistenceSettings {
    pub allowed_urls: Origins,
}

/// `"http://10.20.0.9:4000"`, several with commas, or an array of such.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins(pub Vec<Origin>);

impl Default for DefaultModels {
    fn default() -> Self {
        Self {
            anthropic: "claude-sonnet-4-5".into(),
            openai: "gpt-5".into(),
            google: "gemini-2.5-pro".into(),
            deepseek: "deepseek-chat".into(),
        }
    }
}

impl DefaultModels {
    pub(crate) fn of(&self, vendor: Vendor) -> &str {
        match vendor {
            Vendor::Anthropic => &self.anthropic,
            Vendor::OpenAi => &self.openai,
            Vendor::Google => &self.google,
            Vendor::DeepSeek => &self.deepseek,
        }
    }

    /// What no session could ask for is no default either.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        for vendor in [Vendor::Anthropic, Vendor::OpenAi, Vendor::Google, Vendor::DeepSeek] {
            let (name, model) = (vendor.as_str(), self.of(vendor));
            let detail = "must be 1 to 128 of a-z, A-Z, 0-9, . _ -";
            ensure!(is_model(model), "llm.default_models.{name}: {detail}: {model:?}");
        }
        Ok(())
    }
}

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
