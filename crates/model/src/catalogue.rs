//! The agents that a session may ask for: one table, shown as the catalogue and used to check requests,
//! so that whatever is shown is accepted.

/// One agent of the catalogue. Its id is what `agent.kind` of a session says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub app_id: &'static str,
    pub name: &'static str,
    pub description: &'static str,
    pub sets: &'static [Set],
}

/// Tools that go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Set {
    pub id: &'static str,
    pub name: &'static str,
    pub tools: &'static [Tool],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tool {
    /// As the catalogue calls it.
    pub shown: &'static str,
    /// As the agent calls it.
    pub name: &'static str,
}

const fn tool(shown: &'static str, name: &'static str) -> Tool {
    Tool { shown, name }
}

pub const CATALOGUE: &[Entry] = &[Entry {
    app_id: "deictic",
    name: "Deictic (default agent)",
    description: "General-purpose multi-agent orchestration; recommended default.",
    sets: &[Set {
        id: "default",
        name: "Default",
        tools: &[
            tool("file_read", "read_file"),
            tool("file_write", "write_file"),
            tool("shell", "shell_exec"),
            tool("search", "list_directory"),
        ],
    }],
}];

/// What a session may ask for beyond what the catalogue shows (000 has these later): programs of others,
/// with tools of their own.
const ADDED: &[Entry] = &[
    added("claude", "Claude Code"),
    added("claude-code", "Claude Code"),
    added("codex", "Codex"),
    added("opencode", "OpenCode"),
    added("mock", "Mock, for those who write clients"),
];

const fn added(app_id: &'static str, name: &'static str) -> Entry {
    let sets = &[Set { id: "default", name: "Default", tools: &[] }];
    Entry { app_id, name, description: "", sets }
}

/// The templates that a session may have (000 *POST /v1/sessions*).
pub const SESSION_TEMPLATES: &[&str] = &["standard", "browser", "cua"];

pub fn entry(app_id: &str) -> Option<&'static Entry> {
    CATALOGUE.iter().find(|entry| entry.app_id == app_id)
}

/// What `agent.kind` of a session may be.
pub fn session_agent(kind: &str) -> Option<&'static Entry> {
    entry(kind).or_else(|| ADDED.iter().find(|entry| entry.app_id == kind))
}

impl Entry {
    pub fn set(&self, id: &str) -> Option<&'static Set> {
        self.sets.iter().find(|set| set.id == id)
    }
}
