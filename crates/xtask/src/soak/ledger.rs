//! What the server told of: nothing twice, nothing lost, and every stretch of running time billed once.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::resident::Resident;

#[derive(Default)]
struct Told {
    kinds: BTreeMap<String, u32>,
    legs: Vec<String>,
}

pub(super) fn check(events: &[Value], residents: &[Resident]) -> anyhow::Result<()> {
    let mut all: BTreeMap<&str, Told> = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for event in events {
        ensure!(ids.insert(event["id"].as_str()), "an event twice: {event}");
        let sandbox = event["sandbox_id"].as_str().context("an event of no sandbox")?;
        let kind = event["type"].as_str().context("an event without a type")?;
        let told = all.entry(sandbox).or_default();
        *told.kinds.entry(kind.to_owned()).or_default() += 1;
        if kind == "billing.sandbox-hour" {
            let leg = event["data"]["incarnation"].as_str().context("a leg of nothing")?;
            told.legs.push(leg.to_owned());
        }
    }
    for resident in residents {
        let Some(id) = resident.id() else { continue };
        let told = all.get(id).with_context(|| format!("nothing was told of {id}"))?;
        check_one(told, resident).with_context(|| format!("{id}: told {:?}", told.kinds))?;
    }
    Ok(())
}

fn check_one(told: &Told, resident: &Resident) -> anyhow::Result<()> {
    let count = |kind: &str| told.kinds.get(kind).copied().unwrap_or_default();
    for kind in ["lifecycle.created", "lifecycle.destroyed"] {
        ensure!(count(kind) == 1, "{kind} {} times", count(kind));
    }
    let (running, billed) = (count("lifecycle.running"), count("billing.sandbox-hour"));
    ensure!(running >= resident.starts, "{} starts, told of {running}", resident.starts);
    ensure!(running == billed, "ran {running} times, was billed {billed} times");
    let stopped = count("lifecycle.stopped");
    ensure!(stopped >= resident.stops, "{} stops, told of {stopped}", resident.stops);
    let legs: BTreeSet<&String> = told.legs.iter().collect();
    ensure!(legs.len() == told.legs.len(), "a leg twice: {:?}", told.legs);
    Ok(())
}
