//! `/v1/workspaces` (000 *Workspaces*).

use jiff::Timestamp;
use model::Error;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::query::Query;

const FILES_DEFAULT: u64 = 20;
const WORKSPACES_DEFAULT: u64 = 100;
const PAGE_MAX: u64 = 1000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Workspaces {
    pub workspaces: Vec<Workspace>,
    /// For `token` of the next call; absent when there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "app_id": "my-app", "capset_id": "default", "size_bytes": 1_048_576 }))]
pub struct Workspace {
    pub app_id: String,
    pub capset_id: String,
    pub size_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceFiles {
    pub files: Vec<WorkspaceFile>,
    /// For `token` of the next call; absent when there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "path": "output.json", "size": 1024, "modified": "2026-04-20T10:00:00Z" }))]
pub struct WorkspaceFile {
    pub path: String,
    pub size: u64,
    pub modified: Timestamp,
}

/// A link that works without a key, for one method and one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileLink {
    pub url: String,
    /// In seconds.
    pub expires_in: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "total_size_mib": 4.2, "file_count": 17 }))]
pub struct WorkspaceUsage {
    pub total_size_mib: f64,
    pub file_count: u64,
}

/// Which workspaces are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspacesQuery {
    pub limit: usize,
    pub token: Option<String>,
}

impl WorkspacesQuery {
    pub fn parse(query: Option<&str>) -> Result<Self, Error> {
        let mut query = Query::parse(query, &["limit", "token"])?;
        let limit = limit(&mut query, WORKSPACES_DEFAULT)?;
        Ok(Self { limit, token: query.take("token") })
    }
}

fn limit(query: &mut Query, default: u64) -> Result<usize, Error> {
    let limit = query.whole("limit")?.unwrap_or(default);
    if limit == 0 {
        return Err(Error::invalid("limit", "must be at least 1"));
    }
    Ok(usize::try_from(limit.min(PAGE_MAX)).unwrap_or(1))
}

/// Which files are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesQuery {
    pub prefix: String,
    pub limit: usize,
    pub token: Option<String>,
}

impl FilesQuery {
    pub fn parse(query: Option<&str>) -> Result<Self, Error> {
        let mut query = Query::parse(query, &["prefix", "limit", "token"])?;
        Ok(Self {
            limit: limit(&mut query, FILES_DEFAULT)?,
            prefix: query.take("prefix").unwrap_or_default(),
            token: query.take("token"),
        })
    }
}

impl WorkspaceUsage {
    pub fn new(bytes: u64, files: u64) -> Self {
        // To the KiB, which is what is shown of it.
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        Self { total_size_mib: f64::from(kib) / 1024.0, file_count: files }
    }
}
