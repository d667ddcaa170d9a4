//! `GET /v1/templates` (000 *Templates catalog*): which agents a session may ask for.

use model::catalogue;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Catalogue {
    pub templates: Vec<CatalogueEntry>,
}

/// One agent: `app_id` is the `agent.kind` of a session, and may be its `app.id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "app_id": "deictic",
    "name": "Deictic (default agent)",
    "description": "General-purpose multi-agent orchestration; recommended default.",
    "capability_sets": [{
        "set_id": "default",
        "name": "Default",
        "tools": ["file_read", "file_write", "shell", "search"]
    }]
}))]
pub struct CatalogueEntry {
    pub app_id: String,
    pub name: String,
    pub description: String,
    pub capability_sets: Vec<CatalogueSet>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CatalogueSet {
    /// What `app.set_id` of a session says.
    pub set_id: String,
    pub name: String,
    pub tools: Vec<String>,
}

impl Catalogue {
    pub fn of(entries: &[catalogue::Entry]) -> Self {
        Self { templates: entries.iter().map(CatalogueEntry::from).collect() }
    }
}

impl From<&catalogue::Entry> for CatalogueEntry {
    fn from(entry: &catalogue::Entry) -> Self {
        let set = |set: &catalogue::Set| CatalogueSet {
            set_id: set.id.into(),
            name: set.name.into(),
            tools: set.tools.iter().map(|tool| tool.shown.into()).collect(),
        };
        Self {
            app_id: entry.app_id.into(),
            name: entry.name.into(),
            description: entry.description.into(),
            capability_sets: entry.sets.iter().map(set).collect(),
        }
    }
}
