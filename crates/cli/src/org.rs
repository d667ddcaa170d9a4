//! `bastide org`: organisations, members, and what they may have.

mod money;

use std::process::ExitCode;

use api::admin::{LimitsBody, Organisation, OrganisationDetail, Organisations, OwnerLimits};
use clap::{Args, Subcommand};
use http::{Method, header};
use serde_json::{Value, json};

use crate::client::{Client, full};
use crate::failure::Failure;
use crate::out;

const ALL: &str = "/v1/admin/organisations";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make an organisation (operator only)
    Create { name: String },
    /// List organisations (operator only)
    #[command(visible_alias = "ls")]
    List,
    /// Show an organisation with its members
    Show {
        /// `org_…`
        organisation: String,
    },
    /// Put an owner into an organisation, or change its role
    Add {
        /// `org_…`
        organisation: String,
        /// `usr_…`
        owner: String,
        #[arg(long, value_parser = ["owner", "member", "billing"], default_value = "member")]
        role: String,
    },
    /// Remove a member
    Remove {
        /// `org_…`
        organisation: String,
        /// `usr_…`
        owner: String,
    },
    /// Show the credit of its members, in cents (roles billing and owner)
    Balance {
        /// `org_…`
        organisation: String,
    },
    /// Show what moved the credit of its members, newest first (roles billing and owner)
    Transactions {
        /// `org_…`
        organisation: String,
        #[arg(long, default_value_t = 20)]
        limit: u32,
        #[arg(long, default_value_t = 0)]
        offset: u32,
    },
    /// Show what its members used this month (roles billing and owner)
    Usage {
        /// `org_…`
        organisation: String,
    },
    /// Show, or say, what an owner (`usr_…`) or each member of an organisation (`org_…`) may have
    Limits {
        /// `usr_…` or `org_…`
        whose: String,
        #[command(flatten)]
        limits: NewLimits,
    },
}

/// All that is given replaces all that was said before.
#[derive(Debug, Args)]
pub(crate) struct NewLimits {
    #[arg(long, value_parser = ["free", "operator"])]
    plan: Option<String>,
    /// Persistent sandboxes at once
    #[arg(long, value_name = "N")]
    persistent_max: Option<u32>,
    /// Ephemeral sandboxes at once
    #[arg(long, value_name = "N")]
    ephemeral_max: Option<u32>,
    /// Sum of the disks in each tier
    #[arg(long, value_name = "GIB")]
    disk_gb_per_tier_max: Option<u32>,
    /// All stored workspaces together
    #[arg(long, value_name = "GIB")]
    workspace_gib_max: Option<u32>,
    /// Say nothing about it any more
    #[arg(long)]
    clear: bool,
}

pub(crate) async fn execute(
    client: &Client,
    command: Command,
    json: bool,
) -> Result<ExitCode, Failure> {
    match command {
        Command::Create { name } => {
            let body = json!({ "name": name });
            let made: Organisation = client.json(Method::POST, ALL, Some(&body)).await?;
            if json { out::json(&made)? } else { out::line(&made.id) }
        }
        Command::List => list(client, json).await?,
        Command::Show { organisation } => show(client, &organisation, json).await?,
        Command::Add { organisation, owner, role } => {
            let path = format!("{ALL}/{}/members/{}", id(&organisation)?, id(&owner)?);
            change(client, Method::PUT, &path, &json!({ "role": role })).await?;
            out::line(&owner);
        }
        Command::Remove { organisation, owner } => {
            let path = format!("{ALL}/{}/members/{}", id(&organisation)?, id(&owner)?);
            change(client, Method::DELETE, &path, &Value::Null).await?;
            out::line(&owner);
        }
        Command::Balance { organisation } => {
            money::balance(client, id(&organisation)?, json).await?;
        }
        Command::Transactions { organisation, limit, offset } => {
            money::transactions(client, id(&organisation)?, (limit, offset), json).await?;
        }
        Command::Usage { organisation } => money::usage(client, id(&organisation)?, json).await?,
        Command::Limits { whose, limits } => limit(client, &whose, limits, json).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, json: bool) -> Result<(), Failure> {
    let all: Organisations = client.json(Method::GET, ALL, None).await?;
    if json {
        return out::json(&all);
    }
    let rows = all.organisations.into_iter();
    let rows = rows.map(|one| vec![one.id, one.name, one.created_at.to_string()]);
    out::table(&["ID", "NAME", "CREATED"], rows.collect());
    Ok(())
}

async fn show(client: &Client, organisation: &str, json: bool) -> Result<(), Failure> {
    let path = format!("{ALL}/{}", id(organisation)?);
    let one: OrganisationDetail = client.json(Method::GET, &path, None).await?;
    if json {
        return out::json(&one);
    }
    let rows = one.members.into_iter();
    let rows = rows.map(|member| vec![member.owner, member.role, member.since.to_string()]);
    out::table(&["OWNER", "ROLE", "SINCE"], rows.collect());
    out::note(format!("{} ({}), {}", one.id, one.name, said(&one.limits)));
    Ok(())
}

async fn limit(client: &Client, whose: &str, limits: NewLimits, json: bool) -> Result<(), Failure> {
    let is_owner = whose.starts_with("usr_");
    let kind = if is_owner { "owners" } else { "organisations" };
    let path = format!("/v1/admin/{kind}/{}/limits", id(whose)?);
    let clear = limits.clear;
    let body = limits.body();
    if body != LimitsBody::default() || clear {
        let body = serde_json::to_value(&body).map_err(|e| Failure::new(e.to_string()))?;
        let now: LimitsBody = client.json(Method::PUT, &path, Some(&body)).await?;
        if json {
            return out::json(&now);
        }
        out::line(said(&now));
        return Ok(());
    }
    if !is_owner {
        return show(client, whose, json).await;
    }
    let now: OwnerLimits = client.json(Method::GET, &path, None).await?;
    if json {
        return out::json(&now);
    }
    out::line(said(&now.effective));
    out::note(format!("about the owner itself: {}", said(&now.own)));
    Ok(())
}

async fn change(client: &Client, method: Method, path: &str, body: &Value) -> Result<(), Failure> {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let request = client
        .request(method, path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(full(text.into_bytes()))
        .map_err(|error| Failure::new(error.to_string()))?;
    client.whole(request).await.map(drop)
}

impl NewLimits {
    fn body(self) -> LimitsBody {
        let Self {
            plan,
            persistent_max,
            ephemeral_max,
            disk_gb_per_tier_max,
            workspace_gib_max,
            clear: _,
        } = self;
        LimitsBody { plan, persistent_max, ephemeral_max, disk_gb_per_tier_max, workspace_gib_max }
    }
}

fn said(limits: &LimitsBody) -> String {
    let max = |max: Option<u32>| max.map_or_else(|| "-".to_owned(), |max| max.to_string());
    format!(
        "plan {}, persistent {}, ephemeral {}, disk GiB per tier {}, workspaces GiB {}",
        limits.plan.as_deref().unwrap_or("-"),
        max(limits.persistent_max),
        max(limits.ephemeral_max),
        max(limits.disk_gb_per_tier_max),
        max(limits.workspace_gib_max)
    )
}

/// An id goes into a path as it is.
fn id(text: &str) -> Result<&str, Failure> {
    let plain = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
    if text.is_empty() || !text.bytes().all(plain) {
        return Err(Failure::new(format!("not an id: {text}")));
    }
    Ok(text)
}
