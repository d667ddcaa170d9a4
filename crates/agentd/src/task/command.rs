//! From a task to a program, its arguments, its environment and what it reads. A key is in none of its
//! arguments, and the task only where the program takes it in no other way.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::Task;
use crate::host::Host;
use crate::process::Launch;

/// What to start, and what it reads on its standard input.
pub(super) struct Command {
    pub(super) launch: Launch,
    pub(super) input: Vec<u8>,
}

/// Beside what the environment says: nothing but the model is asked for anything.
const QUIET: &[(&str, &str)] = &[
    ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
    ("DISABLE_AUTOUPDATER", "1"),
    ("DISABLE_ERROR_REPORTING", "1"),
    ("DISABLE_TELEMETRY", "1"),
    // It is one, and the agent may do everything in it.
    ("IS_SANDBOX", "1"),
];

pub(super) fn command(host: &Host, task: &Task, app: Option<&Path>) -> io::Result<Command> {
    let (own, arguments, input) = match task.agent.as_str() {
        "deictic" => ("/proc/self/exe".into(), deictic(task, app), Vec::new()),
        "claude" => (find(host, task, "claude")?, claude(task), task.task.clone().into_bytes()),
        "codex" => (find(host, task, "codex")?, codex(task), task.task.clone().into_bytes()),
        other => return Err(io::Error::other(format!("unknown agent: {other}"))),
    };
    let program = match &task.agent_cmd {
        Some(own) => checked(own)?,
        None => own,
    };
    let launch = Launch {
        program,
        arguments: arguments.into_iter().map(OsString::from).collect(),
        env: environment(host, task),
        directory: host.directory.clone(),
    };
    Ok(Command { launch, input })
}

/// A program of the caller's needs none of ours.
fn find(host: &Host, task: &Task, name: &str) -> io::Result<PathBuf> {
    if task.agent_cmd.is_some() {
        return Ok(PathBuf::new());
    }
    let missing = || io::Error::other(format!("{name} is not installed in this sandbox"));
    host.find_program(name).ok_or_else(missing)
}

fn checked(program: &str) -> io::Result<PathBuf> {
    let path = PathBuf::from(program);
    let found = path.metadata().map_err(|error| io::Error::other(format!("{program}: {error}")))?;
    if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
        return Err(io::Error::other(format!("{program} is not a program")));
    }
    Ok(path)
}

fn deictic(task: &Task, app: Option<&Path>) -> Vec<String> {
    let mut all = vec!["deictic".to_owned()];
    // An own program is called as ours is, but for the word that says which of ours.
    if task.agent_cmd.is_some() {
        all.clear();
    }
    let mut add = |name: &str, value: &str| all.extend([name.to_owned(), value.to_owned()]);
    for (name, value) in [
        ("--model", &task.model),
        ("--vendor", &task.vendor),
        ("--base-url", &task.base_url),
        ("--session", &task.session_id),
    ] {
        if let Some(value) = value {
            add(name, value);
        }
    }
    if let Some(app) = app {
        add("--app", &app.display().to_string());
    }
    add("--permission-mode", "bypass");
    add("--task", &task.task);
    all
}

fn claude(task: &Task) -> Vec<String> {
    let mut all = words(&["--print", "--dangerously-skip-permissions", "--output-format", "text"]);
    if let Some(model) = &task.model {
        all.extend(["--model".to_owned(), model.clone()]);
    }
    if let Some(session) = &task.session_id {
        all.extend(["--resume".to_owned(), session.clone()]);
    }
    all
}

fn codex(task: &Task) -> Vec<String> {
    let mut all = words(&["exec", "--skip-git-repo-check"]);
    all.push("--dangerously-bypass-approvals-and-sandbox".to_owned());
    if let Some(model) = &task.model {
        all.extend(["--model".to_owned(), model.clone()]);
    }
    if let Some(session) = &task.session_id {
        all.extend(["resume".to_owned(), session.clone()]);
    }
    // From its standard input.
    all.push("-".to_owned());
    all
}

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|one| (*one).to_owned()).collect()
}

fn environment(host: &Host, task: &Task) -> BTreeMap<OsString, OsString> {
    let quiet = QUIET.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let quiet = quiet.filter(|(name, _)| !host.environment.contains_key(name));
    let own = [
        ("AGENT_TYPE", Some(&task.agent)),
        ("TASK", Some(&task.task)),
        ("LLM_MODEL", task.model.as_ref()),
        ("LLM_VENDOR", task.vendor.as_ref()),
        ("LLM_BASE_URL", task.base_url.as_ref()),
        ("SESSION_ID", task.session_id.as_ref()),
    ];
    let own = own.into_iter().filter_map(|(name, value)| Some((name.into(), value?.into())));
    let sent = task.env.iter().chain(&task.secrets);
    let sent = sent.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    quiet.chain(sent).chain(own).collect()
}
