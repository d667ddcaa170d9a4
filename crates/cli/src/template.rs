//! `bastide template`: what sandboxes are made from, in the data directory of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use driver_linux::template::{Built, Definition, Progress, TemplateStore, definition, definitions};
use indicatif::ProgressBar;
use model::TemplateName;
use serde_json::{Value, json};

use crate::args::DataDir;
use crate::failure::Failure;
use crate::out;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Build a template; one that is built already is kept
    Build {
        name: TemplateName,
        /// Build it anew, with today's packages; sandboxes keep what they stand on
        #[arg(long)]
        force: bool,
        /// Take the definition from this file instead of the built-in ones
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// List templates, built or not
    #[command(visible_alias = "ls")]
    List,
    /// Remove a built template; sandboxes keep what they stand on
    Rm { name: TemplateName },
}

pub(crate) fn execute(data: &DataDir, command: Command, json: bool) -> Result<ExitCode, Failure> {
    let store = TemplateStore::open(&data.dir())?;
    match command {
        Command::Build { name, force, file } => {
            let definition = find(&name, file.as_deref())?;
            let built = build(&store, &definition, force)?;
            if json {
                out::json(&shown(&built, definition.description()))?;
            } else {
                let mib = built.template.bytes.unwrap_or(0) >> 20;
                out::line(format!("{}@{}  {mib} MiB", name, built.template.digest));
            }
        }
        Command::List => list(&store, json)?,
        Command::Rm { name } => {
            if !store.remove(&name)? {
                return Err(Failure::new(format!("no such template: {name}")));
            }
            out::line(name.as_str());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn find(name: &TemplateName, file: Option<&Path>) -> Result<Definition, Failure> {
    let Some(path) = file else {
        return definition(name).ok_or_else(|| {
            let known: Vec<String> =
                definitions().iter().map(|one| one.name().to_string()).collect();
            Failure::new(format!("no such template: {name}"))
                .hint(format!("known are {}; give your own with --file", known.join(", ")))
        });
    };
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display())))?;
    let definition = Definition::parse(&text)?;
    if definition.name() != name {
        return Err(Failure::new(format!("{} defines {}", path.display(), definition.name())));
    }
    Ok(definition)
}

fn build(store: &TemplateStore, definition: &Definition, force: bool) -> Result<Built, Failure> {
    let bar = out::share_bar();
    let built = store.build(definition, &mut |progress| show(&bar, &progress), force);
    bar.finish_and_clear();
    Ok(built?)
}

/// On a terminal a bar, elsewhere a line for each step.
fn show(bar: &ProgressBar, progress: &Progress) {
    if bar.is_hidden() {
        out::note(&progress.message);
        return;
    }
    if let Some(fraction) = progress.fraction {
        bar.set_position(thousandths(fraction));
    }
    bar.set_message(progress.message.clone());
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 0..=1000 first"
)]
fn thousandths(fraction: f32) -> u64 {
    (fraction.clamp(0.0, 1.0) * 1000.0) as u64
}

fn list(store: &TemplateStore, json: bool) -> Result<(), Failure> {
    let built = store.list()?;
    let known = definitions();
    let described = |name: &TemplateName| {
        let own = known.iter().find(|one| one.name() == name).map(Definition::description);
        own.unwrap_or(if name.as_str() == "host" {
            "this machine's programs, read-only"
        } else {
            ""
        })
    };
    let missing =
        known.iter().filter(|one| !built.iter().any(|other| other.template.name == *one.name()));
    if json {
        let mut all: Vec<Value> =
            built.iter().map(|one| shown(one, described(&one.template.name))).collect();
        all.extend(missing.map(
            |one| json!({ "name": one.name(), "built": false, "description": one.description() }),
        ));
        return out::json(&json!({ "templates": all }));
    }
    let mut rows: Vec<Vec<String>> =
        built.iter().map(|one| row(one, described(&one.template.name))).collect();
    rows.extend(missing.map(|one| {
        let description = one.description().to_owned();
        vec![one.name().to_string(), "not built".into(), "-".into(), "-".into(), description]
    }));
    out::table(&["NAME", "BUILT", "SIZE", "DIGEST", "DESCRIPTION"], rows);
    Ok(())
}

fn row(built: &Built, description: &str) -> Vec<String> {
    let template = &built.template;
    let built_at = template
        .built_at
        .map_or("needs no building".into(), |at| at.strftime("%Y-%m-%d %H:%M").to_string());
    let size = template.bytes.map_or("-".into(), |bytes| format!("{} MiB", bytes >> 20));
    let digest: String = template.digest.trim_start_matches("sha256:").chars().take(12).collect();
    vec![template.name.to_string(), built_at, size, digest, description.to_owned()]
}

fn shown(built: &Built, description: &str) -> Value {
    let template = &built.template;
    json!({
        "name": template.name,
        "built": true,
        "digest": template.digest,
        "built_at": template.built_at,
        "size_bytes": template.bytes,
        "user": template.user,
        "sudo": built.sudo,
        "description": description,
    })
}
