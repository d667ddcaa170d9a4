//! The command line: names, defaults and help. What the commands do is in their own modules.

use std::path::PathBuf;
use std::sync::OnceLock;

use clap::{Args, Parser, Subcommand};
use model::TemplateName;
use server::config::Places;

use crate::failure::Failure;
use crate::{
    account, agents, audit, billing, doctor, keys, mcp, org, run, sandbox, secrets, session,
    template, workspace,
};

/// Self-hosted sandboxes for AI agents
#[derive(Debug, Parser)]
#[command(name = "bastide", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run one command in a fresh sandbox, without a server
    Run(run::RunArgs),
    /// Make, use and remove sandboxes
    #[command(alias = "sb")]
    Sandbox {
        #[command(flatten)]
        connection: Connection,
        #[command(subcommand)]
        command: Box<sandbox::Command>,
    },
    /// Build, pull, import, list and remove what sandboxes are made from
    Template {
        #[command(flatten)]
        data: DataDir,
        #[command(flatten)]
        shown: Shown,
        #[command(subcommand)]
        command: template::Command,
    },
    /// Sign up and in with a code by e-mail
    Account {
        #[command(flatten)]
        connection: Connection,
        #[command(subcommand)]
        command: account::Command,
    },
    /// Create, list and revoke API keys
    Keys {
        #[command(flatten)]
        connection: Connection,
        #[command(subcommand)]
        command: keys::Command,
    },
    /// List the agents that a session may ask for
    Catalogue {
        #[command(flatten)]
        connection: Connection,
    },
    /// Conversations with agents that outlive connections and sandboxes
    Session {
        #[command(flatten)]
        connection: Connection,
        #[command(subcommand)]
        command: Box<session::Command>,
    },
    /// Bundles of secrets for sessions, and the master key
    Secrets {
        #[command(flatten)]
        connection: Connection,
        #[command(subcommand)]
        command: secrets::Command,
    },
    /// Organisations, their members, and what they may have
    Org {
        #[command(flatten)]
        connection: Connection,
        #[command(subcommand)]
        command: org::Command,
    },
    /// Read the audit log, and check that it is whole
    Audit {
        #[command(flatten)]
        connection: Connection,
        #[command(subcommand)]
        command: audit::Command,
    },
    /// What you used
    Usage {
        #[command(flatten)]
        connection: Connection,
        #[command(flatten)]
        days: billing::UsageArgs,
    },
    /// Credit: what is left, what moved it, how more comes in
    Billing {
        #[command(flatten)]
        connection: Connection,
        #[command(subcommand)]
        command: billing::Command,
    },
    /// Workspaces in storage, and their files
    Workspace {
        #[command(flatten)]
        connection: Connection,
        #[command(subcommand)]
        command: workspace::Command,
    },
    /// Show a server, and all that share its data directory on this machine
    Status {
        #[command(flatten)]
        connection: Connection,
    },
    /// Check this host, attack sandboxes of its own, and print what held
    Doctor(doctor::DoctorArgs),
    /// Serve the agent daemon, and talk to one
    Agents(agents::AgentsArgs),
    /// Serve the API to models: three tools of the Model Context Protocol
    Mcp(Box<mcp::McpArgs>),
    /// Serve the HTTP API
    Serve(server::config::Flags),
    /// Print a completion script for a shell
    Completions {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

/// Which server, as whom, and how answers are shown.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// Where the server is
    #[arg(
        long,
        global = true,
        env = "BASTIDE_SERVER",
        hide_env_values = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub server: String,
    /// The API key; default: the operator's key in the data directory
    #[arg(
        long,
        global = true,
        env = "BASTIDE_API_KEY",
        value_name = "KEY",
        hide_env_values = true
    )]
    pub key: Option<String>,
    /// A file that holds the API key
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "key")]
    pub key_file: Option<PathBuf>,
    /// Trust the certificates in this PEM file instead of the system's
    #[arg(
        long,
        global = true,
        env = "BASTIDE_CA_CERT",
        value_name = "FILE",
        hide_env_values = true
    )]
    pub ca_cert: Option<PathBuf>,
    #[command(flatten)]
    pub data: DataDir,
    #[command(flatten)]
    pub shown: Shown,
}

/// Where a server on this machine keeps its things.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataDir {
    /// The server's data directory on this machine; default: /var/lib/bastide, or
    /// ~/.local/share/bastide when not root
    #[arg(
        long,
        global = true,
        env = "BASTIDE_DATA_DIR",
        hide_env_values = true,
        value_name = "DIR"
    )]
    data_dir: Option<PathBuf>,
    /// The server's configuration file on this machine
    #[arg(
        long,
        global = true,
        env = "BASTIDE_CONFIG",
        hide_env_values = true,
        value_name = "FILE"
    )]
    config: Option<PathBuf>,
    #[arg(skip)]
    said: OnceLock<Places>,
}

impl DataDir {
    #[cfg(test)]
    pub(crate) fn at(dir: &str) -> Self {
        Self { data_dir: Some(dir.into()), config: None, said: OnceLock::new() }
    }

    /// As the server has it.
    pub(crate) fn dir(&self) -> Result<PathBuf, Failure> {
        if let Some(dir) = &self.data_dir {
            return Ok(dir.clone());
        }
        if let Some(dir) = &self.said()?.data_dir {
            return Ok(dir.clone());
        }
        let home = std::env::home_dir().filter(|_| !rustix::process::geteuid().is_root());
        Ok(home.map_or_else(
            || PathBuf::from("/var/lib/bastide"),
            |home| home.join(".local/share/bastide"),
        ))
    }

    /// The server's file, if one was named.
    pub(crate) fn config(&self) -> Option<PathBuf> {
        self.config.clone()
    }

    /// The operator's own definition of a template, which wins over a built-in one.
    pub(crate) fn definition_of(&self, name: &TemplateName) -> Result<Option<PathBuf>, Failure> {
        let Some(dir) = self.templates_dir()? else { return Ok(None) };
        Ok(Some(dir.join(format!("{name}.toml"))).filter(|path| path.exists()))
    }

    /// The operator's own definitions.
    pub(crate) fn definitions(&self) -> Result<Vec<PathBuf>, Failure> {
        let Some(dir) = self.templates_dir()? else { return Ok(Vec::new()) };
        let cannot = |error| Failure::new(format!("cannot list {}: {error}", dir.display()));
        let entries = std::fs::read_dir(&dir).map_err(cannot)?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut paths: Vec<_> =
            paths.filter(|path| path.extension().is_some_and(|one| one == "toml")).collect();
        paths.sort();
        Ok(paths)
    }

    fn templates_dir(&self) -> Result<Option<PathBuf>, Failure> {
        let set = std::env::var_os("BASTIDE_TEMPLATES_DIR").map(PathBuf::from);
        Ok(match set {
            Some(dir) => Some(dir),
            None => self.said()?.templates_dir.clone(),
        })
    }

    fn said(&self) -> Result<&Places, Failure> {
        if let Some(said) = self.said.get() {
            return Ok(said);
        }
        let said = match &self.config {
            Some(file) => Places::of_file(file)?,
            None => Places::default(),
        };
        Ok(self.said.get_or_init(|| said))
    }
}

/// How results are shown.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Shown {
    /// Print JSON, for programs
    #[arg(long, global = true)]
    pub json: bool,
}

/// `NAME=VALUE` for clap.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be NAME=VALUE".into()),
    }
}
