//! What an owner used (000 *Usage*) and the figures of the dashboard (000 *Dashboard*).

use api::metering::{
    Credits, CurrentUsage, DailyUsage, InfraUsage, Overview, RecentSandbox, RecentSandboxes,
    UsageDay, UsageHistory, UsageWindow,
};
use api::query::Query;
use axum::Json as Answer;
use axum::extract::State;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use model::{Error, MICRO_CENTS};
use store::{Past, Usage};

use crate::app::App;
use crate::auth::{Holder, Who};
use crate::page::Page;
use crate::refusal::Refusal;
use crate::target::{NoQuery, RawQuery};

/// Days in one answer.
const DAYS_MAX: i32 = 3660;

/// Show what you used this month
///
/// And what is left of your credit. What runs is counted every minute.
#[utoipa::path(
    get, path = "/v1/usage", tag = "Usage", operation_id = "get_account_usage",
    responses((status = 200, description = "This month, so far", body = CurrentUsage))
)]
pub(crate) async fn current(
    State(app): State<App>,
    who: Who,
    _none: NoQuery,
) -> Result<Answer<CurrentUsage>, Refusal> {
    let owner = who.0.owner;
    let (first, last) = (today().first_of_month(), today().last_of_month());
    let days = app.store.usage_by_day(&owner, first, after(last)?).await?;
    let balance_cents = app.store.balance_cents(&owner).await?;
    Ok(Answer(CurrentUsage {
        tenant_id: owner.to_string(),
        period: format!("{first}..{last}"),
        infra_usage: infra(&sum(&days)),
        credits: Credits {
            balance_usd: dollars(balance_cents),
            auto_topup_enabled: app.store.auto_topup(&owner).await?.enabled,
        },
    }))
}

/// Show what you used day by day
#[utoipa::path(
    get, path = "/v1/usage/history", tag = "Usage", operation_id = "get_usage_history",
    params(
        ("from" = Option<String>, Query, description = "The first day, 2026-04-01; 30 days ago if absent"),
        ("to" = Option<String>, Query, description = "The day after the last; today if absent"),
    ),
    responses(
        (status = 200, description = "A window a day", body = UsageHistory),
        (status = 400, description = "Not a date, or `to` is not after `from`"),
    )
)]
pub(crate) async fn history(
    State(app): State<App>,
    who: Who,
    RawQuery(query): RawQuery,
) -> Result<Answer<UsageHistory>, Refusal> {
    let mut query = Query::parse(query.as_deref(), &["from", "to"])?;
    let to = date(&mut query, "to")?.unwrap_or_else(today);
    let from = match date(&mut query, "from")? {
        Some(from) => from,
        None => {
            to.min(today()).checked_sub(30.days()).map_err(|_| wrong("from", "too long ago"))?
        }
    };
    if to <= from {
        return Err(wrong("to", "must be after `from`").into());
    }
    let days = app.store.usage_by_day(&who.0.owner, bounded(from, to)?, to).await?;
    let window = |day: &Usage| UsageWindow {
        period_start: day.day,
        period_end: day.day,
        infra_usage: infra(day),
        session_count: positive(day.sessions),
    };
    Ok(Answer(UsageHistory { entries: days.iter().map(window).collect() }))
}

/// Show the sums of everything you used
#[utoipa::path(
    get, path = "/v1/dashboard/overview", tag = "Usage", operation_id = "get_overview",
    security(("account_token" = [])),
    responses((status = 200, description = "Since the beginning", body = Overview))
)]
pub(crate) async fn overview(
    State(app): State<App>,
    who: Holder,
    _none: NoQuery,
) -> Result<Answer<Overview>, Refusal> {
    let days = app.store.usage_by_day(&who.0.owner, Date::ZERO, after(today())?).await?;
    let all = sum(&days);
    Ok(Answer(Overview {
        sandbox_count: positive(all.sandboxes),
        input_tokens: positive(all.input_tokens),
        output_tokens: positive(all.output_tokens),
        cpu_seconds: positive(all.cpu_usec) / 1_000_000,
        billable_tool_calls: positive(all.tool_calls),
    }))
}

/// List your sandboxes of the last 31 days, also those that are gone
#[utoipa::path(
    get, path = "/v1/dashboard/sandboxes", tag = "Usage", operation_id = "list_recent_sandboxes",
    security(("account_token" = [])),
    params(
        ("limit" = Option<u32>, Query, description = "On a page: 1 to 1000, 20 if absent"),
        ("offset" = Option<u64>, Query, description = "How many to skip"),
    ),
    responses(
        (status = 200, description = "A page", body = RecentSandboxes),
        (status = 400, description = "Not a page"),
    )
)]
pub(crate) async fn sandboxes(
    State(app): State<App>,
    who: Holder,
    page: Page,
) -> Result<Answer<RecentSandboxes>, Refusal> {
    let (past, total) = app.store.history(&who.0.owner, page.limit, page.offset).await?;
    let sandboxes = past.into_iter().map(recent).collect();
    Ok(Answer(RecentSandboxes { sandboxes, total }))
}

