//! `bastide template build agent-claude`: the program of an agent as a layer, from the npm registry, by the
//! agent daemon's own installer. Nothing that is downloaded runs here.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agentd::host::LAYER_DIR;
use agentd::install::{Installer, RegistrySettings};
use driver_linux::template::{TemplateStore, publish_agent};
use model::AgentKind;

use super::{Build, show};
use crate::failure::Failure;

/// One that is here already is left alone, unless it is forced.
pub(super) async fn build(
    store: &TemplateStore,
    args: &Build,
    json: bool,
) -> Result<ExitCode, Failure> {
    let name = &args.name;
    let kinds = [AgentKind::Claude, AgentKind::Codex, AgentKind::OpenCode];
    let kind = kinds.into_iter().find(|kind| kind.layer().as_ref() == Some(name));
    let kind = kind.ok_or_else(|| {
        Failure::new(format!("no such agent: {name}"))
            .hint("known are agent-claude, agent-codex, agent-opencode")
    })?;
    if let (false, Some(built)) = (args.force, store.get(name)?) {
        show::made(&built, json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let yard = Yard::new()?;
    let inside = yard.tree().join(LAYER_DIR.trim_start_matches('/'));
    fs::create_dir_all(&inside)?;
    let variable = |name: &str| std::env::var_os(name).and_then(|value| value.into_string().ok());
    let settings = RegistrySettings::from_environment(variable);
    let installed = Installer::new(&inside, settings).install(kind.as_str(), None, false).await;
    installed.map_err(|error| Failure::new(error.to_string()).hint(error.hint))?;
    tidy(yard.tree(), &inside, kind)?;
    show::made(&publish_agent(store, name, yard.tree())?, json)?;
    Ok(ExitCode::SUCCESS)
}

/// Without what only the installer wants, and with a name on the `PATH` of most templates.
fn tidy(tree: &Path, inside: &Path, kind: AgentKind) -> std::io::Result<()> {
    let programs = inside.join("programs").join(kind.as_str());
    fs::remove_dir_all(programs.join(".partial"))?;
    fs::remove_file(programs.join(".lock"))?;
    let bin = tree.join("usr/local/bin");
    fs::create_dir_all(&bin)?;
    symlink(format!("{LAYER_DIR}/bin/{kind}"), bin.join(kind.as_str()))?;
    // Whatever the mask of this process is, everybody inside may look.
    let mut waiting = vec![tree.to_owned()];
    while let Some(dir) = waiting.pop() {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    Ok(())
}

/// A directory of this process alone, removed at the end.
struct Yard(PathBuf);

impl Yard {
    fn new() -> std::io::Result<Self> {
        let dir = std::env::temp_dir().join(format!("bastide-agent-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&dir)?;
        Ok(Self(dir))
    }

    fn tree(&self) -> &Path {
        &self.0
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        // What stays is of no use to anybody, and says whose it was.
        let _ = fs::remove_dir_all(&self.0);
    }
}
