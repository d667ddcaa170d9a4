//! `/v1/admin`: organisations, plans and quotas, and the audit log.

use jiff::Timestamp;
use model::{Error, Plan, QuotaRow, Role};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewOrganisation {
    /// 1 to 100 printable characters.
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Organisation {
    /// `org_…`
    pub id: String,
    pub name: String,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Organisations {
    /// Newest first.
    pub organisations: Vec<Organisation>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrganisationDetail {
    pub id: String,
    pub name: String,
    pub created_at: Timestamp,
    pub members: Vec<Member>,
    pub limits: LimitsBody,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// `usr_…`
    pub owner: String,
    /// `owner`, `member` or `billing`.
    pub role: String,
    pub since: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutMember {
    /// `owner`, `member` or `billing`.
    pub role: String,
}

/// What is absent or `null` is as the next one has it: the owner, its organisation, the plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsBody {
    /// `free` or `operator`.
    pub plan: Option<String>,
    /// Persistent sandboxes at once.
    pub persistent_max: Option<u32>,
    /// Ephemeral sandboxes at once.
    pub ephemeral_max: Option<u32>,
    /// Sum of `disk_gb` in each tier.
    pub disk_gb_per_tier_max: Option<u32>,
    /// GiB of all stored workspaces together.
    pub workspace_gib_max: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerLimits {
    pub owner: String,
    /// What is said about the owner itself.
    pub own: LimitsBody,
    /// What holds for it, its organisation included. Absent parts are the plan's.
    pub effective: LimitsBody,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditLog {
    /// What the oldest entry that is kept follows: older ones are removed after a while.
    pub begins: AuditBegins,
    /// Oldest first.
    pub entries: Vec<AuditLine>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditBegins {
    /// 0 when nothing was removed yet.
    pub number: i64,
    /// In hexadecimal; zeros when nothing was removed yet.
    pub digest: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditLine {
    /// From 1, without gaps.
    pub number: i64,
    pub at: Timestamp,
    /// An owner; empty when nobody who is known.
    pub actor: String,
    pub action: String,
    pub target: String,
    pub outcome: String,
    pub address: String,
    /// SHA-256 of the digest before and of this entry, in hexadecimal.
    pub digest: String,
}

impl PutMember {
    pub fn role(&self) -> Result<Role, Error> {
        self.role.parse()
    }
}

impl LimitsBody {
    pub fn new(plan: Option<Plan>, quota: QuotaRow) -> Self {
        Self {
            plan: plan.map(|plan| plan.as_str().to_owned()),
            persistent_max: quota.persistent_max,
            ephemeral_max: quota.ephemeral_max,
            disk_gb_per_tier_max: quota.disk_gb_per_tier_max,
            workspace_gib_max: quota.workspace_gib_max,
        }
    }

    pub fn plan(&self) -> Result<Option<Plan>, Error> {
        let Some(text) = self.plan.as_deref() else { return Ok(None) };
        let wrong = || Error::invalid("plan", format!("not a plan: {text:?}; try free"));
        Plan::parse(text).map(Some).ok_or_else(wrong)
    }

    pub fn quota(&self) -> QuotaRow {
        QuotaRow {
            persistent_max: self.persistent_max,
            ephemeral_max: self.ephemeral_max,
            disk_gb_per_tier_max: self.disk_gb_per_tier_max,
            workspace_gib_max: self.workspace_gib_max,
        }
    }
}