/// Show tokens and processor time day by day
#[utoipa::path(
    get, path = "/v1/dashboard/usage/daily", tag = "Usage", operation_id = "get_daily_usage",
    security(("account_token" = [])),
    params(
        ("from" = String, Query, description = "The first day, 2026-04-01"),
        ("to" = String, Query, description = "The last day"),
    ),
    responses(
        (status = 200, description = "The days with any use", body = DailyUsage),
        (status = 400, description = "Not a date, or `to` is before `from`"),
    )
)]
pub(crate) async fn daily(
    State(app): State<App>,
    who: Holder,
    RawQuery(query): RawQuery,
) -> Result<Answer<DailyUsage>, Refusal> {
    let mut query = Query::parse(query.as_deref(), &["from", "to"])?;
    let from = date(&mut query, "from")?.ok_or_else(|| wrong("from", "is needed"))?;
    let to = date(&mut query, "to")?.ok_or_else(|| wrong("to", "is needed"))?;
    if to < from {
        return Err(wrong("to", "must not be before `from`").into());
    }
    let until = after(to)?;
    let days = app.store.usage_by_day(&who.0.owner, bounded(from, until)?, until).await?;
    let entry = |day: Usage| UsageDay {
        day: day.day,
        input_tokens: positive(day.input_tokens),
        output_tokens: positive(day.output_tokens),
        cpu_seconds: positive(day.cpu_usec) / 1_000_000,
    };
    Ok(Answer(DailyUsage { entries: days.into_iter().map(entry).collect() }))
}

fn today() -> Date {
    Timestamp::now().to_zoned(TimeZone::UTC).date()
}

fn after(day: Date) -> Result<Date, Error> {
    day.tomorrow().map_err(|_| wrong("to", "too far away"))
}

/// `from`, unless the stretch is longer than any answer.
fn bounded(from: Date, until: Date) -> Result<Date, Error> {
    let days = from.until(until).map_or(i32::MAX, |span| span.get_days());
    if days > DAYS_MAX {
        return Err(wrong("from", &format!("at most {DAYS_MAX} days are told at once")));
    }
    Ok(from)
}

fn date(query: &mut Query, name: &'static str) -> Result<Option<Date>, Error> {
    let Some(text) = query.take(name) else { return Ok(None) };
    let parsed = text.parse().map_err(|_| wrong(name, "must be a date like 2026-04-01"))?;
    Ok(Some(parsed))
}

fn wrong(name: &'static str, detail: &str) -> Error {
    Error::invalid(name, detail)
}

fn sum(days: &[Usage]) -> Usage {
    let of = |read: fn(&Usage) -> i64| days.iter().map(read).fold(0, i64::saturating_add);
    Usage {
        day: days.first().map_or(Date::ZERO, |first| first.day),
        cpu_usec: of(|day| day.cpu_usec),
        mib_ms: of(|day| day.mib_ms),
        sandboxes: of(|day| day.sandboxes),
        sessions: of(|day| day.sessions),
        input_tokens: of(|day| day.input_tokens),
        output_tokens: of(|day| day.output_tokens),
        tool_calls: of(|day| day.tool_calls),
        charged_micro_cents: of(|day| day.charged_micro_cents),
    }
}

fn infra(usage: &Usage) -> InfraUsage {
    InfraUsage {
        cpu_seconds: positive(usage.cpu_usec) / 1_000_000,
        sandbox_count: positive(usage.sandboxes),
        credits_used_usd: dollars(usage.charged_micro_cents / MICRO_CENTS),
    }
}

fn recent(past: Past) -> RecentSandbox {
    let seconds = |usec: i64| std::time::Duration::from_micros(positive(usec)).as_secs_f64();
    RecentSandbox {
        id: past.sandbox.to_string(),
        name: past.name,
        started_at: past.started_at,
        ended_at: past.ended_at,
        runs: positive(past.runs),
        seconds: seconds(past.run_usec),
        cpu_seconds: seconds(past.cpu_usec),
    }
}

/// The nearest number to so many cents.
fn dollars(cents: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "exact up to 90 trillion dollars")]
    let cents = cents as f64;
    cents / 100.0
}

fn positive(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}
