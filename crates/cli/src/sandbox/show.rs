//! Sandboxes as people and programs see them.

use api::sandbox::{Sandbox, State, Tier};
use http::Method;
use jiff::Timestamp;
use model::SandboxRef;
use serde_json::Value;

use crate::client::Client;
use crate::failure::Failure;
use crate::out;

pub(super) async fn list(client: &Client, json: bool) -> Result<(), Failure> {
    let answer: Value = client.json(Method::GET, "/v1/sandboxes", None).await?;
    if json {
        return out::json(&answer);
    }
    let (sandboxes, partial) = match answer {
        Value::Object(mut object) => (object.remove("sandboxes").unwrap_or_default(), true),
        other => (other, false),
    };
    let sandboxes: Vec<Sandbox> = parse(sandboxes)?;
    let now = Timestamp::now();
    let rows = sandboxes.iter().map(|sandbox| row(sandbox, now)).collect();
    out::table(&["NAME", "ID", "STATE", "TIER", "TEMPLATE", "POLICY", "AGE"], rows);
    if partial {
        out::note("warning: a part of the server did not answer; there may be more");
    }
    Ok(())
}

pub(super) async fn get(client: &Client, id: &SandboxRef, json: bool) -> Result<(), Failure> {
    let answer: Value = client.json(Method::GET, &format!("/v1/sandboxes/{id}"), None).await?;
    if json {
        return out::json(&answer);
    }
    let Value::Object(fields) = answer else {
        return Err(Failure::new("the server's answer is not understood: not an object"));
    };
    let width = fields.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in fields {
        let text = match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        out::line(format!("{name:width$}  {text}"));
    }
    Ok(())
}

/// The answer to a change: its name and new state in one line.
pub(super) fn changed(answer: &Value, json: bool) -> Result<(), Failure> {
    if json {
        return out::json(answer);
    }
    let text = |field: &str| answer[field].as_str().unwrap_or("-").to_owned();
    let name = if answer["name"].is_string() { text("name") } else { text("vm_id") };
    out::line(format!("{name}  {}", text("state")));
    Ok(())
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Failure> {
    serde_json::from_value(value)
        .map_err(|error| Failure::new(format!("the server's answer is not understood: {error}")))
}

fn row(sandbox: &Sandbox, now: Timestamp) -> Vec<String> {
    vec![
        sandbox.name.clone(),
        sandbox.id.clone(),
        state(sandbox.state).to_owned(),
        tier(sandbox.tier).to_owned(),
        sandbox.template.clone(),
        sandbox.policy.clone(),
        age(now.as_second() - sandbox.created_at.as_second()),
    ]
}

fn state(state: State) -> &'static str {
    match state {
        State::Creating => "creating",
        State::Configuring => "configuring",
        State::Booting => "booting",
        State::Running => "running",
        State::Paused => "paused",
        State::Stopping => "stopping",
        State::Stopped => "stopped",
        State::Deleting => "deleting",
        State::Destroyed => "destroyed",
    }
}

fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Ephemeral => "ephemeral",
        Tier::Persistent => "persistent",
    }
}

/// `42s`, `7m`, `3h`, `12d`.
pub(super) fn age(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..120 => format!("{s}s"),
        s @ 120..7200 => format!("{}m", s / 60),
        s @ 7200..172_800 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests;
