//! 000's workspaces: what an owner keeps of an app, beyond the life of any sandbox.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Error;

/// An app, and one of its capability sets; an owner has one workspace for each.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct WorkspaceId {
    app_id: String,
    capset_id: String,
}

#[derive(Serialize, Deserialize)]
struct Parts {
    app_id: String,
    capset_id: String,
}

impl WorkspaceId {
    pub fn new(app_id: &str, capset_id: &str) -> Result<Self, Error> {
        check("app_id", app_id)?;
        check("capset_id", capset_id)?;
        Ok(Self { app_id: app_id.to_owned(), capset_id: capset_id.to_owned() })
    }

    pub fn app_id(&self) -> &str {
        &self.app_id
    }

    pub fn capset_id(&self) -> &str {
        &self.capset_id
    }
}

/// 1 to 128 of letters, digits, `.`, `_` and `-`; no `.` first, so that it is never a way up.
fn check(field: &str, text: &str) -> Result<(), Error> {
    let good = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    if text.is_empty() || text.len() > 128 || !text.bytes().all(good) || text.starts_with('.') {
        return Err(Error::invalid(field, "must be 1 to 128 of a-z, A-Z, 0-9, . _ -"));
    }
    Ok(())
}

impl fmt::Display for WorkspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.app_id, self.capset_id)
    }
}

impl TryFrom<Parts> for WorkspaceId {
    type Error = Error;

    fn try_from(parts: Parts) -> Result<Self, Error> {
        Self::new(&parts.app_id, &parts.capset_id)
    }
}

impl From<WorkspaceId> for Parts {
    fn from(workspace: WorkspaceId) -> Self {
        Self { app_id: workspace.app_id, capset_id: workspace.capset_id }
    }
}
