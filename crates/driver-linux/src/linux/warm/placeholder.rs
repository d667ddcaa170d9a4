//! The spec of a sandbox that waits.

use std::collections::BTreeMap;

use jiff::Timestamp;
use model::{Clocks, Limits, Name, PolicyName, SandboxId, SandboxSpec, Shape, TemplateName, Tier};

/// What a member is until it is claimed; nobody ever sees it.
pub(super) fn placeholder(id: SandboxId, template: &TemplateName, limits: Limits) -> SandboxSpec {
    SandboxSpec {
        id,
        owner: "usr_warm-pool".parse().expect("a valid owner"),
        name: Name::generate(),
        shape: Shape::Template,
        template: template.clone(),
        image: None,
        tier: Tier::Ephemeral,
        clocks: Clocks::default(),
        limits,
        policy: PolicyName::default(),
        env: BTreeMap::new(),
        metadata: serde_json::Map::new(),
        workspace: None,
        agent: None,
        payer: None,
        created_at: Timestamp::now(),
    }
}
