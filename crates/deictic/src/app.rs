//! `app_json`: which agents there are, what each is for, and what it may use.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::tools::{DEFAULT, Tool};

/// Agents of one application.
const AGENTS_MAX: usize = 32;

/// A name, a capability.
const NAME_BYTES_MAX: usize = 128;

const DESCRIPTION_BYTES_MAX: usize = 4096;

/// The tools of an application, checked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct App {
    pub(crate) name: String,
    /// None: the default agent.
    pub(crate) agents: Vec<AgentSpec>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AgentSpec {
    pub(crate) name: String,
    pub(crate) capability: String,
    pub(crate) description: String,
    pub(crate) tools: Vec<ToolName>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ToolName {
    Own(Tool),
    AskUser,
    /// `mcp__SERVER__TOOL`, or `mcp__SERVER` for all of it.
    Mcp(String),
}

/// Which tools may be named: ours, and those of these servers.
pub(crate) fn parse(value: &Value, servers: &BTreeSet<&str>) -> Result<App, String> {
    let object = value.as_object().ok_or("app_json: not an object")?;
    for old in ["tools", "system_prompt"] {
        if object.contains_key(old) {
            return Err(format!(
                "app_json.{old}: the flat form is not taken; nest agents in capability_sets"
            ));
        }
    }
    only(value, "app_json", &["name", "capability_sets"])?;
    let name = value.get("name").and_then(Value::as_str).unwrap_or("application").to_owned();
    let mut agents = Vec::new();
    let mut capabilities = BTreeMap::new();
    for (at, set) in sets(value)? {
        only(&set, &at, &["name", "agents"])?;
        let listed = set.get("agents").and_then(Value::as_array);
        for (number, agent) in listed.into_iter().flatten().enumerate() {
            let at = format!("{at}.agents[{number}]");
            let agent = agent_of(agent, &at, servers)?;
            if let Some(before) = capabilities.insert(agent.capability.clone(), at.clone()) {
                let capability = &agent.capability;
                return Err(format!("{at}.capability_name: {before} has it too: {capability}"));
            }
            agents.push(agent);
        }
        if agents.len() > AGENTS_MAX {
            return Err(format!("app_json: at most {AGENTS_MAX} agents"));
        }
    }
    Ok(App { name, agents })
}

/// A list, or a map by name.
fn sets(value: &Value) -> Result<Vec<(String, Value)>, String> {
    match value.get("capability_sets") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(sets)) => {
            let sets = sets.iter().enumerate();
            Ok(sets
                .map(|(n, set)| (format!("app_json.capability_sets[{n}]"), set.clone()))
                .collect())
        }
        Some(Value::Object(sets)) => {
            let sets = sets.iter();
            Ok(sets
                .map(|(name, set)| (format!("app_json.capability_sets.{name}"), set.clone()))
                .collect())
        }
        Some(_) => Err("app_json.capability_sets: not a list".to_owned()),
    }
}

fn agent_of(agent: &Value, at: &str, servers: &BTreeSet<&str>) -> Result<AgentSpec, String> {
    only(agent, at, &["name", "capability_name", "capability_description", "tools"])?;
    let text = |key: &str, bytes_max: usize| {
        let text = agent.get(key).and_then(Value::as_str).unwrap_or_default().trim();
        if text.len() > bytes_max {
            return Err(format!("{at}.{key}: longer than {bytes_max} bytes"));
        }
        Ok(text.to_owned())
    };
    let name = text("name", NAME_BYTES_MAX)?;
    let capability = text("capability_name", NAME_BYTES_MAX)?;
    if name.is_empty() || capability.is_empty() {
        return Err(format!("{at}: needs name and capability_name"));
    }
    let description = text("capability_description", DESCRIPTION_BYTES_MAX)?;
    let tools = match agent.get("tools") {
        None | Some(Value::Null) => DEFAULT.into_iter().map(ToolName::Own).collect(),
        Some(Value::Array(names)) => {
            let names = names.iter().enumerate();
            let tools = names.map(|(n, name)| tool_of(name, &format!("{at}.tools[{n}]"), servers));
            tools.collect::<Result<Vec<_>, _>>()?
        }
        Some(_) => return Err(format!("{at}.tools: not a list")),
    };
    Ok(AgentSpec { name, capability, description, tools })
}

fn tool_of(name: &Value, at: &str, servers: &BTreeSet<&str>) -> Result<ToolName, String> {
    let name = name.as_str().ok_or_else(|| format!("{at}: not a text"))?;
    if let Some(tool) = Tool::of_application(name) {
        return Ok(ToolName::Own(tool));
    }
    if name == crate::toolbox::ASK_USER {
        return Ok(ToolName::AskUser);
    }
    if let Some(rest) = name.strip_prefix("mcp__") {
        let server = rest.split("__").next().unwrap_or_default();
        if servers.contains(server) {
            return Ok(ToolName::Mcp(name.to_owned()));
        }
        return Err(format!("{at}: no such tool server: {server}"));
    }
    let known = Tool::names().join(", ");
    Err(format!("{at}: no such tool: {name}; there are {known}, ask_user, mcp__SERVER__TOOL"))
}

fn only(value: &Value, at: &str, known: &[&str]) -> Result<(), String> {
    let object = value.as_object().ok_or_else(|| format!("{at}: not an object"))?;
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(format!("{at}.{key}: unknown field")),
        None => Ok(()),
    }
}
