//! The agent's fields of `POST /v1/sandboxes` (000), checked as far as that takes no deployment.
//!
//! What only a deployment can tell, such as whether a URL may be called, is checked by the server.

use std::collections::BTreeMap;

use model::reserved::check_env;
use model::{AgentKind, AgentSpec, Error, Result, Vendor, WorkspaceId};
use serde::{Deserialize, Serialize};
use url::Url;
use utoipa::ToSchema;

use crate::create::{CreateSandbox, Secret, check_word};
use crate::files::check_path;
use crate::json;

/// One argument or variable of a program may have 128 KiB.
const TASK_BYTES_MAX: usize = 120 * 1024;
const SECRET_BYTES_MAX: usize = 8 * 1024;
const COMMAND_BYTES_MAX: usize = 512;
const URL_BYTES_MAX: usize = 2048;
const AGENTS_MAX: usize = 64;

/// An agent that was asked for, with all that it is told.
#[derive(Debug)]
pub struct WantedAgent {
    pub spec: AgentSpec,
    pub llm_key: Secret,
    /// Where the vendor's API is instead, and the field that said so. Neither its scheme nor its address
    /// is checked yet: the deployment may list it.
    pub base_url: Option<(String, Url)>,
    pub task: Option<String>,
    pub session_id: Option<String>,
    pub agent_cmd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub app_json: Option<AppJson>,
    pub wire_version: u32,
    pub persistence: Option<WantedPersistence>,
}

/// Where the conversation is to be kept too.
#[derive(Debug)]
pub struct WantedPersistence {
    /// Neither its scheme nor its address is checked yet: the deployment may list it.
    pub url: Url,
    pub auth_header: Option<Secret>,
}

