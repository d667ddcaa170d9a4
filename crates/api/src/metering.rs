//! `/v1/usage` and `/v1/dashboard` (000 *Usage*, *Dashboard*): what was used, and what it cost.

use jiff::Timestamp;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "tenant_id": "usr_abc", "period": "2026-04-01..2026-04-30",
    "infra_usage": { "cpu_seconds": 12345, "sandbox_count": 5, "credits_used_usd": 2.34 },
    "credits": { "balance_usd": 87.66, "auto_topup_enabled": false }
}))]
pub struct CurrentUsage {
    pub tenant_id: String,
    /// The first and last day of this month (UTC).
    pub period: String,
    pub infra_usage: InfraUsage,
    pub credits: Credits,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InfraUsage {
    /// Of processors, as the kernel counts them; at most five minutes old.
    pub cpu_seconds: u64,
    /// Sandboxes that were made.
    pub sandbox_count: u64,
    /// Dollars with two decimals, rounded down.
    pub credits_used_usd: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Credits {
    /// Dollars with two decimals.
    pub balance_usd: f64,
    pub auto_topup_enabled: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageHistory {
    /// A window a day, in order; days without any use are left out.
    pub entries: Vec<UsageWindow>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "period_start": "2026-04-01", "period_end": "2026-04-01",
    "infra_usage": { "cpu_seconds": 12345, "sandbox_count": 0, "credits_used_usd": 0.0 },
    "session_count": 0
}))]
pub struct UsageWindow {
    #[schema(value_type = String, format = Date)]
    pub period_start: Date,
    /// The same day: it is the last one in the window.
    #[schema(value_type = String, format = Date)]
    pub period_end: Date,
    pub infra_usage: InfraUsage,
    pub session_count: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "sandbox_count": 42, "input_tokens": 150_000, "output_tokens": 50_000, "cpu_seconds": 3600,
    "billable_tool_calls": 12
}))]
pub struct Overview {
    pub sandbox_count: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cpu_seconds: u64,
    pub billable_tool_calls: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecentSandboxes {
    /// One page, those that began last first.
    pub sandboxes: Vec<RecentSandbox>,
    /// On all pages: those of the last 31 days.
    pub total: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecentSandbox {
    pub id: String,
    /// That it had when it began.
    pub name: String,
    /// When it first ran.
    pub started_at: Timestamp,
    /// When it last stopped; `null` while it runs.
    pub ended_at: Option<Timestamp>,
    /// How often it was started.
    pub runs: u64,
    /// For how long it had compute, over all its runs.
    pub seconds: f64,
    pub cpu_seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DailyUsage {
    /// In order; days without any use are left out.
    pub entries: Vec<UsageDay>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "day": "2026-04-01", "input_tokens": 10_000, "output_tokens": 3000, "cpu_seconds": 300
}))]
pub struct UsageDay {
    #[schema(value_type = String, format = Date)]
    pub day: Date,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cpu_seconds: u64,
}
