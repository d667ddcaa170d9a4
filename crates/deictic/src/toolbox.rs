//! What one agent can call: tools of ours, of tool servers, and the ones by which it speaks to the user or to
//! other agents.

use std::sync::Arc;

use serde_json::json;

use crate::mcp::McpTool;
use crate::model::ToolSpec;
use crate::tools::Tool;

#[derive(Debug, Clone)]
pub(crate) enum Entry {
    Own(Tool),
    Mcp(Arc<McpTool>),
    AskUser,
    ExitPlan,
    /// The planner's: its specification names who there is.
    Delegate(ToolSpec),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Toolbox {
    entries: Vec<Entry>,
    specs: Vec<ToolSpec>,
}

pub(crate) const ASK_USER: &str = "ask_user";
pub(crate) const EXIT_PLAN: &str = "exit_plan";

impl Toolbox {
    pub(crate) fn add(&mut self, entry: Entry) {
        let spec = entry.spec();
        if self.find(&spec.name).is_none() {
            self.specs.push(spec);
            self.entries.push(entry);
        }
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Entry> {
        let at = self.specs.iter().position(|spec| spec.name == name)?;
        self.entries.get(at)
    }

    pub(crate) fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.specs.iter().map(|spec| spec.name.clone()).collect()
    }
}

impl Entry {
    fn spec(&self) -> ToolSpec {
        match self {
            Self::Own(tool) => tool.spec(),
            Self::Mcp(tool) => tool.spec.clone(),
            Self::Delegate(spec) => spec.clone(),
            Self::AskUser => ToolSpec {
                name: ASK_USER.to_owned(),
                description: "Ask the user one question when you cannot go on without the answer. \
                              Offer options where there are some."
                    .to_owned(),
                parameters: json!({
                    "type": "object",
                    "properties": {
                        "question": {"type": "string"},
                        "options": {"type": "array", "items": {"type": "string"}},
                    },
                    "required": ["question"],
                    "additionalProperties": false,
                }),
            },
            Self::ExitPlan => ToolSpec {
                name: EXIT_PLAN.to_owned(),
                description:
                    "Only while planning: present your plan. When the user approves, you may \
                              carry it out."
                        .to_owned(),
                parameters: json!({
                    "type": "object",
                    "properties": {"plan": {"type": "string"}},
                    "required": ["plan"],
                    "additionalProperties": false,
                }),
            },
        }
    }
}
