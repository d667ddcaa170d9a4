//! `POST /v1/sandboxes`: both documents' fields in one body, and every check that needs no
//! deployment (000, 003, DESIGN 2.2, rulings 8, 10, 11, 16, 17).

use std::collections::BTreeMap;
use std::fmt;

use model::request::MAX_LIFETIME_SECONDS;
use model::reserved::check_env;
use model::{Clocks, Error, NewSandbox, Source};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::{self, AppJson, WantedAgent};
use crate::sandbox::Tier;

/// A year: longer clocks are mistakes.
const MINUTES_MAX: u64 = 365 * 24 * 60;
const HOURS_MAX: u64 = 365 * 24;
const IMAGE_BYTES_MAX: usize = 512;

/// Exactly one of `template` and `image` is required; everything else has a default.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "template": "standard",
    "name": "my-workspace",
    "env": { "MY_VAR": "value" },
    "metadata": { "tag": "prod" }
}))]
pub struct CreateSandbox {
    /// The name of a built template: `standard`, `browser`, `cua`, `canvas`, `host`, or your own;
    /// `GET /v1/sandbox-templates` lists what is here.
    pub template: Option<String>,
    /// The name of a built template, or an OCI reference (digests preferred over tags).
    pub image: Option<String>,
    /// A name for people, unique among yours: 1 to 63 of `a-z0-9-`. Default: a generated one.
    pub name: Option<String>,
    /// `ephemeral` ends by itself; `persistent` keeps its workspace until you delete it.
    #[schema(default = "ephemeral")]
    pub tier: Option<Tier>,
    /// Root file system changes and workspace together, in GiB. Capped by the deployment.
    #[schema(default = 5, minimum = 1)]
    pub disk_gb: Option<u32>,
    /// Stops the sandbox, keeping its workspace, after this long without activity; 0 disables.
    /// Default: 15, or 0 for an ephemeral sandbox made from a `template`.
    pub auto_stop_minutes: Option<u64>,
    /// Deletes the sandbox this long after its creation. Default: 24 for an ephemeral sandbox made
    /// from an `image`, otherwise none.
    #[schema(minimum = 1)]
    pub auto_delete_hours: Option<u64>,
    /// Destroys the sandbox after this long without activity. Default: 60 for an ephemeral
    /// sandbox made from a `template`, otherwise none.
    #[schema(minimum = 1)]
    pub idle_timeout_seconds: Option<u64>,
    /// Destroys the sandbox this long after its creation, whatever happens; larger values are
    /// clamped to 7200. Default: 7200 for an ephemeral sandbox made from a `template`, else none.
    #[schema(minimum = 1)]
    pub max_lifetime_seconds: Option<u64>,
    /// Environment of everything that runs inside. Reserved names are refused.
    pub env: Option<BTreeMap<String, String>>,
    /// The same as `env`; the same name in both is refused.
    pub env_vars: Option<BTreeMap<String, String>>,
    /// What may be reached: a policy of the configuration, such as `none`, `default`, `open`.
    #[schema(default = "default")]
    pub policy: Option<String>,
    /// Anything you want to find again. `user_id` is set by the server.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// Processors. Bounded by your plan and the template, as the two below.
    #[schema(minimum = 1)]
    pub vcpu: Option<u32>,
    /// Share of each processor, above 0 and up to 1.
    pub cpu_fraction: Option<f64>,
    #[schema(minimum = 1)]
    pub memory_mib: Option<u32>,
    /// `deictic`, `claude` (or `claude-code`) or `codex`.
    pub agent: Option<String>,
    /// The key of the agent's model. Required with `agent`, refused without.
    #[schema(value_type = Option<String>, write_only)]
    pub llm_key: Option<Secret>,
    /// A one-shot prompt; without one the agent starts idle.
    pub task: Option<String>,
    /// Required for `deictic`; begins with `claude` for `claude`, with `gpt` or `o` for `codex`.
    pub model: Option<String>,
    /// The session that `codex` resumes.
    pub session_id: Option<String>,
    /// Replaces the agent's program: absolute, under `/home/user/` or `/workspace/`.
    pub agent_cmd: Option<String>,
    /// `false`: the agent gets its key and reaches its model itself, as far as the policy lets it. With the
    /// relay, which is the default, the key never enters the sandbox.
    #[schema(default = true)]
    pub model_relay: Option<bool>,
    /// Environment of the agent alone. Reserved names are refused.
    pub agent_env: Option<BTreeMap<String, String>>,
    /// 1 takes a single agent only.
    #[schema(default = 2, minimum = 1, maximum = 2)]
    pub wire_version: Option<u32>,
    /// Mounts the stored workspace of (`app_id`, `capset_id`).
    #[schema(default = false)]
    pub workspace_enabled: Option<bool>,
    /// Required with `workspace_enabled`.
    pub app_id: Option<String>,
    /// Required with `workspace_enabled`.
    pub capset_id: Option<String>,
    /// Capability sets and their agents, nested.
    #[schema(value_type = Option<AppJson>)]
    pub app_json: Option<serde_json::Value>,
    /// Where the conversation is kept too: HTTPS, at a public address, unless the operator lists it. See
    /// `docs/persistence.md`.
    pub persistence_url: Option<String>,
    /// Sent verbatim as `Authorization` to `persistence_url`.
    #[schema(value_type = Option<String>, write_only)]
    pub persistence_auth_header: Option<Secret>,
}

