//! `/v1/usage` and `/v1/dashboard` (000 *Usage*, *Dashboard*).

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use model::Error;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::query::Query;

const DAY_SECONDS: i64 = 86_400;
/// Days that one call may ask for.
const DAYS_MAX: i64 = 366;
const HISTORY_DAYS: i64 = 30;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "tenant_id": "usr_abc", "period": "2026-04-01..2026-04-30",
    "infra_usage": { "cpu_seconds": 12345, "sandbox_count": 5, "credits_used_usd": 2.34 },
    "credits": { "balance_usd": 87.66, "auto_topup_enabled": false }
}))]
pub struct UsageNow {
    pub tenant_id: String,
    /// This month, UTC.
    pub period: String,
    pub infra_usage: InfraUsage,
    pub credits: Credits,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InfraUsage {
    pub cpu_seconds: i64,
    /// Sandboxes that were made.
    pub sandbox_count: i64,
    pub credits_used_usd: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Credits {
    pub balance_usd: f64,
    pub auto_topup_enabled: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageHistory {
    pub entries: Vec<UsageDay>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "period_start": "2026-04-01", "period_end": "2026-04-01",
    "infra_usage": { "cpu_seconds": 12345, "sandbox_count": 0, "credits_used_usd": 0 },
    "session_count": 0
}))]
pub struct UsageDay {
    pub period_start: String,
    pub period_end: String,
    pub infra_usage: InfraUsage,
    pub session_count: i64,
}

/// This month, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "sandbox_count": 42, "input_tokens": 150_000, "output_tokens": 50000,
    "cpu_seconds": 3600, "billable_tool_calls": 12
}))]
pub struct Overview {
    pub sandbox_count: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cpu_seconds: i64,
    pub billable_tool_calls: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DailyUsage {
    pub entries: Vec<DailyEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "day": "2026-04-01", "input_tokens": 10000, "output_tokens": 3000, "cpu_seconds": 300
}))]
pub struct DailyEntry {
    pub day: String,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cpu_seconds: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DashboardSandboxes {
    pub sandboxes: Vec<DashboardSandbox>,
    pub total: u64,
}

/// One that ran in the last month; it may be gone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DashboardSandbox {
    pub sandbox_id: String,
    pub first_started_at: Timestamp,
    /// Absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_ended_at: Option<Timestamp>,
    /// How often it was started.
    pub starts: i64,
    pub running_seconds: i64,
    pub cpu_seconds: i64,
    pub credits_used_usd: f64,
}

/// Days since 1970, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Days {
    pub first: i64,
    pub last: i64,
}

impl Days {
    /// The month of a moment.
    pub fn month_of(now: Timestamp) -> Self {
        let date = now.to_zoned(TimeZone::UTC).date();
        Self { first: number(date.first_of_month()), last: number(date.last_of_month()) }
    }

    /// `from` included, `to` not; the last 30 days when neither is said.
    pub fn history(query: Option<&str>, now: Timestamp) -> Result<Self, Error> {
        let mut query = Query::parse(query, &["from", "to"])?;
        let today = now.as_second().div_euclid(DAY_SECONDS);
        let to = query.take("to").map(|text| day("to", &text)).transpose()?.unwrap_or(today);
        let from = query.take("from").map(|text| day("from", &text)).transpose()?;
        Self::between(from.unwrap_or(to - HISTORY_DAYS), to - 1, "to must be after from")
    }

    /// Both must be said, both are included.
    pub fn daily(query: Option<&str>) -> Result<Self, Error> {
        let mut query = Query::parse(query, &["from", "to"])?;
        let from = day("from", &query.required("from")?)?;
        let to = day("to", &query.required("to")?)?;
        Self::between(from, to, "to must not be before from")
    }

    fn between(first: i64, last: i64, backwards: &str) -> Result<Self, Error> {
        if last < first {
            return Err(Error::invalid("to", backwards));
        }
        if last - first >= DAYS_MAX {
            return Err(Error::invalid("from", format!("at most {DAYS_MAX} days at once")));
        }
        Ok(Self { first, last })
    }

    /// `2026-04-01..2026-04-30`.
    pub fn text(self) -> String {
        format!("{}..{}", day_text(self.first), day_text(self.last))
    }
}

/// `2026-04-01`.
pub fn day_text(day: i64) -> String {
    let moment = Timestamp::from_second(day.saturating_mul(DAY_SECONDS)).unwrap_or_default();
    moment.to_zoned(TimeZone::UTC).date().to_string()
}

fn day(field: &str, text: &str) -> Result<i64, Error> {
    let wrong = || Error::invalid(field, format!("not a date like 2026-04-01: {text:?}"));
    if text.len() != "2026-04-01".len() {
        return Err(wrong());
    }
    text.parse::<Date>().map(number).map_err(|_| wrong())
}

fn number(date: Date) -> i64 {
    let midnight = date.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp().as_second());
    midnight.unwrap_or_default().div_euclid(DAY_SECONDS)
}
