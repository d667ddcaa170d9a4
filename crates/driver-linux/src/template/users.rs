//! Which sandboxes stand on a template, read off the data directory: with or without a server.

use std::path::Path;

use anyhow::Context;
use model::TemplateName;
use serde::Deserialize;

/// The part of a stored spec that matters here.
#[derive(Deserialize)]
struct Stored {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    name: String,
    template: String,
}

/// The names of sandboxes made from `template`, stopped ones too, sorted.
pub(super) fn of(data_dir: &Path, template: &TemplateName) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let dirs = match std::fs::read_dir(data_dir.join("sandboxes")) {
        Ok(dirs) => dirs,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(names),
        Err(error) => return Err(error).context("list sandboxes"),
    };
    for dir in dirs {
        let path = dir.context("list sandboxes")?.path().join("spec.json");
        // One that is being made or removed has none, or has it no longer.
        let Ok(text) = std::fs::read(&path) else { continue };
        let stored: Stored =
            serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))?;
        if stored.spec.template == template.as_str() {
            names.push(stored.spec.name);
        }
    }
    names.sort();
    Ok(names)
}
