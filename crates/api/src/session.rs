//! `POST /v1/sessions` (000, rulings 34 and 40): the request and its checks. A pure function: what may be
//! asked for is the table of [`model::catalogue`], the same that the catalogue shows.

mod answer;

use std::collections::BTreeMap;

use model::catalogue::{self, SESSION_TEMPLATES};
use model::{AgentKind, BundleName, Error, OwnerId, Result, Vendor};
use serde::Deserialize;
use serde_json::Value;
use url::Url;
use utoipa::ToSchema;

pub use self::answer::{
    ForkPoint, ForkSession, ForkedFrom, LoggedEvents, ResumeSession, ResumedFrom, Session,
    SessionCreated, SessionDeleted, SessionForked, SessionResumed, SessionUsage, Sessions,
    SessionsQuery, ShownAgent, ShownApp, ShownModel,
};
use crate::agent::{self, AppJson, CapabilitySet, check_slug};
use crate::json;

const TTL_SECONDS_DEFAULT: u64 = 3600;
/// 000's hard cap; larger values are clamped to it.
const TTL_SECONDS_MAX: u64 = 7200;
const BUNDLES_MAX: usize = 10;
const SET_DEFAULT: &str = "default";

#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "agent": { "kind": "deictic" },
    "template": "standard",
    "llm": { "vendor": "anthropic", "model": "claude-sonnet-4-5" },
    "secrets": ["my-llm-keys"],
    "app": { "id": "deictic", "set_id": "default" },
    "user_id": "usr_ann",
    "ttl_seconds": 3600
}))]
pub struct CreateSession {
    pub agent: SessionAgent,
    /// `standard`, `browser` or `cua`.
    pub template: String,
    pub llm: SessionModel,
    /// Bundles of secrets, at most 10.
    #[serde(default)]
    pub secrets: Vec<String>,
    #[serde(default)]
    pub app: Option<SessionApp>,
    /// Your own id.
    pub user_id: String,
    /// At most 7200; more counts as that.
    #[serde(default)]
    pub ttl_seconds: Option<u64>,
    /// 2, or 1 for a single agent in the plain form.
    #[serde(default)]
    pub wire_version: Option<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionAgent {
    /// An `app_id` of the catalogue.
    pub kind: String,
    #[serde(default)]
    pub version: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionModel {
    /// `anthropic`, `openai`, `google` or `deepseek`.
    pub vendor: String,
    #[serde(default)]
    pub model: Option<String>,
    /// HTTPS, at a public address.
    #[serde(default)]
    pub base_url: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionApp {
    pub id: String,
    #[serde(default)]
    pub set_id: Option<String>,
    /// An array of sets, or an object of them by name; empty for the catalogue's own.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub capability_sets: Option<Value>,
}

/// What a session is to be, as far as can be told without asking anybody.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedSession {
    pub kind: AgentKind,
    pub agent: &'static catalogue::Entry,
    pub agent_version: Option<String>,
    pub template: &'static str,
    pub vendor: Vendor,
    pub model: Option<String>,
    pub base_url: Option<Url>,
    pub secrets: Vec<BundleName>,
    pub app_id: String,
    pub set_id: String,
    /// Absent for the default agent.
    pub app: Option<AppJson>,
    pub ttl_seconds: u64,
    pub wire_version: u8,
}

impl CreateSession {
    /// `caller` is who asks: sessions for others are not made.
    pub fn check(self, caller: &OwnerId) -> Result<CheckedSession> {
        let unknown = |field: &str, text: &str, known: &str| {
            Error::invalid(field, format!("unknown: {text:?}; try {known}"))
        };
        let agent = catalogue::session_agent(&self.agent.kind)
            .ok_or_else(|| unknown("agent.kind", &self.agent.kind, &kinds()))?;
        let kind = AgentKind::of_session(agent.app_id);
        let kind = kind.ok_or_else(|| unknown("agent.kind", &self.agent.kind, &kinds()))?;
        if let Some(version) = &self.agent.version {
            check_slug("agent.version", version)?;
        }
        let template = SESSION_TEMPLATES.iter().find(|known| **known == self.template);
        let template = *template
            .ok_or_else(|| unknown("template", &self.template, &SESSION_TEMPLATES.join(", ")))?;
        let vendor = Vendor::named(&self.llm.vendor).ok_or_else(|| {
            unknown("llm.vendor", &self.llm.vendor, "anthropic, openai, google or deepseek")
        })?;
        self.llm.model.as_deref().map(check_model).transpose()?;
        let base_url = self.llm.base_url.as_deref();
        let base_url = base_url.map(|text| agent::check_url("llm.base_url", text)).transpose()?;
        if self.user_id != caller.as_str() {
            return Err(Error::invalid("user_id", format!("must be your own id, {caller}")));
        }
        let secrets = secrets(&self.secrets)?;
        let ttl_seconds = lifetime(self.ttl_seconds)?;
        let wire_version = self.wire_version.unwrap_or(2);
        if !matches!(wire_version, 1 | 2) {
            return Err(Error::invalid("wire_version", format!("must be 1 or 2: {wire_version}")));
        }
        let (app_id, set_id, app) = check_app(self.app, agent)?;
        if wire_version == 1 && app.as_ref().is_some_and(|app| app.agent_count() > 1) {
            return Err(Error::invalid("wire_version", "multi-agent requires wire_version=2"));
        }
        Ok(CheckedSession {
            kind,
            agent,
            agent_version: self.agent.version,
            template,
            vendor,
            model: self.llm.model,
            base_url,
            secrets,
            app_id,
            set_id,
            app,
            ttl_seconds,
            wire_version,
        })
    }
}

fn kinds() -> String {
    catalogue::CATALOGUE.iter().map(|entry| entry.app_id).collect::<Vec<_>>().join(", ")
}

/// How long a session is to be, with 000's cap.
fn lifetime(ttl_seconds: Option<u64>) -> Result<u64> {
    match ttl_seconds.unwrap_or(TTL_SECONDS_DEFAULT) {
        0 => Err(Error::invalid("ttl_seconds", "must be at least 1")),
        seconds => Ok(seconds.min(TTL_SECONDS_MAX)),
    }
}

/// `^[a-zA-Z0-9._-]{1,128}$`.
pub fn is_model(model: &str) -> bool {
    let good = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    !model.is_empty() && model.len() <= 128 && model.bytes().all(good)
}

fn check_model(model: &str) -> Result<()> {
    if !is_model(model) {
        return Err(Error::invalid("llm.model", "must be 1 to 128 of a-z, A-Z, 0-9, . _ -"));
    }
    Ok(())
}

fn secrets(names: &[String]) -> Result<Vec<BundleName>> {
    if names.len() > BUNDLES_MAX {
        return Err(Error::invalid("secrets", format!("at most {BUNDLES_MAX} bundles")));
    }
    let parse = |(i, name): (usize, &String)| {
        name.parse().map_err(|_| {
            Error::invalid(format!("secrets[{i}]"), format!("not a bundle's name: {name:?}"))
        })
    };
    names.iter().enumerate().map(parse).collect()
}

/// An app of the catalogue has the catalogue's sets; one of your own has what it says.
fn check_app(
    app: Option<SessionApp>,
    agent: &catalogue::Entry,
) -> Result<(String, String, Option<AppJson>)> {
    let Some(app) = app else { return Ok((agent.app_id.into(), SET_DEFAULT.into(), None)) };
    check_slug("app.id", &app.id)?;
    let set_id = app.set_id.unwrap_or_else(|| SET_DEFAULT.into());
    check_slug("app.set_id", &set_id)?;
    let known = catalogue::entry(&app.id);
    if known.is_some_and(|entry| entry.set(&set_id).is_none()) {
        return Err(Error::invalid("app.set_id", format!("{} has no set {set_id:?}", app.id)));
    }
    let sets = sets(app.capability_sets)?;
    let json = (!sets.is_empty()).then(|| AppJson { name: app.id.clone(), capability_sets: sets });
    let json = json.map(|app| agent::check_app("app", app)).transpose()?;
    Ok((app.id, set_id, json))
}

/// An array, or an object whose keys are the sets' names.
fn sets(value: Option<Value>) -> Result<Vec<CapabilitySet>> {
    const FIELD: &str = "app.capability_sets";
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Object(by_name)) => {
            let by_name: BTreeMap<_, _> = by_name.into_iter().collect();
            let set = |(name, mut set): (String, Value)| {
                if let Some(fields) = set.as_object_mut() {
                    fields.entry("name").or_insert_with(|| name.clone().into());
                }
                json::from_value(&format!("{FIELD}.{name}"), set)
            };
            by_name.into_iter().map(set).collect()
        }
        Some(other) => json::from_value(FIELD, other),
    }
}

#[cfg(test)]
mod tests;
