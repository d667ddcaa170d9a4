//! Which model, where, and with whose key: from what was asked for and from the environment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderValue;
use url::Url;

use crate::protocol::Start;

/// The variables of the process, as its `main` read them.
pub type Environment = BTreeMap<String, String>;

/// Whose wire format is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// The Messages API.
    Anthropic,
    /// The Responses API.
    OpenAi,
    /// Chat Completions, for gateways that know nothing newer.
    OpenAiChat,
    /// `streamGenerateContent`.
    Google,
    /// Chat Completions, with reasoning.
    DeepSeek,
}

/// What the table says of a vendor.
struct Facts {
    vendor: Vendor,
    name: &'static str,
    base_url: &'static str,
    keys: &'static [&'static str],
    base_urls: &'static [&'static str],
    /// How its models are called.
    prefixes: &'static [&'static str],
}

const VENDORS: &[Facts] = &[
    Facts {
        vendor: Vendor::Anthropic,
        name: "anthropic",
        base_url: "https://api.anthropic.com/v1",
        keys: &["ANTHROPIC_API_KEY"],
        base_urls: &["ANTHROPIC_BASE_URL"],
        prefixes: &["claude"],
    },
    Facts {
        vendor: Vendor::OpenAi,
        name: "openai",
        base_url: "https://api.openai.com/v1",
        keys: &["OPENAI_API_KEY"],
        base_urls: &["OPENAI_BASE_URL"],
        prefixes: &["gpt", "chatgpt", "codex", "o1", "o3", "o4"],
    },
    Facts {
        vendor: Vendor::OpenAiChat,
        name: "openai-chat",
        base_url: "https://api.openai.com/v1",
        keys: &["OPENAI_API_KEY"],
        base_urls: &["OPENAI_BASE_URL"],
        prefixes: &[],
    },
    Facts {
        vendor: Vendor::Google,
        name: "google",
        base_url: "https://generativelanguage.googleapis.com/v1beta",
        keys: &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        base_urls: &["GOOGLE_GEMINI_BASE_URL"],
        prefixes: &["gemini", "gemma"],
    },
    Facts {
        vendor: Vendor::DeepSeek,
        name: "deepseek",
        base_url: "https://api.deepseek.com",
        keys: &["DEEPSEEK_API_KEY"],
        base_urls: &["DEEPSEEK_BASE_URL"],
        prefixes: &["deepseek"],
    },
];

/// For every vendor, before its own.
const KEY: &str = "LLM_API_KEY";
const BASE_URL: &str = "LLM_BASE_URL";
const VENDOR: &str = "LLM_VENDOR";
const MODEL: &str = "LLM_MODEL";

impl Vendor {
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// The variables in which its programs look for another address, and for the key.
    pub fn variables(self) -> (Option<&'static str>, Option<&'static str>) {
        let facts = self.facts();
        (facts.base_urls.first().copied(), facts.keys.first().copied())
    }

    fn facts(self) -> &'static Facts {
        let found = VENDORS.iter().find(|facts| facts.vendor == self);
        found.expect("every vendor is in the table")
    }

    /// By its name. The failure says which there are.
    pub fn parse(name: &str) -> Result<Self, String> {
        let found = VENDORS.iter().find(|facts| facts.name == name);
        found.map(|facts| facts.vendor).ok_or_else(|| {
            let names: Vec<_> = VENDORS.iter().map(|facts| facts.name).collect();
            format!("vendor: one of {}: {name}", names.join(", "))
        })
    }

    fn of_model(model: &str) -> Option<Self> {
        let matches = |facts: &&Facts| facts.prefixes.iter().any(|one| model.starts_with(one));
        VENDORS.iter().find(matches).map(|facts| facts.vendor)
    }
}

/// How hard a model is to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    Low,
    Medium,
    High,
}

impl Effort {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }

    /// In tokens, for vendors that want a number.
    pub(crate) fn budget(self) -> u64 {
        match self {
            Self::Low => 2_048,
            Self::Medium => 8_192,
            Self::High => 24_576,
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let all = [Self::Low, Self::Medium, Self::High];
        let found = all.into_iter().find(|effort| effort.as_str() == text);
        found.ok_or_else(|| format!("effort: one of low, medium, high: {text}"))
    }
}

/// A key. It is not shown, and may be replaced while it is in use.
#[derive(Clone)]
pub(crate) struct Key(Arc<Mutex<HeaderValue>>);

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key(…)")
    }
}

