//! `bastide template`: what sandboxes are made from, in the data directory of this machine.

mod agent;
mod images;
mod progress;
mod show;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use driver_linux::template::{
    self, BuildOptions, Definition, Recipe, TemplateStore, definition, definitions, dockerfile,
};
use model::{Policy, TemplateName};

use self::images::{Access, Import, Pull};
use self::progress::Shown;
use crate::args::DataDir;
use crate::failure::Failure;
use crate::{block_on, out};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Build a template; steps that were done before are not done again
    Build(Build),
    /// Fetch an image from a registry
    Pull(Pull),
    /// Read an image from an archive of `docker save`, `podman save` or the like
    Import(Import),
    /// List templates, built or not
    #[command(visible_alias = "ls")]
    List,
    /// Remove a template or image; sandboxes keep what they stand on
    Rm { name: TemplateName },
    /// Clean up after a build whose process died (started by the build itself)
    #[command(hide = true)]
    Attend,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bastide template build standard
  bastide template build agent-claude        # the program of an agent, under any template
  bastide template build mine --file mine.toml
  bastide template build app --dockerfile ./Dockerfile --context .")]
pub(crate) struct Build {
    name: TemplateName,
    /// Do every step anew, with today's packages; sandboxes keep what they stand on
    #[arg(long)]
    force: bool,
    /// Take the definition from this file instead of the built-in ones
    #[arg(long, value_name = "FILE", conflicts_with = "dockerfile")]
    file: Option<PathBuf>,
    /// Build what this Dockerfile says: FROM, RUN, COPY, ENV, WORKDIR, USER, CMD
    #[arg(long, value_name = "FILE")]
    dockerfile: Option<PathBuf>,
    /// Where COPY takes files from; default: the Dockerfile's directory
    #[arg(long, value_name = "DIR", requires = "dockerfile")]
    context: Option<PathBuf>,
    /// What steps may reach beside package mirrors, such as pkg.test:443; may be repeated
    #[arg(long, value_name = "RULE")]
    allow: Vec<String>,
    /// Debian packages from here instead of from this machine's apt sources
    #[arg(long, value_name = "URI")]
    mirror: Option<String>,
    #[command(flatten)]
    access: Access,
}

pub(crate) fn execute(data: &DataDir, command: Command, json: bool) -> Result<ExitCode, Failure> {
    let data_dir = data.dir()?;
    if !matches!(command, Command::List) {
        progress::find_program()?;
        // The files of a template belong to ids that an ordinary user has only as root of a namespace.
        driver_linux::enter(&data_dir)?;
    }
    let store = TemplateStore::open(&data_dir)?;
    match command {
        Command::Build(mut args) => {
            if args.name.is_of_agent() {
                return block_on(agent::build(&store, &args, json));
            }
            if args.file.is_none() && args.dockerfile.is_none() {
                args.file = data.definition_of(&args.name)?;
            }
            return block_on(build(&store, &data_dir, args, json));
        }
        Command::Pull(args) => return block_on(images::pull(&store, args, json)),
        Command::Import(args) => images::import(&store, &args, json)?,
        Command::List => show::list(&store, &own(data)?, json)?,
        Command::Rm { name } => {
            if !store.remove(&name)? {
                return Err(Failure::new(match definition(&name) {
                    Some(_) => format!("template {name} is not built"),
                    None => format!("no such template: {name}"),
                }));
            }
            out::line(name.as_str());
        }
        Command::Attend => return block_on(progress::attend(&data_dir)),
    }
    Ok(ExitCode::SUCCESS)
}

/// The operator's own definitions.
fn own(data: &DataDir) -> Result<Vec<Definition>, Failure> {
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path)
            .map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display())))?;
        Ok(Definition::parse(&text)?)
    };
    data.definitions()?.into_iter().map(read).collect()
}

async fn build(
    store: &TemplateStore,
    data_dir: &Path,
    args: Build,
    json: bool,
) -> Result<ExitCode, Failure> {
    let recipe = recipe(&args)?;
    let options = BuildOptions {
        runtime_dir: PathBuf::from("/run/bastide"),
        fresh: args.force,
        allow: Policy::parse(&args.allow)?,
        images: args.access.resolve()?,
        mirror: args.mirror,
    };
    // Cleans up if this process is killed.
    let attendant = progress::Attendant::start(data_dir)?;
    let mut shown = Shown::new(json);
    let built = template::build(store, &recipe, &options, &mut |event| shown.event(&event)).await;
    shown.finish();
    attendant.dismiss();
    show::made(&built?, json)?;
    Ok(ExitCode::SUCCESS)
}

fn recipe(args: &Build) -> Result<Recipe, Failure> {
    let read = |path: &Path| {
        fs::read_to_string(path)
            .map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display())))
    };
    if let Some(path) = &args.dockerfile {
        let own = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let context = args.context.as_deref().or(own).unwrap_or(Path::new("."));
        return Ok(dockerfile(args.name.clone(), &read(path)?, context)?);
    }
    if let Some(path) = &args.file {
        let definition = Definition::parse(&read(path)?)?;
        if definition.name() != &args.name {
            return Err(Failure::new(format!("{} defines {}", path.display(), definition.name())));
        }
        return Ok(Recipe::from(&definition));
    }
    let name = &args.name;
    let definition = definition(name).ok_or_else(|| {
        let known: Vec<String> = definitions().iter().map(|one| one.name().to_string()).collect();
        Failure::new(format!("no such template: {name}")).hint(format!(
            "known are {}; give your own with --file or --dockerfile",
            known.join(", ")
        ))
    })?;
    Ok(Recipe::from(&definition))
}
