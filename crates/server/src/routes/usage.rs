//! What a tenant used (000 *Usage*, *Dashboard*): counted by the store from what really ran.

use api::billing::Page;
use api::metering::{
    Credits, DailyEntry, DailyUsage, DashboardSandbox, DashboardSandboxes, Days, InfraUsage,
    Overview, UsageDay, UsageHistory, UsageNow, day_text,
};
use axum::Json as Answer;
use axum::extract::State;
use jiff::Timestamp;
use store::DayUsage;

use crate::app::App;
use crate::auth::{Holder, Who};
use crate::refusal::Refusal;
use crate::target::{NoQuery, RawQuery};

const SECOND_USEC: i64 = 1_000_000;

/// What you used this month, and your credit
#[utoipa::path(
    get, path = "/v1/usage", tag = "Usage", operation_id = "get_account_usage",
    responses((status = 200, description = "At most a few minutes old", body = UsageNow))
)]
pub(crate) async fn now(
    State(app): State<App>,
    Who(caller): Who,
    _none: NoQuery,
) -> Result<Answer<UsageNow>, Refusal> {
    let month = Days::month_of(Timestamp::now());
    let days = app.store.usage(&caller.owner, month.first, month.last).await?;
    let balance = app.store.balance(&caller.owner).await?;
    let auto_topup = app.store.auto_topup(&caller.owner).await?;
    Ok(Answer(UsageNow {
        tenant_id: caller.owner.to_string(),
        period: month.text(),
        infra_usage: infra(&sum(&days)),
        credits: Credits {
            balance_usd: usd(balance.cents),
            auto_topup_enabled: auto_topup.enabled,
        },
    }))
}

/// What you used, day by day
#[utoipa::path(
    get, path = "/v1/usage/history", tag = "Usage", operation_id = "get_usage_history",
    params(
        ("from" = Option<String>, Query, description = "First day, `2026-04-01`; default 30 days before `to`"),
        ("to" = Option<String>, Query, description = "The day after the last; default today"),
    ),
    responses(
        (status = 200, description = "Days with any use, oldest first", body = UsageHistory),
        (status = 400, description = "Not a date, `to` not after `from`, or more than 366 days"),
    )
)]
pub(crate) async fn history(
    State(app): State<App>,
    Who(caller): Who,
    RawQuery(query): RawQuery,
) -> Result<Answer<UsageHistory>, Refusal> {
    let days = Days::history(query.as_deref(), Timestamp::now())?;
    let days = app.store.usage(&caller.owner, days.first, days.last).await?;
    let entries = days.iter().map(|day| UsageDay {
        period_start: day_text(day.day),
        period_end: day_text(day.day),
        infra_usage: infra(day),
        session_count: day.sessions,
    });
    Ok(Answer(UsageHistory { entries: entries.collect() }))
}

/// This month in five numbers
#[utoipa::path(
    get, path = "/v1/dashboard/overview", tag = "Usage", operation_id = "get_overview",
    responses((status = 200, description = "At most a few minutes old", body = Overview))
)]
pub(crate) async fn overview(
    State(app): State<App>,
    Holder(caller): Holder,
    _none: NoQuery,
) -> Result<Answer<Overview>, Refusal> {
    let month = Days::month_of(Timestamp::now());
    let all = sum(&app.store.usage(&caller.owner, month.first, month.last).await?);
    Ok(Answer(Overview {
        sandbox_count: all.sandboxes,
        input_tokens: all.input_tokens,
        output_tokens: all.output_tokens,
        cpu_seconds: all.cpu_usec / SECOND_USEC,
        billable_tool_calls: all.tool_calls,
    }))
}

/// Your sandboxes of the last month
#[utoipa::path(
    get, path = "/v1/dashboard/sandboxes", tag = "Usage", operation_id = "list_recent_sandboxes",
    params(
        ("limit" = Option<u64>, Query, description = "At most 100; default 20"),
        ("offset" = Option<u64>, Query, description = "Skip so many; default 0"),
    ),
    responses(
        (status = 200, description = "Newest first", body = DashboardSandboxes),
        (status = 400, description = "Not a whole number"),
    )
)]
pub(crate) async fn sandboxes(
    State(app): State<App>,
    Holder(caller): Holder,
    RawQuery(query): RawQuery,
) -> Result<Answer<DashboardSandboxes>, Refusal> {
    let page = Page::parse(query.as_deref())?;
    let (recent, total) =
        app.store.recent_sandboxes(&caller.owner, page.limit, page.offset).await?;
    let sandboxes = recent.into_iter().map(|one| DashboardSandbox {
        sandbox_id: one.sandbox,
        first_started_at: one.first_started_at,
        last_ended_at: one.last_ended_at,
        starts: one.starts,
        running_seconds: one.running_usec / SECOND_USEC,
        cpu_seconds: one.cpu_usec / SECOND_USEC,
        credits_used_usd: usd(one.charged_microcents / model::pricing::MICROCENTS),
    });
    Ok(Answer(DashboardSandboxes { sandboxes: sandboxes.collect(), total }))
}

/// Tokens and processor time, day by day
#[utoipa::path(
    get, path = "/v1/dashboard/usage/daily", tag = "Usage", operation_id = "get_daily_usage",
    params(
        ("from" = String, Query, description = "First day, `2026-04-01`"),
        ("to" = String, Query, description = "Last day"),
    ),
    responses(
        (status = 200, description = "Days with any use, oldest first", body = DailyUsage),
        (status = 400, description = "Not a date, `to` before `from`, or more than 366 days"),
    )
)]
pub(crate) async fn daily(
    State(app): State<App>,
    Holder(caller): Holder,
    RawQuery(query): RawQuery,
) -> Result<Answer<DailyUsage>, Refusal> {
    let days = Days::daily(query.as_deref())?;
    let days = app.store.usage(&caller.owner, days.first, days.last).await?;
    let entries = days.iter().map(|day| DailyEntry {
        day: day_text(day.day),
        input_tokens: day.input_tokens,
        output_tokens: day.output_tokens,
        cpu_seconds: day.cpu_usec / SECOND_USEC,
    });
    Ok(Answer(DailyUsage { entries: entries.collect() }))
}

fn sum(days: &[DayUsage]) -> DayUsage {
    days.iter().fold(DayUsage::default(), |all, day| DayUsage {
        day: 0,
        cpu_usec: all.cpu_usec + day.cpu_usec,
        running_usec: all.running_usec + day.running_usec,
        sandboxes: all.sandboxes + day.sandboxes,
        charged_microcents: all.charged_microcents + day.charged_microcents,
        sessions: all.sessions + day.sessions,
        input_tokens: all.input_tokens + day.input_tokens,
        output_tokens: all.output_tokens + day.output_tokens,
        tool_calls: all.tool_calls + day.tool_calls,
    })
}

fn infra(day: &DayUsage) -> InfraUsage {
    InfraUsage {
        cpu_seconds: day.cpu_usec / SECOND_USEC,
        sandbox_count: day.sandboxes,
        credits_used_usd: usd(day.charged_microcents / model::pricing::MICROCENTS),
    }
}

/// Two decimals, as JSON writes the nearest number to them.
fn usd(cents: i64) -> f64 {
    cents as f64 / 100.0
}
