//! What the daemon gives its adapters: directories, the environment that agents get, tasks that
//! are waited for, and where programs are.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What agents get of the daemon's environment, by name.
const PASSED: &[&str] = &[
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PATH",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TERM",
    "TMPDIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
    "XDG_STATE_HOME",
    "XDG_RUNTIME_DIR",
    "SSH_AUTH_SOCK",
    "GIT_SSH_COMMAND",
    "IS_SANDBOX",
    "NODE_OPTIONS",
    "EDITOR",
];

/// And by how it begins: settings and keys of the agents and of model vendors.
const PASSED_PREFIXES: &[&str] = &[
    "LC_",
    "ANTHROPIC_",
    "CLAUDE_",
    "OPENAI_",
    "CODEX_",
    "OPENCODE_",
    "AMP_",
    "GEMINI_",
    "GOOGLE_",
    "DEEPSEEK_",
    "OPENROUTER_",
    "AZURE_OPENAI_",
    "AWS_",
    "GROQ_",
    "MISTRAL_",
    "XAI_",
    "LLM_",
    "DEICTIC_",
    "GIT_AUTHOR_",
    "GIT_COMMITTER_",
    "DISABLE_",
    "NPM_CONFIG_",
    "npm_config_",
];

/// Where the layer of a sandbox's agent has what an [`crate::install::Installer`] made.
pub const LAYER_DIR: &str = "/opt/bastide-agents";

/// One for a daemon, shared.
#[derive(Debug)]
pub struct Host {
    /// Everything that the daemon keeps.
    pub data_dir: PathBuf,
    /// What agents get, beside what a session asks for.
    pub environment: BTreeMap<OsString, OsString>,
    /// Where sessions work that do not say where.
    pub directory: PathBuf,
    /// Every task of an adapter is spawned here, and ends soon after `stop`.
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
    /// What the mock agent takes between two things that it says.
    pub mock_delay: Duration,
    /// Our own agent as a command: a program and its first arguments. Empty: it is not part of this one.
    pub deictic: Vec<OsString>,
}

impl Host {
    /// Where installed agents are.
    pub fn bin_dir(&self) -> PathBuf {
        self.data_dir.join("bin")
    }

    /// Where an adapter may keep files of its own.
    pub fn agent_dir(&self, agent: &str) -> PathBuf {
        self.data_dir.join("agents").join(agent)
    }

    /// The program of an agent: the installed one, else the sandbox's own, else the first on `PATH`.
    pub fn find_program(&self, name: &str) -> Option<PathBuf> {
        let ours = self.bin_dir().join(name);
        if is_program(&ours) {
            return Some(ours);
        }
        let layer = Path::new(LAYER_DIR).join("bin").join(name);
        if is_program(&layer) {
            return Some(layer);
        }
        let path = self.environment.get(&OsString::from("PATH"))?;
        std::env::split_paths(path).map(|one| one.join(name)).find(|one| is_program(one))
    }
}

/// What of an environment agents are given. Nothing else gets to them: not the daemon's token, not
/// what happens to be set where it was started.
pub fn passed_environment(
    all: impl IntoIterator<Item = (OsString, OsString)>,
    also: &[String],
) -> BTreeMap<OsString, OsString> {
    let passes = |name: &OsString| {
        name.to_str().is_some_and(|name| {
            PASSED.contains(&name)
                || PASSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
                || also.iter().any(|one| one == name)
        })
    };
    all.into_iter().filter(|(name, _)| passes(name)).collect()
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
