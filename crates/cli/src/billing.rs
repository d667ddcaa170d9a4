//! `bastide usage` and `bastide billing`, over HTTP.

use std::process::ExitCode;

use api::billing::{AutoTopup, Balance, Checkout, Done, Transactions};
use api::metering::{UsageHistory, UsageNow};
use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::failure::Failure;
use crate::out;

/// Without days: this month, and the credit that is left.
#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    /// Day by day, from this one: `2026-04-01`
    #[arg(long, value_name = "DATE")]
    from: Option<String>,
    /// Until the day before this one
    #[arg(long, value_name = "DATE")]
    to: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what is left, in cents
    Balance,
    /// Show what moved the balance, newest first
    Transactions {
        #[arg(long, default_value_t = 20)]
        limit: u32,
        #[arg(long, default_value_t = 0)]
        offset: u32,
    },
    /// Print where to pay for so many cents of credit
    Checkout { cents: i64 },
    /// Show when credit is bought by itself, or set it
    AutoTopup {
        /// Switch it on: at a balance of this or less …
        #[arg(long, value_name = "CENTS", requires = "amount")]
        threshold: Option<i64>,
        /// … buy so much
        #[arg(long, value_name = "CENTS", requires = "threshold")]
        amount: Option<i64>,
        /// Switch it off
        #[arg(long, conflicts_with = "threshold")]
        off: bool,
    },
    /// Give an owner credit (operator only); below 0 takes
    #[command(allow_negative_numbers = true)]
    Grant {
        #[arg(value_name = "OWNER")]
        owner: String,
        cents: i64,
        #[arg(long)]
        description: Option<String>,
        /// Told again with the same one, it counts once
        #[arg(long)]
        reference: Option<String>,
    },
}

pub(crate) async fn usage(
    client: &Client,
    args: UsageArgs,
    json: bool,
) -> Result<ExitCode, Failure> {
    if args.from.is_none() && args.to.is_none() {
        let now: UsageNow = client.json(Method::GET, "/v1/usage", None).await?;
        if json {
            out::json(&now)?;
            return Ok(ExitCode::SUCCESS);
        }
        let used = now.infra_usage;
        out::line(format!("{}  {}", now.tenant_id, now.period));
        out::line(format!(
            "{} sandboxes, {} s of processors",
            used.sandbox_count, used.cpu_seconds
        ));
        out::line(format!(
            "{:.2} used, {:.2} left",
            used.credits_used_usd, now.credits.balance_usd
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in [("from", args.from), ("to", args.to)] {
        if let Some(value) = value {
            query.append_pair(name, &value);
        }
    }
    let path = format!("/v1/usage/history?{}", query.finish());
    let history: UsageHistory = client.json(Method::GET, &path, None).await?;
    if json {
        out::json(&history)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = history.entries.into_iter().map(|day| {
        let used = day.infra_usage;
        let cost = format!("{:.2}", used.credits_used_usd);
        vec![day.period_start, used.sandbox_count.to_string(), used.cpu_seconds.to_string(), cost]
    });
    out::table(&["DAY", "SANDBOXES", "CPU SECONDS", "USED"], rows.collect());
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn execute(
    client: &Client,
    command: Command,
    json: bool,
) -> Result<ExitCode, Failure> {
    match command {
        Command::Balance => {
            let balance: Balance = client.json(Method::GET, "/v1/billing/balance", None).await?;
            one(json, &balance, &balance.credit_balance.to_string())?;
        }
        Command::Transactions { limit, offset } => {
            let path = format!("/v1/billing/transactions?limit={limit}&offset={offset}");
            transactions(client.json(Method::GET, &path, None).await?, json)?;
        }
        Command::Checkout { cents } => {
            let body = json!({ "credit_amount": cents });
            let path = "/v1/billing/checkout";
            let page: Checkout = client.json(Method::POST, path, Some(&body)).await?;
            one(json, &page, &page.url)?;
        }
        Command::AutoTopup { threshold, amount, off } => {
            let wanted = match (threshold, amount) {
                (Some(threshold), Some(amount)) => Some((threshold, amount)),
                (Some(_) | None, _) => off.then_some((0, 0)),
            };
            auto_topup(client, wanted, json).await?;
        }
        Command::Grant { owner, cents, description, reference } => {
            let owner = if owner.starts_with("usr_") { owner } else { format!("usr_{owner}") };
            let mut body = Map::from_iter([
                ("owner".to_owned(), Value::from(owner)),
                ("amount".to_owned(), cents.into()),
            ]);
            body.extend(description.map(|text| ("description".to_owned(), text.into())));
            body.extend(reference.map(|text| ("reference".to_owned(), text.into())));
            let body = Value::Object(body);
            let path = "/v1/admin/credits";
            let balance: Balance = client.json(Method::POST, path, Some(&body)).await?;
            one(json, &balance, &balance.credit_balance.to_string())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Sets it (off when nothing is to be bought), or shows it.
async fn auto_topup(
    client: &Client,
    wanted: Option<(i64, i64)>,
    json: bool,
) -> Result<(), Failure> {
    const PATH: &str = "/v1/billing/auto-topup";
    let Some((threshold_amount, topup_amount)) = wanted else {
        let set: AutoTopup = client.json(Method::GET, PATH, None).await?;
        let text = match set.enabled {
            true => format!("{} cents at {} or less", set.topup_amount, set.threshold_amount),
            false => "off".into(),
        };
        return one(json, &set, &text);
    };
    let body = json!({
        "enabled": topup_amount != 0,
        "threshold_amount": threshold_amount,
        "topup_amount": topup_amount
    });
    let done: Done = client.json(Method::POST, PATH, Some(&body)).await?;
    one(json, &done, &done.status)
}

fn transactions(list: Transactions, json: bool) -> Result<(), Failure> {
    if json {
        return out::json(&list);
    }
    let rows = list.transactions.into_iter();
    let rows = rows.map(|one| {
        vec![one.timestamp.to_string(), one.amount.to_string(), one.description, one.id]
    });
    out::table(&["TIME", "CENTS", "FOR", "ID"], rows.collect());
    Ok(())
}

fn one(json: bool, whole: &impl serde::Serialize, line: &str) -> Result<(), Failure> {
    if json {
        return out::json(whole);
    }
    out::line(line);
    Ok(())
}
