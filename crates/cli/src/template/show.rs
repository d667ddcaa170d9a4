//! Templates as tables and as JSON.

use driver_linux::template::{Built, Definition, TemplateStore, definition, definitions};
use model::TemplateName;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::out;

/// What a build, a pull or an import ends with. In JSON it is the last line of a stream.
pub(super) fn made(built: &Built, json: bool) -> Result<(), Failure> {
    if json {
        return out::json_line(&shown(built));
    }
    let template = &built.template;
    let mib = template.bytes.unwrap_or(0) >> 20;
    out::line(format!("{}@{}  {mib} MiB", template.name, template.digest));
    Ok(())
}

/// The built-in ones and `own`, which win.
pub(super) fn list(store: &TemplateStore, own: &[Definition], json: bool) -> Result<(), Failure> {
    let built = store.list()?;
    let mut known = definitions();
    known.retain(|one| !own.iter().any(|other| other.name() == one.name()));
    known.extend(own.iter().cloned());
    let is_built = |one: &&Definition| built.iter().any(|other| other.template.name == *one.name());
    let missing = known.iter().filter(|one| !is_built(one));
    if json {
        let mut all: Vec<Value> = built.iter().map(shown).collect();
        all.extend(missing.map(
            |one| json!({ "name": one.name(), "built": false, "description": one.description() }),
        ));
        return out::json(&json!({ "templates": all }));
    }
    let mut rows: Vec<Vec<String>> = built.iter().map(row).collect();
    rows.extend(missing.map(|one| {
        let description = one.description().to_owned();
        vec![one.name().to_string(), "not built".into(), "-".into(), "-".into(), description]
    }));
    out::table(&["NAME", "BUILT", "SIZE", "DIGEST", "DESCRIPTION"], rows);
    Ok(())
}

fn description(built: &Built) -> String {
    let name: &TemplateName = &built.template.name;
    if let Some(reference) = &built.template.image {
        return format!("image {reference}");
    }
    match definition(name) {
        Some(definition) => definition.description().to_owned(),
        None if name.as_str() == "host" => "this machine's programs, read-only".to_owned(),
        None => String::new(),
    }
}

fn row(built: &Built) -> Vec<String> {
    let template = &built.template;
    let built_at = template
        .built_at
        .map_or("needs no building".into(), |at| at.strftime("%Y-%m-%d %H:%M").to_string());
    let size = template.bytes.map_or("-".into(), |bytes| format!("{} MiB", bytes >> 20));
    let digest: String = template.digest.trim_start_matches("sha256:").chars().take(12).collect();
    vec![template.name.to_string(), built_at, size, digest, description(built)]
}

fn shown(built: &Built) -> Value {
    let template = &built.template;
    json!({
        "name": template.name,
        "built": true,
        "digest": template.digest,
        "built_at": template.built_at,
        "size_bytes": template.bytes,
        "layers": built.layer_ids,
        "user": template.user,
        "sudo": built.sudo,
        "image": template.image,
        "description": description(built),
    })
}
