//! The program of an agent, as a layer that lies under whatever template a sandbox asks for. It is kept as
//! a template of its own name, so that it is listed, replaced and collected as they are; no sandbox is made
//! from it alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use jiff::Timestamp;
use model::{Error, Result, TemplateName};

use super::meta::Meta;
use super::recipe::LIMITS;
use super::{Built, TemplateStore, copy, lock};

/// Makes a tree, which belongs to root, the current layer of an agent's program. Sandboxes that exist keep
/// the one that they have.
pub fn publish_agent(store: &TemplateStore, name: &TemplateName, tree: &Path) -> Result<Built> {
    if !name.is_of_agent() {
        return Err(Error::invalid("name", format!("not the name of an agent's layer: {name}")));
    }
    let dir = store.dir(name);
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let _lock = lock(&dir)?;
    let _held = store.layers.hold()?;
    let unfinished = store.layers.begin()?;
    let copied = copy::copy(tree, &unfinished.tree());
    if copied.is_err() {
        store.layers.drop_unfinished(&unfinished);
    }
    let copied = copied.context("copy the agent's program")?;
    store.layers.publish(&unfinished, &copied.id, copied.bytes)?;
    let meta = Meta {
        name: name.clone(),
        digest: String::new(),
        built_at: Timestamp::now(),
        bytes: copied.bytes,
        user: "root".to_owned(),
        uid: Some(0),
        sudo: false,
        nesting: false,
        limits: LIMITS,
        env: BTreeMap::new(),
        layers: vec![copied.id],
        workdir: None,
        start: Vec::new(),
        image: None,
        passing: false,
    };
    store.publish(&meta.with_digest()).context("publish the agent's program")?;
    store.get(name)?.ok_or_else(|| Error::unavailable(format!("{name} vanished")))
}
