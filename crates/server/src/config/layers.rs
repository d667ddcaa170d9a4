//! File, environment and flags on top of each other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use model::SecretText;
use toml::{Table, Value};

use crate::config::setting::{Kind, Setting};
use crate::config::settings::SETTINGS;
use crate::config::{Config, Flags};

/// Variables of the command line's client half, which a server ignores.
const CLIENT_VARIABLES: &[&str] = &["BASTIDE_SERVER", "BASTIDE_API_KEY", "BASTIDE_CA_CERT"];
const CONFIG_VARIABLE: &str = "BASTIDE_CONFIG";
const MASTER_KEY_VARIABLE: &str = "BASTIDE_MASTER_KEY";
/// As AWS's own tools call them.
const AWS_VARIABLES: &[&str] = &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

/// The part of the environment that matters here, so that tests can make one up.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    pub variables: BTreeMap<String, String>,
    pub home: Option<PathBuf>,
    pub root: bool,
}

impl Environment {
    /// Of this process.
    pub fn of_process() -> Self {
        let all = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self {
            variables: all
                .filter(|(name, _)| {
                    name.starts_with("BASTIDE_") || AWS_VARIABLES.contains(&name.as_str())
                })
                .collect(),
            home: std::env::home_dir(),
            root: rustix::process::geteuid().is_root(),
        }
    }
}

/// All layers, checked.
pub fn load(flags: &Flags, environment: &Environment) -> anyhow::Result<Config> {
    let mut layers = Layers::default();
    let named = environment.variables.get(CONFIG_VARIABLE).map(PathBuf::from);
    if let Some(file) = flags.config.clone().or(named) {
        layers.add_file(&file)?;
    }
    for (name, text) in &environment.variables {
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.variable() == *name) {
            layers.add_text(setting, text, name)?;
        } else if !is_ignored(name) {
            bail!("unknown setting: {name}\nhint: docs/configuration.md lists all variables");
        }
    }
    for (setting, text) in &flags.values {
        layers.add_text(setting, text, &format!("--{}", setting.flag()))?;
    }
    if !layers.table.contains_key("data_dir")
        && !environment.root
        && let Some(home) = &environment.home
    {
        let dir = home.join(".local/share/bastide");
        layers.table.insert("data_dir".into(), Value::String(dir.display().to_string()));
    }
    let said = |name: &str| environment.variables.get(name).cloned();
    let mut config = layers.finish()?;
    config.master_key = said(MASTER_KEY_VARIABLE).map(SecretText);
    config.aws = aws_credentials(said);
    config.check()?;
    Ok(config)
}

/// Where a server's things are, as far as its file says: all that a client on the same machine needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    pub data_dir: Option<PathBuf>,
    pub templates_dir: Option<PathBuf>,
}

impl Places {
    pub fn of_file(file: &Path) -> anyhow::Result<Self> {
        let mut layers = Layers::default();
        layers.add_file(file)?;
        let path = |key: &str| match layers.table.get(key) {
            None => Ok(None),
            Some(Value::String(path)) => Ok(Some(PathBuf::from(path))),
            Some(other) => bail!("{}: {key} is not a path: {other}", file.display()),
        };
        Ok(Self { data_dir: path("data_dir")?, templates_dir: path("templates_dir")? })
    }
}

/// What is set so far, and by what.
#[derive(Default)]
struct Layers {
    table: Table,
    /// The file's name, or the variable or flag of a key.
    file: Option<String>,
    sources: BTreeMap<&'static str, String>,
}

impl Layers {
    fn add_file(&mut self, file: &Path) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("read the configuration {}", file.display()))?;
        self.table =
            text.parse().with_context(|| format!("parse the configuration {}", file.display()))?;
        self.file = Some(file.display().to_string());
        Ok(())
    }

    fn add_text(
        &mut self,
        setting: &'static Setting,
        text: &str,
        source: &str,
    ) -> anyhow::Result<()> {
        let value = match setting.kind {
            Kind::Text => Value::String(text.to_owned()),
            Kind::Switch => match text {
                "1" | "true" => Value::Boolean(true),
                "0" | "false" | "" => Value::Boolean(false),
                _ => bail!("{source}: must be true or false: {text:?}"),
            },
            Kind::Value => {
                let mut line: Table = format!("value = {text}").parse().with_context(|| {
                    format!("{source}: not a TOML value ({}): {text:?}", setting.value_name)
                })?;
                line.remove("value").context("a parsed line has its key")?
            }
        };
        let mut table = &mut self.table;
        let mut key = setting.key;
        while let Some((parent, child)) = key.split_once('.') {
            let entry =
                table.entry(parent.to_owned()).or_insert_with(|| Value::Table(Table::new()));
            let Value::Table(inner) = entry else { bail!("{parent}: must be a table") };
            table = inner;
            key = child;
        }
        table.insert(key.to_owned(), value);
        self.sources.insert(setting.key, source.to_owned());
        Ok(())
    }

    fn finish(self) -> anyhow::Result<Config> {
        let sources = self.sources;
        let said_by = |path: &str| {
            let by_key = sources.iter().find(|(key, _)| path.starts_with(**key));
            by_key.map(|(_, source)| source.clone()).or(self.file.clone())
        };
        let config: Config =
            serde_path_to_error::deserialize(Value::Table(self.table)).map_err(|error| {
                let path = error.path().to_string();
                let source = said_by(&path).map(|by| format!(" (from {by})")).unwrap_or_default();
                let what = error.inner().to_string();
                let what = what.trim();
                match path.as_str() {
                    "." => anyhow::anyhow!("configuration{source}: {what}"),
                    path => anyhow::anyhow!("{path}{source}: {what}"),
                }
            })?;
        Ok(config)
    }
}

fn aws_credentials(said: impl Fn(&str) -> Option<String>) -> Option<vault::Credentials> {
    let [id, secret, token] = AWS_VARIABLES else { return None };
    Some(vault::Credentials {
        access_key_id: said(id)?,
        secret_access_key: said(secret)?,
        session_token: said(token),
    })
}

/// The client's variables, and what Kubernetes sets for a service called `bastide`.
fn is_ignored(name: &str) -> bool {
    name == CONFIG_VARIABLE
        || name == MASTER_KEY_VARIABLE
        || AWS_VARIABLES.contains(&name)
        || CLIENT_VARIABLES.contains(&name)
        || name == "BASTIDE_SERVICE_HOST"
        || name.starts_with("BASTIDE_SERVICE_PORT")
        || name == "BASTIDE_PORT"
        || name.starts_with("BASTIDE_PORT_")
}
