//! The agent of a sandbox: which one, whose model it speaks to, and what its environment says about
//! that. The key of the model is no part of this: nothing here is secret.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, SessionId, TemplateName};

/// Where programs inside find the model relay. An address of the sandbox's own loopback interface,
/// as every IPv4 address is there; no program looks for anything else at it.
pub const RELAY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 19, 255, 254), 4010);

/// What stands for the vendor's base URL inside.
pub const RELAY_URL: &str = "http://198.19.255.254:4010";

/// What stands for the key inside: programs insist on having one.
pub const PLACEHOLDER_KEY: &str = "bastide-relay";

/// An agent of 000; `claude` and `claude-code` are the same one. `OpenCode` and `Mock` are for sessions
/// alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentKind {
    Deictic,
    Claude,
    Codex,
    #[serde(rename = "opencode")]
    OpenCode,
    /// Built into the daemon, the same every time: for those who write clients.
    Mock,
}

/// Whose wire format and whose way to send a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vendor {
    Anthropic,
    OpenAi,
    Google,
    DeepSeek,
}

/// What a sandbox's spec says of its agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSpec {
    pub kind: AgentKind,
    pub vendor: Vendor,
    #[serde(default)]
    pub model: Option<String>,
    /// It has a task, works on it once and ends. Otherwise it waits to be driven.
    pub one_shot: bool,
    /// The model is reached through the relay, and the key stays outside.
    pub relay: bool,
    /// A program of the caller's takes the place of the agent's own.
    #[serde(default)]
    pub own_program: bool,
    /// The session that the sandbox was made for. One that is no session's any more is of no use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
}

/// An agent that a sandbox is to be made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAgent {
    pub spec: AgentSpec,
    /// What the agent is to do and with which key, sealed: kept as long as the sandbox.
    pub sealed: Vec<u8>,
}

impl AgentKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deictic => "deictic",
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::OpenCode => "opencode",
            Self::Mock => "mock",
        }
    }

    /// What the agent of a session may be.
    pub fn of_session(text: &str) -> Option<Self> {
        match text {
            "opencode" => Some(Self::OpenCode),
            "mock" => Some(Self::Mock),
            other => other.parse().ok(),
        }
    }

    /// The template whose layers hold its program; `None` for what every sandbox has.
    pub fn layer(self) -> Option<TemplateName> {
        match self {
            Self::Deictic | Self::Mock => None,
            Self::Claude => Some(TemplateName::of_agent("claude")),
            Self::Codex => Some(TemplateName::of_agent("codex")),
            Self::OpenCode => Some(TemplateName::of_agent("opencode")),
        }
    }
}

impl FromStr for AgentKind {
    type Err = Error;

    /// 000: an unknown agent is *not implemented*, not a bad request.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "deictic" => Ok(Self::Deictic),
            "claude" | "claude-code" => Ok(Self::Claude),
            "codex" => Ok(Self::Codex),
            other => Err(Error::NotImplemented {
                code: "agent_not_available",
                detail: format!("agent: unknown agent {other:?}; try deictic, claude or codex"),
            }),
        }
    }
}

impl fmt::Display for AgentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Vendor {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
            Self::Google => "google",
            Self::DeepSeek => "deepseek",
        }
    }

    /// As [`Vendor::as_str`] says it.
    pub fn named(text: &str) -> Option<Self> {
        [Self::Anthropic, Self::OpenAi, Self::Google, Self::DeepSeek]
            .into_iter()
            .find(|vendor| vendor.as_str() == text)
    }

    /// Whose model it is, by the agent and by how the model's name begins.
    pub fn of(kind: AgentKind, model: Option<&str>) -> Self {
        match kind {
            AgentKind::Claude => return Self::Anthropic,
            AgentKind::Codex => return Self::OpenAi,
            AgentKind::Deictic | AgentKind::OpenCode | AgentKind::Mock => {}
        }
        let model = model.unwrap_or_default();
        let begins = |prefix: &str| model.starts_with(prefix);
        if begins("claude") {
            Self::Anthropic
        } else if begins("gemini") {
            Self::Google
        } else if begins("deepseek") {
            Self::DeepSeek
        } else {
            Self::OpenAi
        }
    }

    /// Where its own API is. What clients of the vendor append to a base URL is appended to it.
    pub fn base_url(self) -> &'static str {
        match self {
            Self::Anthropic => "https://api.anthropic.com",
            Self::OpenAi => "https://api.openai.com/v1",
            Self::Google => "https://generativelanguage.googleapis.com",
            Self::DeepSeek => "https://api.deepseek.com",
        }
    }

    /// The variable in which programs look for another base URL.
    pub fn base_url_variable(self) -> &'static str {
        match self {
            Self::Anthropic => "ANTHROPIC_BASE_URL",
            Self::OpenAi => "OPENAI_BASE_URL",
            Self::Google => "GOOGLE_GEMINI_BASE_URL",
            Self::DeepSeek => "DEEPSEEK_BASE_URL",
        }
    }

    /// The variable in which programs look for the key.
    pub fn key_variable(self) -> &'static str {
        match self {
            Self::Anthropic => "ANTHROPIC_API_KEY",
            Self::OpenAi => "OPENAI_API_KEY",
            Self::Google => "GEMINI_API_KEY",
            Self::DeepSeek => "DEEPSEEK_API_KEY",
        }
    }
}

impl AgentSpec {
    /// What everything in the sandbox is told of the model: where the relay is, and a key that is none.
    /// Nothing without the relay.
    pub fn environment(&self) -> BTreeMap<String, String> {
        if !self.relay {
            return BTreeMap::new();
        }
        let vendor = self.vendor;
        [
            ("LLM_VENDOR", vendor.as_str()),
            ("LLM_BASE_URL", RELAY_URL),
            ("LLM_API_KEY", PLACEHOLDER_KEY),
            (vendor.base_url_variable(), RELAY_URL),
            (vendor.key_variable(), PLACEHOLDER_KEY),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    /// The layer that must lie under its root, if the agent's own program is what runs.
    pub fn layer(&self) -> Option<TemplateName> {
        if self.own_program { None } else { self.kind.layer() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_of_the_address() {
        assert_eq!(RELAY_URL, format!("http://{RELAY}"));
    }

    #[test]
    fn a_model_is_of_the_vendor_that_its_name_begins_like() {
        for (model, vendor) in [
            ("claude-sonnet-4-5", Vendor::Anthropic),
            ("gemini-2.5-pro", Vendor::Google),
            ("deepseek-chat", Vendor::DeepSeek),
            ("gpt-5", Vendor::OpenAi),
            ("o3", Vendor::OpenAi),
            ("my-own-model", Vendor::OpenAi),
        ] {
            assert_eq!(Vendor::of(AgentKind::Deictic, Some(model)), vendor, "{model}");
        }
        assert_eq!(Vendor::of(AgentKind::Claude, None), Vendor::Anthropic);
        assert_eq!(Vendor::of(AgentKind::Codex, None), Vendor::OpenAi);
    }

    #[test]
    fn without_the_relay_the_environment_says_nothing_of_the_model() {
        let mut spec = AgentSpec {
            kind: AgentKind::Claude,
            vendor: Vendor::Anthropic,
            model: None,
            one_shot: true,
            relay: true,
            own_program: false,
            session: None,
        };
        let env = spec.environment();
        assert_eq!(env["ANTHROPIC_BASE_URL"], RELAY_URL);
        assert_eq!(env["ANTHROPIC_API_KEY"], PLACEHOLDER_KEY);
        spec.relay = false;
        assert!(spec.environment().is_empty());
    }
}