/// Capability sets and their agents, nested. Several agents need `wire_version` 2.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppJson {
    pub name: String,
    pub capability_sets: Vec<CapabilitySet>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CapabilitySet {
    pub name: String,
    pub agents: Vec<CapabilityAgent>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CapabilityAgent {
    pub name: String,
    #[serde(default)]
    pub capability_name: String,
    #[serde(default)]
    pub capability_description: String,
    /// Default: `read_file`, `write_file`, `list_directory`, `shell_exec`.
    #[serde(default)]
    pub tools: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct CheckedAgent {
    pub(crate) workspace: Option<WorkspaceId>,
    pub(crate) agent: Option<WantedAgent>,
}

/// Checks every agent field, whether or not `agent` was sent. Takes out of `env`, which is checked, what
/// the relay is told instead.
pub(crate) fn check(
    request: &mut CreateSandbox,
    env: &mut BTreeMap<String, String>,
) -> Result<CheckedAgent> {
    let agent = request.agent.as_deref().map(str::parse::<AgentKind>).transpose()?;
    check_companions(request, agent)?;
    check_model(request.model.as_deref(), agent)?;
    check_texts(request)?;
    let wire_version = request.wire_version.unwrap_or(2);
    if !matches!(wire_version, 1 | 2) {
        return Err(Error::invalid("wire_version", format!("must be 1 or 2: {wire_version}")));
    }
    let app = request.app_json.take().map(check_app_json).transpose()?;
    if wire_version == 1 && app.as_ref().is_some_and(|app| app.agent_count() > 1) {
        return Err(Error::invalid("wire_version", "multi-agent requires wire_version=2"));
    }
    let workspace = check_workspace(request)?;
    let persistence = check_persistence(request)?;
    let agent = match (agent, request.llm_key.take()) {
        (Some(kind), Some(llm_key)) => {
            let spec = spec(request, kind);
            let base_url = if spec.relay { take_base_url(env, spec.vendor)? } else { None };
            Some(WantedAgent {
                spec,
                llm_key,
                base_url,
                task: request.task.take(),
                session_id: request.session_id.take(),
                agent_cmd: request.agent_cmd.take(),
                env: request.agent_env.take().unwrap_or_default(),
                app_json: app,
                wire_version,
                persistence,
            })
        }
        (Some(_) | None, _) => None,
    };
    Ok(CheckedAgent { workspace, agent })
}

fn spec(request: &CreateSandbox, kind: AgentKind) -> AgentSpec {
    AgentSpec {
        kind,
        vendor: Vendor::of(kind, request.model.as_deref()),
        model: request.model.clone(),
        one_shot: request.task.is_some(),
        relay: request.model_relay.unwrap_or(true),
        own_program: request.agent_cmd.is_some(),
        session: None,
    }
}

/// A base URL in the caller's environment is where the relay goes; the environment names the relay.
fn take_base_url(
    env: &mut BTreeMap<String, String>,
    vendor: Vendor,
) -> Result<Option<(String, Url)>> {
    let name = vendor.base_url_variable();
    let Some(text) = env.remove(name) else { return Ok(None) };
    let field = format!("env.{name}");
    let url = check_url(&field, &text)?;
    Ok(Some((field, url)))
}

impl AppJson {
    pub(crate) fn agent_count(&self) -> usize {
        self.capability_sets.iter().map(|set| set.agents.len()).sum()
    }
}

/// `llm_key` comes with `agent` and only with it; so do the fields that mean nothing alone.
fn check_companions(request: &CreateSandbox, agent: Option<AgentKind>) -> Result<()> {
    if agent.is_some() {
        return match &request.llm_key {
            None => Err(Error::invalid("llm_key", "required when agent is set")),
            Some(Secret(key)) if key.trim().is_empty() => {
                Err(Error::invalid("llm_key", "must not be empty"))
            }
            Some(key) => check_secret("llm_key", key),
        };
    }
    let alone = [
        ("llm_key", request.llm_key.is_some()),
        ("task", request.task.is_some()),
        ("model", request.model.is_some()),
        ("session_id", request.session_id.is_some()),
        ("agent_cmd", request.agent_cmd.is_some()),
        ("agent_env", request.agent_env.is_some()),
        ("app_json", request.app_json.is_some()),
        ("model_relay", request.model_relay.is_some()),
        ("persistence_url", request.persistence_url.is_some()),
    ];
    match alone.iter().find(|(_, sent)| *sent) {
        Some((field, _)) => Err(Error::invalid(*field, "only together with agent")),
        None => Ok(()),
    }
}

fn check_model(model: Option<&str>, agent: Option<AgentKind>) -> Result<()> {
    let Some(agent) = agent else { return Ok(()) };
    let prefixes: &[&str] = match agent {
        AgentKind::Deictic | AgentKind::OpenCode | AgentKind::Mock => &[""],
        AgentKind::Claude => &["claude"],
        AgentKind::Codex => &["gpt", "o"],
    };
    let Some(model) = model else {
        return match agent {
            AgentKind::Deictic => Err(Error::invalid("model", "required for the agent deictic")),
            AgentKind::Claude | AgentKind::Codex | AgentKind::OpenCode | AgentKind::Mock => Ok(()),
        };
    };
    let good = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-' | b'/' | b':');
    if model.is_empty() || model.len() > 128 || !model.bytes().all(good) {
        return Err(Error::invalid("model", "must be 1 to 128 of a-z, A-Z, 0-9, . _ - / :"));
    }
    if !prefixes.iter().any(|prefix| model.starts_with(prefix)) {
        let wanted = prefixes.join(" or ");
        return Err(Error::invalid("model", format!("must begin with {wanted}: {model:?}")));
    }
    Ok(())
}

fn check_texts(request: &CreateSandbox) -> Result<()> {
    if let Some(task) = &request.task {
        if task.trim().is_empty() {
            return Err(Error::invalid("task", "must not be empty; leave it out for none"));
        }
        if task.len() > TASK_BYTES_MAX || task.contains('\0') {
            let detail = format!("at most {TASK_BYTES_MAX} bytes, and no NUL byte");
            return Err(Error::invalid("task", detail));
        }
    }
    if let Some(id) = &request.session_id {
        check_slug("session_id", id)?;
    }
    if let Some(command) = &request.agent_cmd {
        check_agent_cmd(command)?;
    }
    if let Some(env) = &request.agent_env {
        check_env("agent_env", env)?;
    }
    match &request.persistence_auth_header {
        Some(header) => check_secret("persistence_auth_header", header),
        None => Ok(()),
    }
}

fn check_agent_cmd(command: &str) -> Result<()> {
    let wrong = |detail: String| Err(Error::invalid("agent_cmd", detail));
    if command.len() > COMMAND_BYTES_MAX {
        return wrong(format!("at most {COMMAND_BYTES_MAX} bytes"));
    }
    check_path("agent_cmd", command)?;
    let below = |dir: &str| command.strip_prefix(dir).is_some_and(|rest| !rest.is_empty());
    if !below("/home/user/") && !below("/workspace/") {
        return wrong(format!("must be under /home/user/ or /workspace/: {command:?}"));
    }
    if command.chars().any(char::is_control) {
        return wrong("must not contain control characters".into());
    }
    Ok(())
}

/// Credentials that travel in a header one day: no line breaks.
pub(crate) fn check_secret(field: &str, Secret(text): &Secret) -> Result<()> {
    if text.is_empty() || text.len() > SECRET_BYTES_MAX {
        return Err(Error::invalid(field, format!("must be 1 to {SECRET_BYTES_MAX} bytes")));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::invalid(field, "must not contain line breaks or control characters"));
    }
    Ok(())
}

/// Its two names are checked also when it is not wanted.
fn check_workspace(request: &CreateSandbox) -> Result<Option<WorkspaceId>> {
    let wanted = request.workspace_enabled == Some(true);
    for (field, value) in [("app_id", &request.app_id), ("capset_id", &request.capset_id)] {
        match value {
            Some(id) => check_slug(field, id)?,
            None if wanted => return Err(Error::invalid(field, "required with workspace_enabled")),
            None => {}
        }
    }
    let (Some(app), Some(capset)) = (&request.app_id, &request.capset_id) else { return Ok(None) };
    wanted.then(|| WorkspaceId::new(app, capset)).transpose()
}

pub(crate) fn check_slug(field: &str, text: &str) -> Result<()> {
    let good = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    if text.is_empty() || text.len() > 128 || !text.bytes().all(good) || text.starts_with('.') {
        return Err(Error::invalid(field, "must be 1 to 128 of a-z, A-Z, 0-9, . _ -"));
    }
    Ok(())
}

fn check_app_json(value: serde_json::Value) -> Result<AppJson> {
    if let Some(old) = ["tools", "system_prompt"].iter().find(|key| value.get(key).is_some()) {
        let detail = "the flat shape is no longer taken: \
                      nest it as capability_sets[].agents[].tools";
        return Err(Error::invalid(format!("app_json.{old}"), detail));
    }
    check_app("app_json", json::from_value("app_json", value)?)
}

/// Of whatever `field` it came in.
pub(crate) fn check_app(field: &str, app: AppJson) -> Result<AppJson> {
    check_label(&format!("{field}.name"), &app.name)?;
    let sets = format!("{field}.capability_sets");
    if app.capability_sets.is_empty() {
        return Err(Error::invalid(sets, "must have at least one"));
    }
    if app.agent_count() > AGENTS_MAX {
        return Err(Error::invalid(sets, format!("at most {AGENTS_MAX} agents in all")));
    }
    for (i, set) in app.capability_sets.iter().enumerate() {
        let at = format!("{sets}[{i}]");
        check_label(&format!("{at}.name"), &set.name)?;
        if set.agents.is_empty() {
            return Err(Error::invalid(format!("{at}.agents"), "must have at least one"));
        }
        for (j, agent) in set.agents.iter().enumerate() {
            check_label(&format!("{at}.agents[{j}].name"), &agent.name)?;
            for (k, tool) in agent.tools.iter().enumerate() {
                check_word(&format!("{at}.agents[{j}].tools[{k}]"), tool)?;
            }
        }
    }
    Ok(app)
}

fn check_label(field: &str, text: &str) -> Result<()> {
    if text.trim().is_empty() || text.len() > 256 || text.chars().any(char::is_control) {
        return Err(Error::invalid(field, "must be 1 to 256 characters"));
    }
    Ok(())
}

fn check_persistence(request: &mut CreateSandbox) -> Result<Option<WantedPersistence>> {
    let field = "persistence_url";
    let auth_header = request.persistence_auth_header.take();
    let Some(text) = request.persistence_url.take() else {
        return match auth_header {
            Some(_) => Err(Error::invalid(field, "required with persistence_auth_header")),
            None => Ok(None),
        };
    };
    let url = parse_url(field, &text)?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(Error::invalid(field, format!("must be https: {text:?}")));
    }
    if url.fragment().is_some() {
        return Err(Error::invalid(field, format!("must not have a fragment: {text:?}")));
    }
    Ok(Some(WantedPersistence { url, auth_header }))
}

/// An address with a host and without credentials. Whether it is HTTPS at a public address, or one that the
/// operator allows, says whoever knows that and can resolve it, and again whoever dials.
pub(crate) fn check_url(field: &str, text: &str) -> Result<Url> {
    let url = parse_url(field, text)?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(Error::invalid(field, format!("must be https: {text:?}")));
    }
    if url.query().is_some() || url.fragment().is_some() {
        let detail = format!("must not have a query or a fragment: {text:?}");
        return Err(Error::invalid(field, detail));
    }
    Ok(url)
}

fn parse_url(field: &str, text: &str) -> Result<Url> {
    if text.len() > URL_BYTES_MAX {
        return Err(Error::invalid(field, format!("at most {URL_BYTES_MAX} bytes")));
    }
    let not_one = |error| Error::invalid(field, format!("not a URL ({error}): {text:?}"));
    let url = Url::parse(text).map_err(not_one)?;
    if !url.username().is_empty() || url.password().is_some() {
        let detail = "must not contain credentials; they have a field of their own";
        return Err(Error::invalid(field, detail));
    }
    Ok(url)
}

#[cfg(test)]
mod tests;
