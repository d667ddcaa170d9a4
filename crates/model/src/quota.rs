//! How much an owner may have at once. Quotas are data: principal, then organisation, then the
//! platform's default (003 *Quotas*).

use crate::Tier;

/// The plan of a key or tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    Free,
    /// The operator's own key: no limits.
    Operator,
}

impl Plan {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Operator => "operator",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "free" => Some(Self::Free),
            "operator" => Some(Self::Operator),
            _ => None,
        }
    }
}

/// Upper bounds for one owner. `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    pub persistent_max: Option<u32>,
    pub ephemeral_max: Option<u32>,
    /// Sum of `disk_gb` per tier.
    pub disk_gb_per_tier_max: Option<u32>,
    /// Of all stored workspaces together.
    pub workspace_gib_max: Option<u32>,
}

/// Some bounds, of an owner or of its organisation. `None` leaves it to whoever comes next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaRow {
    pub persistent_max: Option<u32>,
    pub ephemeral_max: Option<u32>,
    pub disk_gb_per_tier_max: Option<u32>,
    /// Of all stored workspaces together.
    pub workspace_gib_max: Option<u32>,
}

impl QuotaRow {
    /// This one's bounds, and the next one's where it has none.
    #[must_use]
    pub fn or(self, next: Self) -> Self {
        Self {
            persistent_max: self.persistent_max.or(next.persistent_max),
            ephemeral_max: self.ephemeral_max.or(next.ephemeral_max),
            disk_gb_per_tier_max: self.disk_gb_per_tier_max.or(next.disk_gb_per_tier_max),
            workspace_gib_max: self.workspace_gib_max.or(next.workspace_gib_max),
        }
    }

    #[must_use]
    pub fn over(self, plan: Quota) -> Quota {
        let Quota { persistent_max, ephemeral_max, disk_gb_per_tier_max, workspace_gib_max } = plan;
        let next = Self { persistent_max, ephemeral_max, disk_gb_per_tier_max, workspace_gib_max };
        let Self { persistent_max, ephemeral_max, disk_gb_per_tier_max, workspace_gib_max } =
            self.or(next);
        Quota { persistent_max, ephemeral_max, disk_gb_per_tier_max, workspace_gib_max }
    }

    pub fn in_order(self) -> [Option<u32>; 4] {
        [self.persistent_max, self.ephemeral_max, self.disk_gb_per_tier_max, self.workspace_gib_max]
    }
}

/// What an owner has of one tier now. Stopped and destroyed sandboxes do not count (ruling 15).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InUse {
    pub count: u32,
    pub disk_gb: u32,
}

impl Quota {
    pub const FREE: Self = Self {
        persistent_max: Some(1),
        ephemeral_max: Some(3),
        disk_gb_per_tier_max: Some(20),
        workspace_gib_max: Some(10),
    };
    pub const UNLIMITED: Self = Self {
        persistent_max: None,
        ephemeral_max: None,
        disk_gb_per_tier_max: None,
        workspace_gib_max: None,
    };

    pub fn of_plan(plan: Plan) -> Self {
        match plan {
            Plan::Free => Self::FREE,
            Plan::Operator => Self::UNLIMITED,
        }
    }

    /// `Err` says in one sentence which bound one more sandbox of `disk_gb` would break.
    pub fn admit(&self, tier: Tier, in_use: InUse, disk_gb: u32) -> Result<(), String> {
        let count_max = match tier {
            Tier::Ephemeral => self.ephemeral_max,
            Tier::Persistent => self.persistent_max,
        };
        let tier = tier.as_str();
        if let Some(max) = count_max
            && in_use.count >= max
        {
            return Err(format!("quota of {max} concurrent {tier} sandboxes is used up"));
        }
        if let Some(max) = self.disk_gb_per_tier_max
            && in_use.disk_gb + disk_gb > max
        {
            return Err(format!(
                "quota of {max} GiB of disk for {tier} sandboxes would be exceeded"
            ));
        }
        Ok(())
    }

    /// `Err` says in one sentence that so much more may not be kept in workspaces.
    pub fn admit_workspace(&self, used_bytes: u64, more_bytes: u64) -> Result<(), String> {
        let Some(max) = self.workspace_gib_max else { return Ok(()) };
        if used_bytes.saturating_add(more_bytes) > u64::from(max) << 30 {
            return Err(format!(
                "quota of {max} GiB of stored workspaces is used up; delete files or workspaces"
            ));
        }
        Ok(())
    }
}
