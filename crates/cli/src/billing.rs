//! `bastide usage` and `bastide billing`: what was used, what it cost, and credit.

use std::process::ExitCode;

use api::billing::{Balance, CheckoutStarted, Granted, Transactions};
use api::metering::{CurrentUsage, UsageHistory};
use clap::Subcommand;
use http::Method;
use serde_json::json;

use crate::client::Client;
use crate::failure::Failure;
use crate::out;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show your balance
    Balance,
    /// List how your balance changed, the newest first
    Transactions {
        /// On a page: 1 to 1000
        #[arg(long, default_value_t = 20)]
        limit: u32,
        /// How many to skip
        #[arg(long, default_value_t = 0)]
        offset: u64,
    },
    /// Begin a payment: prints the page where to pay
    Checkout {
        /// What to pay
        cents: i64,
    },
    /// Give credit to an owner (operator only)
    Grant {
        /// `usr_…`
        owner: String,
        /// Below zero takes away
        #[arg(allow_negative_numbers = true)]
        cents: i64,
        /// The same one again changes nothing: a call may be repeated
        #[arg(long)]
        reference: String,
        /// What the owner reads
        #[arg(long)]
        description: Option<String>,
    },
}

pub(crate) async fn execute(
    client: &Client,
    command: Command,
    json: bool,
) -> Result<ExitCode, Failure> {
    match command {
        Command::Balance => {
            let now: Balance = client.json(Method::GET, "/v1/billing/balance", None).await?;
            if json { out::json(&now)? } else { out::line(dollars(now.credit_balance)) }
        }
        Command::Transactions { limit, offset } => list(client, (limit, offset), json).await?,
        Command::Checkout { cents } => {
            let body = json!({ "credit_amount": cents });
            let started: CheckoutStarted =
                client.json(Method::POST, "/v1/billing/checkout", Some(&body)).await?;
            if json { out::json(&started)? } else { out::line(&started.url) }
        }
        Command::Grant { owner, cents, reference, description } => {
            let mut body = json!({ "owner": owner, "amount": cents, "reference": reference });
            if let Some(description) = description {
                body["description"] = description.into();
            }
            let granted: Granted =
                client.json(Method::POST, "/v1/billing/grants", Some(&body)).await?;
            if json {
                out::json(&granted)?;
            } else {
                if !granted.entered {
                    out::note("this reference was entered before: nothing changed");
                }
                out::line(dollars(granted.credit_balance));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What was used: this month, or the days before today.
pub(crate) async fn usage(client: &Client, days: bool, json: bool) -> Result<ExitCode, Failure> {
    if days {
        let all: UsageHistory = client.json(Method::GET, "/v1/usage/history", None).await?;
        if json {
            out::json(&all)?;
            return Ok(ExitCode::SUCCESS);
        }
        let row = |window: api::metering::UsageWindow| {
            let used = window.infra_usage;
            let cost = format!("${:.2}", used.credits_used_usd);
            let (cpu, count) = (used.cpu_seconds.to_string(), used.sandbox_count.to_string());
            vec![window.period_start.to_string(), cpu, count, cost]
        };
        out::table(
            &["DAY", "CPU SECONDS", "SANDBOXES", "COST"],
            all.entries.into_iter().map(row).collect(),
        );
        return Ok(ExitCode::SUCCESS);
    }
    let now: CurrentUsage = client.json(Method::GET, "/v1/usage", None).await?;
    if json {
        out::json(&now)?;
        return Ok(ExitCode::SUCCESS);
    }
    let used = now.infra_usage;
    let row = vec![
        now.period,
        used.cpu_seconds.to_string(),
        used.sandbox_count.to_string(),
        format!("${:.2}", used.credits_used_usd),
        format!("${:.2}", now.credits.balance_usd),
    ];
    out::table(&["PERIOD", "CPU SECONDS", "SANDBOXES", "COST", "BALANCE"], vec![row]);
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, (limit, offset): (u32, u64), json: bool) -> Result<(), Failure> {
    let path = format!("/v1/billing/transactions?limit={limit}&offset={offset}");
    let page: Transactions = client.json(Method::GET, &path, None).await?;
    if json {
        return out::json(&page);
    }
    let rows = page.transactions.into_iter().map(|one| {
        let (amount, balance) = (dollars(one.amount), dollars(one.balance));
        vec![one.timestamp.to_string(), amount, balance, one.description, one.id]
    });
    out::table(&["TIME", "AMOUNT", "BALANCE", "FOR", "ID"], rows.collect());
    out::note(format!("{} in all", page.total));
    Ok(())
}

fn dollars(cents: i64) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    let cents = cents.unsigned_abs();
    format!("{sign}${}.{:02}", cents / 100, cents % 100)
}