impl Key {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(Self(Arc::new(Mutex::new(header(text)?))))
    }

    fn replace(&self, text: &str) -> Result<(), String> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = header(text)?;
        Ok(())
    }

    pub(super) fn value(&self) -> HeaderValue {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn bearer(&self) -> HeaderValue {
        let bytes = [b"Bearer ", self.value().as_bytes()].concat();
        let mut value = HeaderValue::from_bytes(&bytes).expect("it was one without the word");
        value.set_sensitive(true);
        value
    }
}

fn header(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(text.trim())
        .map_err(|_| "the key has characters that no header can have".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// A model that can be asked.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) vendor: Vendor,
    pub(crate) model: String,
    pub(crate) effort: Option<Effort>,
    pub(super) base_url: Url,
    pub(super) key: Key,
}

impl Endpoint {
    /// What was asked for, else what the environment says. The message of the failure says what to set.
    pub(crate) fn resolve(start: &Start, environment: &Environment) -> Result<Self, String> {
        let variable = |name: &str| environment.get(name).filter(|value| !value.is_empty());
        let model = start.model.as_ref().filter(|model| !model.is_empty());
        let model = model.or_else(|| variable(MODEL)).ok_or("deictic needs a model: set model")?;
        // `vendor/model`, where only one name can be given.
        let (prefix, model) = match model.split_once('/') {
            Some((vendor, rest)) if Vendor::parse(vendor).is_ok() => (Some(vendor), rest),
            _ => (None, model.as_str()),
        };
        let vendor = start.vendor.as_deref().or(prefix).or(variable(VENDOR).map(String::as_str));
        let vendor = match vendor {
            Some(name) => Vendor::parse(name)?,
            None => Vendor::of_model(model).ok_or_else(|| {
                format!("vendor: the name of the model does not tell it; set vendor: {model}")
            })?,
        };
        let facts = vendor.facts();
        let first = |names: &[&str]| names.iter().find_map(|name| variable(name));
        let key = variable(KEY).or_else(|| first(facts.keys)).ok_or_else(|| {
            format!("no key for {}: set {KEY} or {}", facts.name, facts.keys.join(" or "))
        })?;
        let base_url = start.base_url.as_ref().or_else(|| variable(BASE_URL));
        let base_url = base_url.or_else(|| first(facts.base_urls));
        let effort = start.effort.as_deref().map(Effort::parse).transpose()?;
        Ok(Self {
            vendor,
            model: model.to_owned(),
            effort,
            base_url: base(vendor, base_url.map_or(facts.base_url, String::as_str))?,
            key: Key::parse(key)?,
        })
    }

    /// The next call has the key that is among these variables, if one is.
    pub(crate) fn change_key(&self, variables: &Environment) -> Result<(), String> {
        let key =
            [KEY].iter().chain(self.vendor.facts().keys).find_map(|name| variables.get(*name));
        key.map_or(Ok(()), |key| self.key.replace(key))
    }

    /// A place below the base.
    pub(super) fn url(&self, path: &str) -> Url {
        let mut url = self.base_url.clone();
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}/{path}"));
        url
    }
}

/// Names of variables that hold keys: commands do not get them.
pub(crate) fn is_secret(name: &str) -> bool {
    name == KEY || VENDORS.iter().any(|facts| facts.keys.contains(&name))
}

/// People write it with or without the version; the vendors' own programs disagree about it too.
fn base(vendor: Vendor, text: &str) -> Result<Url, String> {
    let mut url = Url::parse(text).map_err(|error| format!("base_url: {error}: {text}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(format!("base_url: not an http or https address: {text}"));
    }
    let path = url.path().trim_end_matches('/').to_owned();
    let has_version = path.rsplit('/').next().is_some_and(|last| {
        last.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    let version = match vendor {
        Vendor::Anthropic if !has_version => "/v1",
        Vendor::Google if !has_version => "/v1beta",
        // Elsewhere the base is what its own programs take it for: the version included.
        Vendor::OpenAi | Vendor::OpenAiChat
            if path.is_empty() && url.host_str() == Some("api.openai.com") =>
        {
            "/v1"
        }
        Vendor::Anthropic
        | Vendor::OpenAi
        | Vendor::OpenAiChat
        | Vendor::Google
        | Vendor::DeepSeek => "",
    };
    url.set_path(&format!("{path}{version}"));
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}