/// A request that passed every check that is possible here.
#[derive(Debug)]
pub struct Checked {
    pub sandbox: NewSandbox,
    /// To be sealed and put into `sandbox`.
    pub agent: Option<WantedAgent>,
}

/// Text that never shows up in a log.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl CreateSandbox {
    /// Every check, in the order in which a caller would want to hear of them.
    pub fn check(mut self) -> Result<Checked, Error> {
        let source = self.source()?;
        let name = self.name.as_deref().map(str::parse).transpose()?;
        let policy = self.policy.as_deref().map(str::parse).transpose()?;
        if self.disk_gb == Some(0) {
            return Err(Error::invalid("disk_gb", "must be at least 1"));
        }
        let asked_clocks = self.clocks()?;
        self.check_machine()?;
        let mut env = self.take_env()?;
        let agent = agent::check(&mut self, &mut env)?;
        let sandbox = NewSandbox {
            source,
            name,
            tier: self.tier.map(Into::into),
            disk_gb: self.disk_gb,
            asked_clocks,
            policy,
            env,
            metadata: self.metadata.unwrap_or_default(),
            vcpu: self.vcpu,
            cpu_fraction: self.cpu_fraction,
            memory_mib: self.memory_mib,
            workspace: agent.workspace,
            agent: None,
        };
        sandbox.check_metadata()?;
        Ok(Checked { sandbox, agent: agent.agent })
    }

    fn source(&mut self) -> Result<Source, Error> {
        match (self.template.take(), self.image.take()) {
            (Some(template), None) => {
                check_word("template", &template)?;
                Ok(Source::Template(template))
            }
            (None, Some(image)) => {
                check_word("image", &image)?;
                Ok(Source::Image(image))
            }
            (None, None) => {
                Err(Error::invalid("template", "send template or image; neither was given"))
            }
            (Some(_), Some(_)) => {
                Err(Error::invalid("template", "send template or image, not both"))
            }
        }
    }

    fn clocks(&self) -> Result<Clocks, Error> {
        Ok(Clocks {
            idle_timeout_seconds: bounded(
                "idle_timeout_seconds",
                self.idle_timeout_seconds,
                1..=MINUTES_MAX * 60,
            )?,
            max_lifetime_seconds: bounded(
                "max_lifetime_seconds",
                self.max_lifetime_seconds,
                1..=u64::MAX,
            )?
            .map(|seconds| seconds.min(MAX_LIFETIME_SECONDS)),
            auto_stop_minutes: bounded(
                "auto_stop_minutes",
                self.auto_stop_minutes,
                0..=MINUTES_MAX,
            )?,
            auto_delete_hours: bounded("auto_delete_hours", self.auto_delete_hours, 1..=HOURS_MAX)?,
        })
    }

    fn check_machine(&self) -> Result<(), Error> {
        bounded("vcpu", self.vcpu.map(u64::from), 1..=1024)?;
        bounded("memory_mib", self.memory_mib.map(u64::from), 1..=u64::from(u32::MAX))?;
        match self.cpu_fraction {
            Some(share) if !(share > 0.0 && share <= 1.0) => {
                Err(Error::invalid("cpu_fraction", "must be above 0 and at most 1"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// `env` and `env_vars` are the same thing (ruling 16).
    fn take_env(&mut self) -> Result<BTreeMap<String, String>, Error> {
        let mut env = self.env.take().unwrap_or_default();
        let env_vars = self.env_vars.take().unwrap_or_default();
        check_env("env", &env)?;
        check_env("env_vars", &env_vars)?;
        if let Some(name) = env_vars.keys().find(|name| env.contains_key(*name)) {
            let detail = "is in env too; they are the same thing, so send it in one of them";
            return Err(Error::invalid(format!("env_vars.{name}"), detail));
        }
        env.extend(env_vars);
        check_env("env", &env)?;
        Ok(env)
    }
}

/// One word of printable ASCII, not too long; whether there is such a thing is for later.
pub(crate) fn check_word(field: &str, text: &str) -> Result<(), Error> {
    if text.is_empty() {
        return Err(Error::invalid(field, "must not be empty"));
    }
    if text.len() > IMAGE_BYTES_MAX || !text.bytes().all(|c| c.is_ascii_graphic()) {
        let detail =
            format!("must be at most {IMAGE_BYTES_MAX} printable characters without spaces");
        return Err(Error::invalid(field, detail));
    }
    Ok(())
}

fn bounded(
    field: &str,
    value: Option<u64>,
    range: std::ops::RangeInclusive<u64>,
) -> Result<Option<u64>, Error> {
    match value {
        Some(value) if value < *range.start() => {
            Err(Error::invalid(field, format!("must be at least {}", range.start())))
        }
        Some(value) if value > *range.end() => {
            Err(Error::invalid(field, format!("must be at most {}", range.end())))
        }
        Some(_) | None => Ok(value),
    }
}

#[cfg(test)]
mod tests;
